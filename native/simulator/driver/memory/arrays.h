/* What arrays.c and array_maps.c share: an array and what lies under its parts. */
#pragma once

#include "../sim.h"

/* What lies under a part of an array: a box of elements, or a run of bytes of a mip tail as a box of one row. */
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
    unsigned levels; /* 0: not a chain */
    bool part;       /* a level of a chain: it cannot be destroyed by itself */
    struct sim_array *whole;
    unsigned level; /* of `whole` */
    uint64_t bytes; /* of its layout */
    uint64_t block; /* the daemon's id; 0 = no memory of its own */
    char *contents;
    struct sim_array_part *mappings;
};

static inline bool sim_array_has_memory(const struct sim_array *array) {
    return !(array->shape.flags & (ABI_ARRAY_SPARSE | ABI_ARRAY_DEFERRED));
}

/* NULL: no array has this handle. Under sim.lock. */
struct sim_array *sim_array_of(const void *handle);
/* Takes away what lies at *place. Under sim.lock. */
void sim_array_unmap(struct sim_array_part **place);
