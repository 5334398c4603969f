/* Fills of memory whose range was checked. */
#include <string.h>

#include "sim.h"

void sim_fill_there(const abi_memset_node *fill) {
    if (fill->width == 0) return; /* of nothing, which may be at no address */
    for (size_t row = 0; row < fill->height; row++) {
        char *at = (char *)(fill->to + row * fill->pitch);
        if (fill->element == 1) memset(at, (int)fill->value, fill->width);
        for (size_t i = 0; fill->element == 2 && i < fill->width; i++) ((uint16_t *)at)[i] = (uint16_t)fill->value;
        for (size_t i = 0; fill->element == 4 && i < fill->width; i++) ((uint32_t *)at)[i] = fill->value;
    }
}
