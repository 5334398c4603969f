/* The start of an engine: it remembers the state of the process and the services of libcotenant.so. All static
 * variables of an engine are caches that the next engine can do without. */
#include "engine.h"

#include "driver_calls.h"

struct cot_state *cot;
const struct cot_services *cot_services;
ptrdiff_t cot_thread_offset;
_Atomic(void *) cot_real_addresses[COT_REAL_COUNT];

/* Without pointers, which the loader would have to relocate. */
static const struct names {
#define ROOM(index, symbol) char symbol[sizeof #symbol];
    COT_CUDA_SERVED(ROOM)
#undef ROOM
} NAMES = {
#define NAME(index, symbol) #symbol,
    COT_CUDA_SERVED(NAME)
#undef NAME
};
static const uint16_t NAME_AT[] = {
#define PLACE(index, symbol) offsetof(struct names, symbol),
    COT_CUDA_SERVED(PLACE)
#undef PLACE
};

bool cot_start(const struct cot_services *services) {
    cot_services = services;
    cot_thread_offset = services->thread;
    cot = services->state;
    return true;
}

void *cot_resolve_real(uint32_t index) {
    void *address = cot_services->real((const char *)&NAMES + NAME_AT[index]);
    if (address) atomic_store_explicit(&cot_real_addresses[index], address, memory_order_release);
    return address;
}

void *cot_driver(const char *name) {
    return cot_services->real(name);
}

int cot_missing(void) {
    return cot_services->missing();
}
