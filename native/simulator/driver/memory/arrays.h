/* An array and the memory mapped to its parts, shared by arrays.c and sparse_arrays.c. */
#pragma once

#include "../sim.h"

/* Memory mapped to a part of an array: a box of elements, or a range of bytes of a mip tail as a box of one row. */
struct sim_array_part {
    struct sim_array_part *next;
    int type;
    unsigned level, layer;
    uint64_t from[3], to[3];
    struct sim_physical *physical;
};

struct sim_array {
    struct sim_array *next;
    struct sim_context *context;
    abi_array3d_shape shape;
    unsigned levels; /* 0: not mipmapped */
    bool part;       /* a level of a mipmapped array: it cannot be destroyed by itself */
    struct sim_array *whole;
    unsigned level; /* of `whole` */
    uint64_t bytes; /* of its layout */
    uint64_t block; /* block ID of the daemon; 0 = no memory of its own */
    char *contents;
    struct sim_array_part *mappings;
};

static inline bool sim_array_has_memory(const struct sim_array *array) {
    return !(array->shape.flags & (ABI_ARRAY_SPARSE | ABI_ARRAY_DEFERRED));
}

/* NULL: not an array. Under sim.lock. */
struct sim_array *sim_array_of(const void *handle);
/* Removes the mapping at *place. Under sim.lock. */
void sim_array_unmap(struct sim_array_part **place);
