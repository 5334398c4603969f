/* Pools of stream-ordered memory as the program sets them: attributes, access, and which pool a location has. */
#include "pool.h"

/* Attributes that can only be read, of CUDA 13.0 and later. */
enum { ALLOCATION_TYPE = 9, HANDLE_TYPES = 10, LOCATION_ID = 11, LOCATION_TYPE = 12, MAX_SIZE = 13 };

SIM_EXPORT abi_result cuMemPoolGetAttribute(abi_pool handle, int attribute, void *value) {
    SIM_ENTER("cuMemPoolGetAttribute");
    struct sim_pool *pool = (struct sim_pool *)handle;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!value || !sim_is_pool(pool)) result = ABI_ERROR_INVALID_VALUE;
    else if (attribute >= ABI_POOL_REUSE_FOLLOW_EVENTS && attribute <= ABI_POOL_REUSE_INTERNAL)
        *(int *)value = pool->reuses[attribute - ABI_POOL_REUSE_FOLLOW_EVENTS];
    else if (attribute == ABI_POOL_RELEASE_THRESHOLD) *(uint64_t *)value = pool->release_threshold;
    else if (attribute == ABI_POOL_RESERVED_CURRENT) *(uint64_t *)value = pool->reserved;
    else if (attribute == ABI_POOL_RESERVED_HIGH) *(uint64_t *)value = pool->reserved_high;
    else if (attribute == ABI_POOL_USED_CURRENT) *(uint64_t *)value = pool->used;
    else if (attribute == ABI_POOL_USED_HIGH) *(uint64_t *)value = pool->used_high;
    else if (attribute == ALLOCATION_TYPE)
        *(int *)value = pool->managed ? ABI_ALLOCATION_MANAGED : ABI_ALLOCATION_PINNED;
    else if (attribute == HANDLE_TYPES) *(int *)value = pool->handle_types;
    else if (attribute == LOCATION_ID) *(int *)value = pool->location.id;
    else if (attribute == LOCATION_TYPE) *(int *)value = pool->location.type;
    else if (attribute == MAX_SIZE) *(uint64_t *)value = pool->max_bytes;
    else result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolSetAttribute(abi_pool handle, int attribute, void *value) {
    SIM_ENTER("cuMemPoolSetAttribute");
    struct sim_pool *pool = (struct sim_pool *)handle;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!value || !sim_is_pool(pool)) result = ABI_ERROR_INVALID_VALUE;
    else if (attribute == ABI_POOL_RELEASE_THRESHOLD) pool->release_threshold = *(uint64_t *)value;
    else if (attribute >= ABI_POOL_REUSE_FOLLOW_EVENTS && attribute <= ABI_POOL_REUSE_INTERNAL)
        pool->reuses[attribute - ABI_POOL_REUSE_FOLLOW_EVENTS] = *(int *)value != 0;
    else if (*(uint64_t *)value != 0) result = ABI_ERROR_INVALID_VALUE; /* high-water marks can be reset alone */
    else if (attribute == ABI_POOL_RESERVED_HIGH) pool->reserved_high = pool->reserved;
    else if (attribute == ABI_POOL_USED_HIGH) pool->used_high = pool->used;
    else result = ABI_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sim.lock);
    return result;
}

SIM_EXPORT abi_result cuMemPoolSetAccess(abi_pool pool, const abi_access_desc *map, size_t count) {
    SIM_ENTER("cuMemPoolSetAccess");
    struct sim_pool *known = (struct sim_pool *)pool;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!sim_is_pool(known) || (count && !map)) result = ABI_ERROR_INVALID_VALUE;
    int home = result == ABI_SUCCESS ? sim_device_of_location(&known->location) : SIM_NO_DEVICE;
    for (size_t i = 0; result == ABI_SUCCESS && i < count; i++) {
        int device = sim_device_of_location(&map[i].location);
        if (device < 0) result = device == SIM_NO_DEVICE ? ABI_ERROR_INVALID_DEVICE : ABI_ERROR_INVALID_VALUE;
        else if (device == home && map[i].flags != ABI_ACCESS_READ_WRITE) result = ABI_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&sim.lock);
    return result;
}

/* No two simulated devices reach each other's memory; all of them reach that of the host. */
SIM_EXPORT abi_result cuMemPoolGetAccess(int *flags, abi_pool pool, const abi_location *location) {
    SIM_ENTER("cuMemPoolGetAccess");
    const struct sim_pool *known = (const struct sim_pool *)pool;
    if (!flags || !location || !SIM_LOCKED(sim_is_pool(known))) return ABI_ERROR_INVALID_VALUE;
    int device = sim_device_of_location(location);
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    bool near = device == known->device || known->device == SIM_HOST || known->managed;
    *flags = near ? ABI_ACCESS_READ_WRITE : ABI_ACCESS_NONE;
    return ABI_SUCCESS;
}

/* Which pools a location has: devices and the host, of pinned memory. */
static int check_place(const abi_location *location, int type) {
    if (!location) return ABI_ERROR_INVALID_VALUE;
    int device;
    bool managed = type == ABI_ALLOCATION_MANAGED;
    const struct sim_pool_place *place = sim_pool_place(location, &device);
    if (device == SIM_NO_DEVICE) return ABI_ERROR_INVALID_DEVICE;
    if (!place || (type != ABI_ALLOCATION_PINNED && !managed)) return ABI_ERROR_INVALID_VALUE;
    return managed ? ABI_ERROR_NOT_SUPPORTED : ABI_SUCCESS;
}

static int get_pool(abi_pool *out, const abi_location *location, int type, bool by_default) {
    if (!out) return ABI_ERROR_INVALID_VALUE;
    SIM_TRY(check_place(location, type));
    pthread_mutex_lock(&sim.lock);
    struct sim_pool *pool = by_default ? sim_default_pool(location) : sim_current_pool(location);
    pthread_mutex_unlock(&sim.lock);
    *out = (abi_pool)pool;
    return pool ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

/* Location and type must be those of the pool. */
static int set_pool(const abi_location *location, int type, abi_pool handle) {
    struct sim_pool *pool = (struct sim_pool *)handle;
    int device, result = check_place(location, type);
    if (result == ABI_ERROR_NOT_SUPPORTED) return ABI_ERROR_INVALID_VALUE;
    if (result != ABI_SUCCESS) return result;
    pthread_mutex_lock(&sim.lock);
    struct sim_pool_place *place = sim_pool_place(location, &device);
    bool fits =
        sim_is_pool(pool) && !pool->imported && !pool->managed && sim_pool_place(&pool->location, &device) == place;
    if (fits) place->current = pool;
    pthread_mutex_unlock(&sim.lock);
    return fits ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}

#define ON_DEVICE(device) (&(abi_location){ABI_LOCATION_DEVICE, device})
SIM_ROW(cuDeviceGetDefaultMemPool, (abi_pool * pool, abi_device device),
        get_pool(pool, ON_DEVICE(device), ABI_ALLOCATION_PINNED, true))
SIM_ROW(cuDeviceGetMemPool, (abi_pool * pool, abi_device device),
        get_pool(pool, ON_DEVICE(device), ABI_ALLOCATION_PINNED, false))
SIM_ROW(cuDeviceSetMemPool, (abi_device device, abi_pool pool),
        set_pool(ON_DEVICE(device), ABI_ALLOCATION_PINNED, pool))
SIM_ROW(cuMemGetDefaultMemPool, (abi_pool * pool, const abi_location *location, int type),
        get_pool(pool, location, type, true))
SIM_ROW(cuMemGetMemPool, (abi_pool * pool, const abi_location *location, int type),
        get_pool(pool, location, type, false))
SIM_ROW(cuMemSetMemPool, (const abi_location *location, int type, abi_pool pool), set_pool(location, type, pool))
