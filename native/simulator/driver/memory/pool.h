/* A pool of stream-ordered memory. */
#pragma once

#include "../sim.h"

#define SIM_POOL_MAGIC 0x504f4f21u

struct sim_pool {
    uint32_t magic;
    int device; /* SIM_HOST: host memory; SIM_NO_DEVICE: a managed one that nothing was allocated from */
    abi_location location;
    bool is_default, destroyed, managed;
    int handle_types; /* by which it can be exported */
    bool imported;    /* it cannot allocate: its owner's pointers are opened through it */
    bool reuses[3];   /* as the program set them; freed memory is used again in any case */
    uint64_t max_bytes, release_threshold;
    uint64_t reserved, reserved_high, used, used_high;
    uint64_t freed_after[SIM_MAX_GPUS]; /* the last item in a stream of a free, by GPU */
    struct sim_region *chunks;
    struct sim_pool *next;
};

/* pool_list.c; all under sim.lock, but for sim_is_host_node and sim_pool_place */
extern struct sim_pool *sim_pools;                                       /* those that were not destroyed */
struct sim_pool *sim_pool_new(int device, const abi_location *location); /* NULL: out of memory */
bool sim_is_pool(const struct sim_pool *pool);

struct sim_pool_place {
    struct sim_pool *by_default, *current; /* the driver's own; the one that the program chose */
};
/* The pools of a location, and its device or another answer of sim_device_of_location; NULL: it has none. */
struct sim_pool_place *sim_pool_place(const abi_location *location, int *device);
struct sim_pool *sim_default_pool(const abi_location *location);
struct sim_pool *sim_current_pool(const abi_location *location);
void sim_unset_pool(const struct sim_pool *pool); /* its location has its default pool again */
bool sim_is_host_node(const abi_location *location);

/* Takes sim.lock. NULL: the device's current pool. */
int sim_pool_allocate(struct sim_pool *pool, int device, uint64_t bytes, abi_devptr *pointer);
/* Under sim.lock: frees in the order of a stream. */
int sim_pool_free(struct sim_region *region, abi_devptr pointer, struct sim_context *context,
                  struct sim_stream *stream);
