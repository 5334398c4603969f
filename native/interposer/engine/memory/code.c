/* Code near a full grant. No call says how much memory a module takes: the agent finds it in the driver's count, which
 * is too late for a program that could have had an error. So near a full grant the GPU's free memory before and after
 * says it. Other processes allocate and free in between, so the module is loaded, unloaded and loaded again, until
 * loading and unloading agree, and the least of the differences counts; before it is refused this is done several
 * times. More than the module took is not charged or refused, unless others allocate and free in step with it all the
 * time. Kernels that are loaded at first use are not seen here. */
#include <stdlib.h>

#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "../core/driver_calls.h"
#include "blocks/blocks.h"

#define NEARLY_FULL_FRACTION 8u /* less than this fraction of the grant is left */
#define USUAL_OPTIONS 64u
#define ROUNDS 8 /* others disturb all 16 measurements, at 0.4 each, in less than one case of 10^6 */

/* A call that loads a module: with `image`, an image or a path, and options, which the driver writes to. */
struct load {
    void *real;
    abi_module *out;
    const void *image;
    bool has_options;
    unsigned count;
    int *options;
    void **values;
    void **saved, *usual[USUAL_OPTIONS];
};

typedef abi_result (*load_call)(abi_module *, const void *);
typedef abi_result (*load_with_options)(abi_module *, const void *, unsigned, int *, void **);

static abi_result call(const struct load *load) {
    if (!load->real) return (abi_result)cot_missing();
    return load->has_options
               ? ((load_with_options)load->real)(load->out, load->image, load->count, load->options, load->values)
               : ((load_call)load->real)(load->out, load->image);
}

static uint64_t free_bytes(void) {
    size_t left = 0, total;
    CALL_REAL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    return left;
}

/* Loads; *taken: by how much the GPU's free memory shrank. */
static abi_result load_measured(const struct load *load, uint64_t *taken) {
    for (unsigned i = 0; i < load->count; i++) load->values[i] = load->saved[i];
    uint64_t before = free_bytes();
    abi_result result = call(load);
    uint64_t after = free_bytes();
    *taken = before > after ? before - after : 0;
    return result;
}

/* Unloads what was loaded; by how much that made the GPU's free memory grow. False: it is still loaded. */
static bool unload_measured(const struct load *load, uint64_t *given) {
    uint64_t before = free_bytes();
    if (CALL_REAL(cuModuleUnload, (abi_module), *load->out) != ABI_SUCCESS) return false;
    uint64_t after = free_bytes();
    *given = after > before ? after - before : 0;
    return true;
}

static bool is_nearly_full(uint32_t gpu) {
    struct cot_gpu_limits limits;
    cot_read_limits(gpu, &limits);
    if (!limits.isolate) return false;
    return cot_container_usage(gpu) > limits.memory_bytes - limits.memory_bytes / NEARLY_FULL_FRACTION;
}

static void add_block(const struct load *load, uint32_t gpu, void *context, uint64_t bytes) {
    struct cot_block block = {.key = (uintptr_t)*load->out,
                              .bytes = bytes,
                              .gpu = gpu,
                              .kind = COT_CODE,
                              .context = context,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    cot_block_recheck(&block);
}

static abi_result load_nearly_full(const struct load *load, uint32_t gpu, void *context) {
    uint64_t least = UINT64_MAX, again, given;
    for (int round = 1; round <= ROUNDS; round++) {
        abi_result result = load_measured(load, &again);
        if (again < least) least = again;
        if (result != ABI_SUCCESS || least == 0) return result;
        if (!unload_measured(load, &given)) return ABI_SUCCESS;
        bool agreed = given == again;
        if (given < least) least = given;
        if ((!agreed && round < ROUNDS) || !cot_reserve(gpu, least)) continue;
        result = load_measured(load, &again);
        uint64_t charge = again < least ? again : least;
        cot_commit(gpu, least, result == ABI_SUCCESS ? charge : 0);
        if (result == ABI_SUCCESS && charge) add_block(load, gpu, context, charge);
        return result;
    }
    *load->out = NULL;
    cot_count_denied(gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

static abi_result load_module(struct load *load) {
    uint32_t gpu;
    void *context;
    abi_result result = cot_attach();
    if (result != ABI_SUCCESS) return result;
    if (cot_current_context(&gpu, &context) != ABI_SUCCESS) return call(load); /* the driver says what is wrong */
    if (gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    if (!load->out || !is_nearly_full(gpu)) return call(load);
    load->saved = load->count > USUAL_OPTIONS ? malloc(load->count * sizeof *load->saved) : load->usual;
    if (!load->saved) return ABI_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < load->count; i++) load->saved[i] = load->values[i];
    result = load_nearly_full(load, gpu, context);
    if (load->saved != load->usual) free(load->saved);
    return result;
}

#define LOAD(symbol, type)                                                                    \
    abi_result cot_##symbol(abi_module *out, type image) {                                    \
        struct load load = {.real = cot_real(COT_REAL_##symbol), .out = out, .image = image}; \
        return load_module(&load);                                                            \
    }
LOAD(cuModuleLoad, const char *)
LOAD(cuModuleLoadData, const void *)
LOAD(cuModuleLoadFatBinary, const void *)

abi_result cot_cuModuleLoadDataEx(abi_module *out, const void *image, unsigned count, int *options, void **values) {
    struct load load = {.real = cot_real(COT_REAL_cuModuleLoadDataEx),
                        .out = out,
                        .image = image,
                        .has_options = true,
                        .count = count,
                        .options = options,
                        .values = values};
    if (count && !values) return call(&load);
    return load_module(&load);
}

abi_result cot_cuModuleUnload(abi_module module) {
    struct cot_block block;
    bool known = cot_attached() && cot_blocks_take((uintptr_t)module, COT_CODE, &block);
    abi_result result = CALL_REAL(cuModuleUnload, (abi_module), module);
    if (known && result == ABI_SUCCESS) cot_release(block.gpu, block.bytes);
    else if (known) cot_block_restore(&block);
    return result;
}
