/* Which pools there are, and which of them a location has. */
#include <stdlib.h>

#include "pool.h"

struct sim_pool *sim_pools;

struct sim_pool *sim_pool_new(int device, const abi_location *location) {
    struct sim_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    *pool = (struct sim_pool){.magic = SIM_POOL_MAGIC,
                              .device = device,
                              .location = *location,
                              .reuses = {true, true, true},
                              .next = sim_pools};
    sim_pools = pool;
    return pool;
}

bool sim_is_pool(const struct sim_pool *pool) {
    for (const struct sim_pool *known = sim_pools; known; known = known->next) {
        if (known == pool) return true;
    }
    return false;
}

/* The pools of a location: the one the driver made, and the one that the program chose. The locality domains of a
 * device have one place. Host memory has one place without a node and one of node 0, the only one here. */
static struct sim_pool_place device_places[SIM_MAX_GPUS], domain_places[SIM_MAX_GPUS], host_places[2];

struct sim_pool_place *sim_pool_place(const abi_location *location, int *device) {
    *device = sim_device_of_location(location);
    if (*device >= 0) return location->type == ABI_LOCATION_DEVICE ? &device_places[*device] : &domain_places[*device];
    return *device == SIM_HOST && sim_is_host_node(location) ? &host_places[location->type == ABI_LOCATION_HOST_NUMA]
                                                             : NULL;
}

bool sim_is_host_node(const abi_location *location) {
    return location->type == ABI_LOCATION_HOST || (location->type == ABI_LOCATION_HOST_NUMA && location->id == 0);
}

struct sim_pool *sim_default_pool(const abi_location *location) {
    int device;
    struct sim_pool_place *place = sim_pool_place(location, &device);
    if (!place->by_default) {
        place->by_default = sim_pool_new(device, location);
        if (place->by_default) place->by_default->is_default = true;
    }
    return place->by_default;
}

struct sim_pool *sim_current_pool(const abi_location *location) {
    int device;
    const struct sim_pool_place *place = sim_pool_place(location, &device);
    return place->current ? place->current : sim_default_pool(location);
}

void sim_unset_pool(const struct sim_pool *pool) {
    int device;
    struct sim_pool_place *place = sim_pool_place(&pool->location, &device);
    if (place && place->current == pool) place->current = NULL;
}
