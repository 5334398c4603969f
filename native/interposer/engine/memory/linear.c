/* Memory by bytes: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged and their cuMemFree.
 *
 * The charge is what the GPU really gives up: whole granules. A large request has granules of its own; small ones
 * share them, so what a small one costs is known only from where it lies. It is therefore announced as one granule and
 * charged as none or one. */
#include "../accounting/granules.h"
#include "../accounting/quota.h"
#include "../contexts/current.h"
#include "../core/driver_calls.h"
#include "blocks.h"
#include "pools.h"

abi_result cot_cuMemFree_v2(abi_devptr pointer);

#define MANAGED_GRANULE 65536ull /* managed memory moves in pieces of 64 KiB */

static uint64_t round_up(uint64_t bytes, uint64_t granule) {
    return bytes > UINT64_MAX - granule ? UINT64_MAX / granule * granule
                                        : cot_granules(bytes + granule - 1, granule) * granule;
}

struct ticket {
    uint32_t gpu;
    void *context;
    struct cot_limits limits;
    uint64_t reserved;
    bool gap;     /* nothing is reserved: the request may only go where memory is held already */
    bool charged; /* before the call */
};

/* The driver gave nothing. */
static void give_up(const struct ticket *ticket) {
    if (ticket->gap) cot_rollback(ticket->gpu, cot_gap_end());
    else cot_rollback_certain(ticket->gpu, ticket->reserved, ticket->charged);
}

/* Room for `bytes` in the calling thread's context, or the error to answer. */
static inline __attribute__((always_inline)) abi_result begin(uint64_t bytes, uint64_t granule, struct ticket *ticket) {
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current(&ticket->gpu, &ticket->context);
    if (result != ABI_SUCCESS) return result;
    if (ticket->gpu == COT_NO_GPU) return ABI_ERROR_OUT_OF_MEMORY;
    cot_limits(ticket->gpu, &ticket->limits);
    ticket->gap = ticket->charged = false;
    ticket->reserved = round_up(bytes, granule ? granule : ticket->limits.granule_bytes);
    bool packed = granule == 0 && cot_is_packed(bytes, ticket->limits.granule_bytes);
    if (packed ? cot_reserve(ticket->gpu, ticket->reserved)
               : cot_reserve_certain(ticket->gpu, ticket->reserved, &ticket->charged))
        return ABI_SUCCESS;
    /* The grant is full, yet a small request may fit where small ones lie already. */
    if (packed && cot_gap_begin(ticket->gpu)) {
        ticket->reserved = 0;
        ticket->gap = true;
        if (cot_pages_have_gap(ticket->gpu, ticket->context, bytes, ticket->limits.granule_bytes)) return ABI_SUCCESS;
        give_up(ticket);
    }
    cot_deny(ticket->gpu);
    return ABI_ERROR_OUT_OF_MEMORY;
}

/* The driver gave [pointer, pointer + bytes). Charges it, or takes it back when it turns out larger than announced and
 * the rest does not fit. */
static inline __attribute__((always_inline)) abi_result finish_linear(struct ticket *ticket, abi_devptr pointer,
                                                                      uint64_t bytes) {
    uint64_t charge = cot_pages_add(ticket->gpu, pointer, bytes, ticket->limits.granule_bytes);
    if (charge > ticket->reserved) {
        uint64_t more = charge - ticket->reserved;
        uint64_t announced = ticket->charged ? 0 : ticket->reserved;
        bool paid = ticket->gap ? cot_gap_pot() >= charge : cot_reserve_more(ticket->gpu, more, announced);
        if (!paid) {
            uint64_t gone = cot_pages_remove(ticket->gpu, pointer, bytes, ticket->limits.granule_bytes);
            /* Other threads' requests may lie there by now, and have found it paid; or lay there and have left the last
             * page to this one. */
            if (gone < charge) cot_charge(ticket->gpu, charge - gone);
            CALL_REAL(cuMemFree_v2, (abi_devptr), pointer);
            if (gone > charge) cot_release(ticket->gpu, gone - charge);
            give_up(ticket);
            cot_deny(ticket->gpu);
            return ABI_ERROR_OUT_OF_MEMORY;
        }
        if (ticket->charged) cot_commit(ticket->gpu, more, more);
        ticket->reserved = charge;
    }
    struct cot_block block = {.key = pointer,
                              .bytes = bytes,
                              .gpu = ticket->gpu,
                              .kind = COT_LINEAR,
                              .context = ticket->context,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    if (ticket->gap) ticket->reserved = cot_gap_end();
    uint64_t spare = ticket->reserved - charge;
    if (__builtin_expect(ticket->charged, 0)) {
        if (spare && cot_gap_give_held(ticket->gpu, spare)) spare = 0;
        cot_rollback_certain(ticket->gpu, spare, true);
    } else {
        if (charge) cot_commit(ticket->gpu, charge, charge);
        if (spare && !cot_gap_give_announced(ticket->gpu, spare)) cot_rollback(ticket->gpu, spare);
    }
    cot_context_recheck(&block);
    return ABI_SUCCESS;
}

/* Calls the driver between announcement and charge. */
#define RESERVE_LINEAR(symbol, types, bytes, pointer, ...)                                    \
    ({                                                                                        \
        struct ticket ticket_;                                                                \
        abi_result result_ = begin(bytes, 0, &ticket_);                                       \
        if (result_ == ABI_SUCCESS) {                                                         \
            result_ = CALL_REAL(symbol, types, __VA_ARGS__);                                  \
            if (result_ == ABI_SUCCESS) result_ = finish_linear(&ticket_, *(pointer), bytes); \
            else give_up(&ticket_);                                                           \
        }                                                                                     \
        result_;                                                                              \
    })

abi_result cot_cuMemAlloc_v2(abi_devptr *pointer, size_t bytes) {
    if (!pointer || bytes == 0) return CALL_REAL(cuMemAlloc_v2, (abi_devptr *, size_t), pointer, bytes);
    return RESERVE_LINEAR(cuMemAlloc_v2, (abi_devptr *, size_t), bytes, pointer, pointer, bytes);
}

/* The 32-bit form of old; its pointers fit into 32 bits or it fails. */
abi_result cot_cuMemAlloc(unsigned *pointer, unsigned bytes) {
    if (!pointer || bytes == 0) return CALL_REAL(cuMemAlloc, (unsigned *, unsigned), pointer, bytes);
    return RESERVE_LINEAR(cuMemAlloc, (unsigned *, unsigned), bytes, pointer, pointer, bytes);
}

/* ---- rows, which the driver pads ----
 *
 * How far it pads them a row of one byte tells, the first time that a process asks on a GPU; the charge is what came.
 */

#define LEAST_PADDING 512u

static _Atomic size_t paddings[COT_MAX_GPUS]; /* 0: not known */

typedef abi_result (*pitch_call)(abi_devptr *, size_t *, size_t, size_t, unsigned);
typedef abi_result (*old_pitch_call)(unsigned *, unsigned *, unsigned, unsigned, unsigned);

/* Its error is the program's, whose request is no smaller. */
static abi_result learn_padding(void) {
    pitch_call real = (pitch_call)cot_real(COT_REAL_cuMemAllocPitch_v2);
    struct ticket ticket;
    abi_devptr row = 0;
    size_t pitch = 0;
    void *context;
    uint32_t gpu;
    abi_result result = cot_attach();
    if (result == ABI_SUCCESS) result = cot_current(&gpu, &context);
    if (result != ABI_SUCCESS || !real || gpu == COT_NO_GPU || atomic_load(&paddings[gpu])) return result;
    result = begin(LEAST_PADDING, 0, &ticket);
    if (result != ABI_SUCCESS) return result;
    result = real(&row, &pitch, 1, 1, 4);
    if (result != ABI_SUCCESS) {
        give_up(&ticket);
        return result;
    }
    result = finish_linear(&ticket, row, pitch);
    if (result != ABI_SUCCESS) return result;
    atomic_store(&paddings[gpu], pitch);
    return cot_cuMemFree_v2(row);
}

static uint64_t pitch_guess(uint64_t width, uint64_t height) {
    uint32_t gpu = COT_NO_GPU;
    void *context;
    uint64_t padding = 0;
    if (cot_current(&gpu, &context) == ABI_SUCCESS && gpu != COT_NO_GPU) padding = atomic_load(&paddings[gpu]);
    uint64_t row = round_up(width, padding > LEAST_PADDING ? padding : LEAST_PADDING);
    return height && row > UINT64_MAX / height ? UINT64_MAX : row * height;
}

static abi_result begin_rows(uint64_t width, uint64_t height, struct ticket *ticket) {
    abi_result result = learn_padding();
    return result == ABI_SUCCESS ? begin(pitch_guess(width, height), 0, ticket) : result;
}

abi_result cot_cuMemAllocPitch_v2(abi_devptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    pitch_call real = (pitch_call)cot_real(COT_REAL_cuMemAllocPitch_v2);
    if (!real) return (abi_result)cot_missing();
    if (!pointer || !pitch || !width || !height) return real(pointer, pitch, width, height, element);
    struct ticket ticket;
    abi_result result = begin_rows(width, height, &ticket);
    if (result != ABI_SUCCESS) return result;
    result = real(pointer, pitch, width, height, element);
    if (result != ABI_SUCCESS) {
        give_up(&ticket);
        return result;
    }
    return finish_linear(&ticket, *pointer, *pitch * height);
}

abi_result cot_cuMemAllocPitch(unsigned *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    old_pitch_call real = (old_pitch_call)cot_real(COT_REAL_cuMemAllocPitch);
    if (!real) return (abi_result)cot_missing();
    if (!pointer || !pitch || !width || !height) return real(pointer, pitch, width, height, element);
    struct ticket ticket;
    abi_result result = begin_rows(width, height, &ticket);
    if (result != ABI_SUCCESS) return result;
    result = real(pointer, pitch, width, height, element);
    if (result != ABI_SUCCESS) {
        give_up(&ticket);
        return result;
    }
    return finish_linear(&ticket, *pointer, (uint64_t)*pitch * height);
}

abi_result cot_cuMemAllocManaged(abi_devptr *pointer, size_t bytes, unsigned flags) {
    if (!pointer || bytes == 0)
        return CALL_REAL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), pointer, bytes, flags);
    struct ticket ticket;
    abi_result result = begin(bytes, MANAGED_GRANULE, &ticket);
    if (result != ABI_SUCCESS) return result;
    result = CALL_REAL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), pointer, bytes, flags);
    if (result != ABI_SUCCESS) {
        give_up(&ticket);
        return result;
    }
    struct cot_block block = {.key = *pointer,
                              .bytes = ticket.reserved,
                              .gpu = ticket.gpu,
                              .kind = COT_MANAGED,
                              .context = ticket.context,
                              .references = 1,
                              .epoch = cot_thread()->epoch};
    cot_blocks_add(&block);
    __atomic_fetch_add(&cot_own(ticket.gpu)->managed, ticket.reserved, __ATOMIC_RELAXED);
    cot_commit_certain(ticket.gpu, ticket.reserved, ticket.charged);
    cot_context_recheck(&block);
    return ABI_SUCCESS;
}

/* Taken out of the table before the driver's free, for afterwards the address may be somebody else's; put back if the
 * driver refuses. */
static bool forget(abi_devptr pointer, struct cot_block *block) {
    if (__builtin_expect(atomic_load_explicit(&cot->context_turn, memory_order_acquire) != 0, 0))
        return cot_blocks_take_latest(pointer, COT_LINEAR, block);
    return cot_blocks_take(pointer, COT_LINEAR, block) || cot_blocks_take(pointer, COT_MANAGED, block);
}

static inline __attribute__((always_inline)) abi_result after_free(abi_result result, const struct cot_block *block) {
    if (result != ABI_SUCCESS) {
        struct cot_block again = *block;
        again.references = 1;
        cot_context_put_back(&again);
        return result;
    }
    uint64_t bytes = block->bytes;
    if (block->kind == COT_MANAGED) {
        __atomic_fetch_sub(&cot_own(block->gpu)->managed, bytes, __ATOMIC_RELAXED);
    } else {
        bytes = cot_pages_remove(block->gpu, block->key, block->bytes, cot_granule(block->gpu));
    }
    if (bytes && !cot_gap_give_held(block->gpu, bytes)) cot_release(block->gpu, bytes);
    return result;
}

/* What is in no table may be a piece of a pool: that does not wait for any stream, and its memory may go at once. */
#define FREE(symbol, type)                                              \
    abi_result cot_##symbol(type pointer) {                             \
        struct cot_block block;                                         \
        if (!cot_attached()) return CALL_REAL(symbol, (type), pointer); \
        bool known = forget(pointer, &block);                           \
        abi_result result = CALL_REAL(symbol, (type), pointer);         \
        if (known) return after_free(result, &block);                   \
        if (result == ABI_SUCCESS && pointer) cot_pools_read_back();    \
        return result;                                                  \
    }
FREE(cuMemFree_v2, abi_devptr)
FREE(cuMemFree, unsigned)
