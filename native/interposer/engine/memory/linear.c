/* Linear memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and cuMemFree.
 *
 * The charge is what the GPU really gives: whole granules. A large request has granules of its own; small ones
 * share them, so what a small request costs depends on its address. It is announced as one granule and then charged
 * as none or one. */
#include "../accounting/exported.h"
#include "../accounting/granules.h"
#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "../core/driver_calls.h"
#include "blocks/blocks.h"
#include "pools/pools.h"

abi_result cot_cuMemFree_v2(abi_devptr pointer);

#define MANAGED_GRANULE 65536ull /* managed memory moves in pieces of 64 KiB */

static uint64_t round_up(uint64_t bytes, uint64_t granule) {
    return bytes > UINT64_MAX - granule ? UINT64_MAX / granule * granule
                                        : cot_granule_count(bytes + granule - 1, granule) * granule;
}

struct reservation {
    uint32_t gpu;
    void *context;
    struct cot_gpu_limits limits;
    uint64_t reserved;
    bool gap;     /* nothing is reserved: the request must fit into a shared granule */
    bool charged; /* before the driver's call */
};

/* The driver refused the request. */
static void cancel(const struct reservation *reservation) {
    if (reservation->gap) cot_rollback(reservation->gpu, cot_gap_end());
    else cot_rollback_exact(reservation->gpu, reservation->reserved, reservation->charged);
}

/* Reserves `bytes` in the calling thread's context, or returns the error to answer with. */
static inline __attribute__((always_inline)) abi_result begin(uint64_t bytes, uint64_t granule,
                                                              struct reservation *reservation) {
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current_context(&reservation->gpu, &reservation->context);
    if (result != ABI_SUCCESS) return result;
    if (reservation->gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    cot_read_limits(reservation->gpu, &reservation->limits);
    reservation->gap = reservation->charged = false;
    reservation->reserved = round_up(bytes, granule ? granule : reservation->limits.granule_bytes);
    bool packed = granule == 0 && cot_is_packed(bytes, reservation->limits.granule_bytes);
    if (packed ? cot_reserve(reservation->gpu, reservation->reserved)
               : cot_reserve_exact(reservation->gpu, reservation->reserved, &reservation->charged))
        return ABI_SUCCESS;
    /* The grant is full, but a small request may fit where other small ones lie. */
    if (packed && cot_gap_begin(reservation->gpu)) {
        reservation->reserved = 0;
        reservation->gap = true;
        if (cot_granules_have_gap(reservation->gpu, reservation->context, bytes, reservation->limits.granule_bytes))
            return ABI_SUCCESS;
        cancel(reservation);
    }
    cot_count_denied(reservation->gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

/* The driver allocated [pointer, pointer + bytes). Charges it; frees it again if it takes more granules than
 * announced and these do not fit. */
static inline __attribute__((always_inline)) abi_result finish_linear(struct reservation *reservation,
                                                                      abi_devptr pointer, uint64_t bytes) {
    uint64_t charge = cot_granules_add(reservation->gpu, pointer, bytes, reservation->limits.granule_bytes);
    if (charge > reservation->reserved) {
        uint64_t more = charge - reservation->reserved;
        uint64_t announced = reservation->charged ? 0 : reservation->reserved;
        bool paid =
            reservation->gap ? cot_gap_donated() >= charge : cot_reserve_more(reservation->gpu, more, announced);
        if (!paid) {
            uint64_t gone = cot_granules_remove(reservation->gpu, pointer, bytes, reservation->limits.granule_bytes);
            /* Other threads' allocations may share its granules by now, and have found them charged; or they did,
             * and left the last granule to this one. */
            if (gone < charge) cot_charge(reservation->gpu, charge - gone);
            CALL_REAL(cuMemFree_v2, (abi_devptr), pointer);
            if (gone > charge) cot_release(reservation->gpu, gone - charge);
            cancel(reservation);
            cot_count_denied(reservation->gpu);
            return ABI_ERROR_OUT_OF_MEMORY;
        }
        if (reservation->charged) cot_commit(reservation->gpu, more, more);
        reservation->reserved = charge;
    }
    struct cot_block block = {.key = pointer,
                              .bytes = bytes,
                              .gpu = reservation->gpu,
                              .kind = COT_LINEAR,
                              .context = reservation->context,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    if (reservation->gap) reservation->reserved = cot_gap_end();
    uint64_t spare = reservation->reserved - charge;
    if (__builtin_expect(reservation->charged, 0)) {
        if (spare && cot_gap_donate_held(reservation->gpu, spare)) spare = 0;
        cot_rollback_exact(reservation->gpu, spare, true);
    } else {
        if (charge) cot_commit(reservation->gpu, charge, charge);
        if (spare && !cot_gap_donate_announced(reservation->gpu, spare)) cot_rollback(reservation->gpu, spare);
    }
    cot_block_recheck(&block);
    return ABI_SUCCESS;
}

/* Reserves `announced` bytes, calls the driver, and charges the `bytes` that it took by its answer. */
#define RESERVE_LINEAR(symbol, types, announced, pointer, bytes, ...)                         \
    ({                                                                                        \
        struct reservation ticket_;                                                           \
        abi_result result_ = begin(announced, 0, &ticket_);                                   \
        if (result_ == ABI_SUCCESS) {                                                         \
            result_ = CALL_REAL(symbol, types, __VA_ARGS__);                                  \
            if (result_ == ABI_SUCCESS) result_ = finish_linear(&ticket_, *(pointer), bytes); \
            else cancel(&ticket_);                                                            \
        }                                                                                     \
        result_;                                                                              \
    })

abi_result cot_cuMemAlloc_v2(abi_devptr *pointer, size_t bytes) {
    if (!pointer || bytes == 0) return CALL_REAL(cuMemAlloc_v2, (abi_devptr *, size_t), pointer, bytes);
    return RESERVE_LINEAR(cuMemAlloc_v2, (abi_devptr *, size_t), bytes, pointer, bytes, pointer, bytes);
}

/* The old 32-bit form: it fails if the pointer does not fit into 32 bits. */
abi_result cot_cuMemAlloc(unsigned *pointer, unsigned bytes) {
    if (!pointer || bytes == 0) return CALL_REAL(cuMemAlloc, (unsigned *, unsigned), pointer, bytes);
    return RESERVE_LINEAR(cuMemAlloc, (unsigned *, unsigned), bytes, pointer, bytes, pointer, bytes);
}

/* ---- cuMemAllocPitch: the driver pads rows. How far is learned from an allocation of one byte, once per GPU and
 * process; the charge is what was really allocated ---- */

#define MIN_PADDING 512u

static _Atomic size_t row_paddings[COT_MAX_GPUS]; /* 0: unknown */

#define PITCH_TYPES (abi_devptr *, size_t *, size_t, size_t, unsigned)
#define OLD_PITCH_TYPES (unsigned *, unsigned *, unsigned, unsigned, unsigned)

/* An error is also the answer to the program's request, which is no smaller. */
static abi_result learn_row_padding(void) {
    abi_devptr row = 0;
    size_t pitch = 0;
    void *context;
    uint32_t gpu;
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current_context(&gpu, &context);
    if (result != ABI_SUCCESS || gpu == COT_NO_GPU || atomic_load(&row_paddings[gpu])) return result;
    result = RESERVE_LINEAR(cuMemAllocPitch_v2, PITCH_TYPES, MIN_PADDING, &row, pitch, &row, &pitch, 1, 1, 4);
    if (result != ABI_SUCCESS) return result;
    atomic_store(&row_paddings[gpu], pitch);
    return cot_cuMemFree_v2(row);
}

static uint64_t guess_pitched_bytes(uint64_t width, uint64_t height) {
    uint32_t gpu = COT_NO_GPU;
    void *context;
    uint64_t padding = 0;
    if (cot_current_context(&gpu, &context) == ABI_SUCCESS && gpu != COT_NO_GPU)
        padding = atomic_load(&row_paddings[gpu]);
    uint64_t row = round_up(width, padding > MIN_PADDING ? padding : MIN_PADDING);
    return height && row > UINT64_MAX / height ? UINT64_MAX : row * height;
}

abi_result cot_cuMemAllocPitch_v2(abi_devptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    if (!pointer || !pitch || !width || !height)
        return CALL_REAL(cuMemAllocPitch_v2, PITCH_TYPES, pointer, pitch, width, height, element);
    abi_result result = learn_row_padding();
    if (result != ABI_SUCCESS) return result;
    return RESERVE_LINEAR(cuMemAllocPitch_v2, PITCH_TYPES, guess_pitched_bytes(width, height), pointer, *pitch * height,
                          pointer, pitch, width, height, element);
}

abi_result cot_cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    if (!pointer || !pitch || !width || !height)
        return CALL_REAL(cuMemAllocPitch, OLD_PITCH_TYPES, pointer, pitch, width, height, element);
    abi_result result = learn_row_padding();
    if (result != ABI_SUCCESS) return result;
    return RESERVE_LINEAR(cuMemAllocPitch, OLD_PITCH_TYPES, guess_pitched_bytes(width, height), pointer,
                          (uint64_t)*pitch * height, pointer, pitch, width, height, element);
}

abi_result cot_cuMemAllocManaged(abi_devptr *pointer, size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0)
        return CALL_REAL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), pointer, bytes, flags);
    struct reservation reservation;
    abi_result result = begin(bytes, MANAGED_GRANULE, &reservation);
    if (result != ABI_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), pointer, bytes, flags);
    if (result != ABI_SUCCESS) {
        cancel(&reservation);
        return result;
    }
    struct cot_block block = {.key = *pointer,
                              .bytes = reservation.reserved,
                              .gpu = reservation.gpu,
                              .kind = COT_MANAGED,
                              .context = reservation.context,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    __atomic_fetch_add(&cot_own_row(reservation.gpu)->managed, reservation.reserved, __ATOMIC_RELAXED);
    cot_commit_exact(reservation.gpu, reservation.reserved, reservation.charged);
    cot_block_recheck(&block);
    return ABI_SUCCESS;
}

static inline __attribute__((always_inline)) abi_result finish_free(abi_result result, const struct cot_block *block) {
    if (result != ABI_SUCCESS) {
        cot_block_restore(block);
        return result;
    }
    uint64_t bytes = block->bytes;
    if (block->kind == COT_MANAGED) {
        __atomic_fetch_sub(&cot_own_row(block->gpu)->managed, bytes, __ATOMIC_RELAXED);
    } else {
        bytes = cot_granules_remove(block->gpu, block->key, block->bytes, cot_granule(block->gpu));
    }
    if (__builtin_expect(block->references > 1, 0)) cot_exported_release(block->gpu, bytes, -1, 0);
    else if (bytes && !cot_gap_donate_held(block->gpu, bytes)) cot_release(block->gpu, bytes);
    return result;
}

/* A pointer without a block may be from a pool: this free waits for no stream, and the pool may give the memory
 * back at once. */
#define FREE(symbol, type)                                              \
    abi_result cot_##symbol(type pointer) {                             \
        struct cot_block block;                                         \
        if (!cot_attached()) return CALL_REAL(symbol, (type), pointer); \
        bool known = cot_blocks_take_linear(pointer, &block);           \
        abi_result result = CALL_REAL(symbol, (type), pointer);         \
        if (known) return finish_free(result, &block);                  \
        if (result == ABI_SUCCESS && pointer) cot_pools_read_back();    \
        return result;                                                  \
    }
FREE(cuMemFree_v2, abi_devptr)
FREE(cuMemFree, unsigned)

/* The block has one reference more from the first export on. Small blocks share granules, which outlast them mostly.
 * The driver also takes an address inside a block, for all of it. */
abi_result cot_cuIpcGetMemHandle(void *handle, abi_devptr pointer) {
    abi_result result = CALL_REAL(cuIpcGetMemHandle, (void *, abi_devptr), handle, pointer);
    struct cot_block block;
    uint32_t left;
    if (result != ABI_SUCCESS || !cot_attached()) return result;
    CALL_DRIVER("cuMemGetAddressRange_v2", (abi_devptr *, size_t *, abi_devptr), &pointer, NULL, pointer);
    if (!cot_blocks_change_references(pointer, COT_LINEAR, 0, &block, &left)) return result;
    uint64_t granule = cot_granule(block.gpu);
    if (left > 1 || cot_is_packed(block.bytes, granule)) return result;
    if (cot_blocks_change_references(pointer, COT_LINEAR, 1, &block, &left))
        cot_exported_add(block.gpu, round_up(block.bytes, granule));
    return result;
}
