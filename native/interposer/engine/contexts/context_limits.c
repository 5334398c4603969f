/* Limits of a context (cuCtxSetLimit): device heap, printf buffer, stacks for all threads that the GPU can run at once,
 * and what the device runtime keeps for levels of synchronization and for pending launches. What a limit costs beyond
 * its value when contexts were measured must fit into the grant, and is charged as part of the context until it is
 * lowered or the context ends. */
#include <pthread.h>

#include "contexts.h"
#include "current.h"

/* ---- charges in the table of contexts ---- */

/* Under the lock. A green context has the limits of its device's primary context, which are charged there: driver
 * 580.159.04 on an H100 (test/gpu/observed/h100-580.159.04.json, step green, stage heapLimit). */
static struct cot_known_context *find_owner(void *context) {
    struct cot_known_context *entry = cot_context_find(context);
    struct cot_known_context *primary = entry && entry->green ? cot_context_primary(entry->device) : NULL;
    return primary ? primary : entry;
}

/* Reads the charge of a limit; `base` is its cost if it was never read before. False: the context is unknown. */
static bool read_limit(void *context, unsigned which, uint64_t base, struct cot_context_limit *limit) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = find_owner(context);
    if (entry) {
        struct cot_context_limit *own = cot_context_limit(entry, which);
        if (own->version == 0) {
            *own = (struct cot_context_limit){.base = base, .version = 1};
        }
        *limit = *own;
    }
    pthread_mutex_unlock(&cot->contexts.lock);
    return entry;
}

static void add_to_limit(struct cot_known_context *entry, unsigned which, uint64_t more) {
    struct cot_context_limit *limit = cot_context_limit(entry, which);
    limit->charged += more;
    limit->version++;
    entry->charged += more;
    __atomic_fetch_add(&cot_own_row(entry->gpu)->context, more, __ATOMIC_RELAXED);
}

/* Charges what was reserved for setting a limit, unless its version has changed (false). */
static bool begin_limit(void *context, unsigned which, uint32_t version, uint64_t reserved) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = find_owner(context);
    bool current = entry && cot_context_limit(entry, which)->version == version;
    if (current) {
        uint32_t gpu = entry->gpu;
        cot_context_limit(entry, which)->setters++;
        add_to_limit(entry, which, reserved);
        if (reserved) cot_commit(gpu, reserved, reserved);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
    return current;
}

static void end_limit(void *context, unsigned which) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = find_owner(context);
    if (entry && cot_context_limit(entry, which)->setters > 0) {
        cot_context_limit(entry, which)->setters--;
        cot_context_limit(entry, which)->version++;
    }
    pthread_mutex_unlock(&cot->contexts.lock);
}

/* Makes `bytes` the charge of a limit, unless its version has changed (false). */
static bool charge_limit(void *context, unsigned which, uint32_t version, uint64_t bytes) {
    pthread_mutex_lock(&cot->contexts.lock);
    struct cot_known_context *entry = find_owner(context);
    bool current = entry && cot_context_limit(entry, which)->version == version;
    if (current) {
        uint64_t before = cot_context_limit(entry, which)->charged;
        add_to_limit(entry, which, bytes - before);
        if (bytes > before) cot_charge(entry->gpu, bytes - before);
        if (bytes < before) cot_release(entry->gpu, before - bytes);
    }
    pthread_mutex_unlock(&cot->contexts.lock);
    return current || !entry;
}

/* ---- values that the driver reports ---- */

/* CUDA C++ Programming Guide 12, "CUDA Dynamic Parallelism": a level of synchronization may take 150 MB. What a pending
 * launch takes is not documented: twice its largest parameters. The agent lowers the charge to what it measures. */
#define LEVEL_BYTES (150ull << 20)
#define LAUNCH_BYTES 8192u

/* Bytes of GPU memory for one unit of a limit's value. */
static abi_result unit_of(int limit, uint64_t *bytes) {
    abi_device device;
    int sms = 0, threads = 0;
    *bytes = limit == ABI_LIMIT_DEVICE_RUNTIME_SYNC_DEPTH         ? LEVEL_BYTES
             : limit == ABI_LIMIT_DEVICE_RUNTIME_PENDING_LAUNCHES ? LAUNCH_BYTES
                                                                  : 1;
    if (limit != ABI_LIMIT_STACK_SIZE) return ABI_SUCCESS;
    abi_result result = CALL_DRIVER("cuCtxGetDevice", (abi_device *), &device);
    if (result == ABI_SUCCESS)
        result = CALL_DRIVER("cuDeviceGetAttribute", (int *, int, abi_device), &sms, (int)ABI_DEVICE_SM_COUNT, device);
    if (result == ABI_SUCCESS)
        result = CALL_DRIVER("cuDeviceGetAttribute", (int *, int, abi_device), &threads, (int)ABI_DEVICE_THREADS_PER_SM,
                             device);
    *bytes = (uint64_t)sms * (uint64_t)threads;
    return result;
}

static uint64_t saturating_multiply(uint64_t value, uint64_t unit) {
    uint64_t bytes;
    return __builtin_mul_overflow(value, unit, &bytes) ? UINT64_MAX : bytes;
}

static uint64_t bytes_beyond(uint64_t bytes, uint64_t base, uint64_t granule) {
    if (bytes <= base) return 0;
    bytes -= base;
    return bytes > UINT64_MAX - granule ? UINT64_MAX : (bytes + granule - 1) / granule * granule;
}

static abi_result value_of(int limit, size_t *value) {
    return CALL_DRIVER("cuCtxGetLimit", (size_t *, int), value, limit);
}

/* Makes the charge what the driver reports, unless another thread is setting the same limit. Nothing reads it again
 * later, so a failing query is repeated once; after that the charge stays at the most that was asked for. */
static void charge_driver_value(void *context, int limit, uint64_t unit, uint64_t granule) {
    struct cot_context_limit account;
    size_t value;
    uint64_t bytes;
    do {
        if (!read_limit(context, (unsigned)limit, 0, &account) || account.setters > 0) return;
        abi_result result = value_of(limit, &value);
        if (result != ABI_SUCCESS) result = value_of(limit, &value);
        if (result != ABI_SUCCESS) return;
        bytes = bytes_beyond(saturating_multiply(value, unit), account.base, granule);
    } while (!charge_limit(context, (unsigned)limit, account.version, bytes));
}

/* The driver rounds stack sizes up to multiples of 16 bytes. */
static uint64_t rounded(int limit, size_t value) {
    return limit == ABI_LIMIT_STACK_SIZE && value <= SIZE_MAX - 15 ? (value + 15) / 16 * 16 : value;
}

abi_result cot_cuCtxSetLimit(int limit, size_t value) {
    uint32_t gpu;
    void *context;
    uint64_t unit, more = 0;
    size_t before;
    struct cot_context_limit account;
    struct cot_gpu_limits limits;
    if (limit < 0 || limit >= COT_ALL_LIMITS) return CALL_REAL(cuCtxSetLimit, (int, size_t), limit, value);
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current_context(&gpu, &context);
    if (result == ABI_SUCCESS) result = unit_of(limit, &unit);
    if (result == ABI_SUCCESS) result = value_of(limit, &before);
    if (result != ABI_SUCCESS) return result;
    if (gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    cot_read_limits(gpu, &limits);
    /* Charged before the driver is called and while any thread sets it: a lower value may be set in between. */
    for (;;) {
        if (!read_limit(context, (unsigned)limit, saturating_multiply(before, unit), &account))
            return CALL_REAL(cuCtxSetLimit, (int, size_t), limit, value);
        uint64_t wanted =
            bytes_beyond(saturating_multiply(rounded(limit, value), unit), account.base, limits.granule_bytes);
        more = wanted > account.charged ? wanted - account.charged : 0;
        if (more && !cot_reserve(gpu, more)) {
            cot_count_denied(gpu);
            return ABI_ERROR_OUT_OF_MEMORY;
        }
        if (begin_limit(context, (unsigned)limit, account.version, more)) break;
        if (more) cot_rollback(gpu, more);
    }
    result = CALL_REAL(cuCtxSetLimit, (int, size_t), limit, value);
    end_limit(context, (unsigned)limit);
    charge_driver_value(context, limit, unit, limits.granule_bytes);
    return result;
}
