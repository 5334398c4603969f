/* Inside of an engine: one process's view of its container's grant, and the charge on it.
 *
 * The grant is the limits page (trusted, read-only), the charge is this process's slot of the ledger plus everybody
 * else's. Nothing is charged or refused in a process that has no page: such a process never gets past cuInit. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../abi/cuda.h"
#include "../../abi/cuda_arrays.h"
#include "../../shared-memory/ledger.h"
#include "../../shared-memory/limits_page.h"
#include "../engine_abi.h"
#include "../generated/cuda_verbs.h"
#include "../libc.h"
#include "../process_start.h"
#include "../process_state.h"

/* Nothing here is another object's, so nothing is reached by way of a table of addresses. */
#pragma GCC visibility push(hidden)

#define COT_NO_GPU UINT32_MAX

/* Entry points that the engine serves, and so calls. */
enum {
#define COT_NUMBER(index, symbol) COT_REAL_##symbol,
    COT_CUDA_SERVED(COT_NUMBER)
#undef COT_NUMBER
        COT_REAL_COUNT
};

/* Calls the real entry point or answers what a machine without a driver answers. */
#define CALL_REAL(symbol, types, ...)                                                \
    ({                                                                               \
        abi_result(*real_) types = (abi_result(*) types)cot_real(COT_REAL_##symbol); \
        real_ ? real_(__VA_ARGS__) : (abi_result)cot_missing();                      \
    })
/* The address of an entry point that has no wrapper, looked for once; NULL. */
#define DRIVER(name)                                                                                    \
    ({                                                                                                  \
        static _Atomic(void *) address_;                                                                \
        void *known_ = atomic_load_explicit(&address_, memory_order_relaxed);                           \
        if (!known_) atomic_store_explicit(&address_, known_ = cot_driver(name), memory_order_relaxed); \
        known_;                                                                                         \
    })
#define CALL_DRIVER(name, types, ...)                                 \
    ({                                                                \
        abi_result(*call_) types = (abi_result(*) types)DRIVER(name); \
        call_ ? call_(__VA_ARGS__) : (abi_result)ABI_ERROR_NOT_FOUND; \
    })

/* ---- engine.c: where the process keeps what must outlive an engine, and what the entry does for it ---- */

extern struct cot_state *cot;
extern const struct cot_services *cot_services;
extern ptrdiff_t cot_thread_offset;
extern _Atomic(void *) cot_real_known[];
bool cot_start(const struct cot_services *services);
void *cot_look_for_real(uint32_t index);
void *cot_driver(const char *name);
int cot_missing(void);

/* The driver's entry point of a COT_REAL_ number, or NULL. */
static inline void *cot_real(uint32_t index) {
    void *known = atomic_load_explicit(&cot_real_known[index], memory_order_acquire);
    return __builtin_expect(known != NULL, 1) ? known : cot_look_for_real(index);
}
static inline struct cot_thread *cot_thread(void) {
    return (struct cot_thread *)((char *)__builtin_thread_pointer() + cot_thread_offset);
}

/* ---- attach.c: the page, the ledger, this process's slot ---- */

/* True in a process that is attached and not a forked child of it. Calls that take nothing only ask this. */
static inline bool cot_attached(void) {
    return __builtin_expect(atomic_load_explicit(&cot->at.attached, memory_order_acquire) && *cot->at.alive, 1);
}
/* ABI_SUCCESS once page and ledger are mapped and a slot is held. Every call that takes memory begins with it and
 * answers its error, so that a process without a readable grant, or one that came past cuInit, takes none. */
abi_result cot_attach_slow(void);
static inline abi_result cot_attach(void) {
    return cot_attached() ? ABI_SUCCESS : cot_attach_slow();
}
static inline uint32_t cot_gpu_count(void) {
    return cot->at.gpu_count;
}
static inline uint32_t cot_slot_count(void) {
    return cot->at.slot_count;
}
static inline uint32_t cot_own_slot(void) {
    return cot->at.slot;
}
static inline struct cot_slot *cot_slot_at(uint32_t slot) {
    uint64_t first = cot_ledger_slots_offset(cot->at.gpu_count);
    return (struct cot_slot *)(cot->at.ledger + first + slot * cot->at.slot_bytes);
}
static inline struct cot_slot_gpu *cot_row(uint32_t slot, uint32_t gpu) { /* GPU's row in a slot */
    return (struct cot_slot_gpu *)(cot_slot_at(slot) + 1) + gpu;
}
static inline struct cot_slot_gpu *cot_own(uint32_t gpu) {
    return cot_row(cot->at.slot, gpu);
}
static inline uint32_t cot_slots_used(void) {
    uint32_t used = __atomic_load_n(&((const struct cot_ledger_header *)cot->at.ledger)->slots_used, __ATOMIC_SEQ_CST);
    return used < cot->at.slot_count ? used : cot->at.slot_count;
}
static inline const struct cot_limits_page *cot_page_now(void) {
    return cot->at.page;
}
struct cot_ledger_total *cot_total(uint32_t gpu);
/* Open for locks, whatever the program did to its descriptors; -1. */
int cot_ledger_fd(void);
void cot_note_engine(void); /* the numbers of the engine that works and of one that could not, into the slot */
bool cot_is_ledger(int fd);

/* The GPU entry as last read whole. */
struct cot_limits {
    uint64_t memory_bytes, context_bytes, granule_bytes;
    bool isolate, releases_late;
};
void cot_read_gpu(uint32_t gpu, uint64_t generation);
static inline void cot_limits(uint32_t gpu, struct cot_limits *limits) {
    const struct cot_seen_gpu *seen = &cot->seen[gpu];
    const struct cot_limits_page_header *header = &cot->at.page->header;
    uint64_t generation = __atomic_load_n(&header->generation, __ATOMIC_ACQUIRE);
    if (__builtin_expect(atomic_load_explicit(&seen->generation, memory_order_acquire) != generation + 1, 0))
        cot_read_gpu(gpu, generation);
    limits->memory_bytes = atomic_load_explicit(&seen->memory_bytes, memory_order_relaxed);
    limits->context_bytes = atomic_load_explicit(&seen->context_bytes, memory_order_relaxed);
    limits->granule_bytes = atomic_load_explicit(&seen->granule_bytes, memory_order_relaxed);
    limits->releases_late = atomic_load_explicit(&seen->flags, memory_order_relaxed) & COT_GPU_RELEASES_LATE;
    limits->isolate = __atomic_load_n(&header->flags, __ATOMIC_RELAXED) & COT_LIMITS_PAGE_ISOLATE_MEMORY;
}
/* What this GPU's pages are counted in, in a process that has counted some. */
static inline uint64_t cot_granule(uint32_t gpu) {
    return atomic_load_explicit(&cot->seen[gpu].granule_bytes, memory_order_relaxed);
}
/* GPU of the grant behind a device ordinal, or COT_NO_GPU. */
uint32_t cot_gpu_of(abi_device device);
bool cot_is_host_location(const abi_location *location);
/* Which GPU memory at a location that is not the host takes; an error where the container may not have it there. */
abi_result cot_find_gpu_of_location(const abi_location *location, uint32_t *gpu);

/* ---- quota.c: announce, check, commit or roll back ---- */

/* True: `bytes` are announced in this process's slot and fit; the caller then calls the driver and commits or rolls
 * back. */
bool cot_reserve(uint32_t gpu, uint64_t bytes);
/* The same for a caller that has `announced` some already: it does not wait for that to be decided. */
bool cot_reserve_more(uint32_t gpu, uint64_t bytes, uint64_t announced);
void cot_commit(uint32_t gpu, uint64_t reserved, uint64_t charged);
void cot_rollback(uint32_t gpu, uint64_t reserved);
/* The same for what will be held just as it is announced, if the driver gives it. True: it may be `charged` already. */
bool cot_reserve_certain(uint32_t gpu, uint64_t bytes, bool *charged);
void cot_commit_certain(uint32_t gpu, uint64_t bytes, bool charged);
void cot_rollback_certain(uint32_t gpu, uint64_t bytes, bool charged);
void cot_charge(uint32_t gpu, uint64_t bytes);   /* without a check: it is held already */
void cot_release(uint32_t gpu, uint64_t bytes);  /* the driver has taken it back */
void cot_announce(uint32_t gpu, uint64_t bytes); /* without a check: it is held, and to be released */
void cot_deny(uint32_t gpu);
void cot_touch(uint32_t gpu); /* something may have been taken although no count changed; not for mere looks */
/* What the container holds on a GPU, everything announced included. */
uint64_t cot_held(uint32_t gpu);

/* ---- observers.c: COT_OBSERVER_* of this process ---- */
uint64_t cot_observers(void);

/* ---- liveness.c ---- */
uint64_t cot_pid_namespace(void); /* of this process; 0: it is not told */
bool cot_reap(void);              /* frees slots of the dead; true if any was */
void cot_reap_anew(void);         /* in a process that may have been forked amid a look for the dead */
bool cot_lock_slot(int fd, uint32_t slot);
void cot_unlock_slot(int fd, uint32_t slot);

/* ---- blocks.c: what this process allocated ---- */
bool cot_blocks_add(const struct cot_block *block);
bool cot_blocks_take(uint64_t key, uint32_t kind, struct cot_block *block); /* removes it */
/* Removes what has the address: memory by bytes (COT_LINEAR), an array (COT_ARRAY), or what was imported
 * (COT_EXTERNAL). Of what was there before, and is about to leave the table with its context, some may be there yet. */
bool cot_blocks_take_latest(uint64_t key, uint32_t kind, struct cot_block *block);
/* Adds `change` to a block's references; *left gets what remains. False: no such block. At 0 it is removed. */
bool cot_blocks_refer(uint64_t key, uint32_t kind, int change, struct cot_block *block, uint32_t *left);
/* Removes every block of a context, charge by charge. */
void cot_blocks_drop_context(void *context);
/* Makes every block of a context another's. */
void cot_blocks_pass_context(const void *context, void *heir);
/* Removes one with its charge; false: it is not there. */
bool cot_blocks_drop(const struct cot_block *block);
/* Of several blocks that say that they have one address, one has it. Removes `block`, or the others; false: there are
 * no others. */
bool cot_blocks_drop_twin(const struct cot_block *block, bool others);
/* Whole granules in `bytes`. A granule is a power of two on every known GPU, and a shift costs a tenth of a division.
 */
static inline uint64_t cot_granules(uint64_t bytes, uint64_t granule) {
    return granule & (granule - 1) ? bytes / granule : bytes >> __builtin_ctzll(granule);
}
/* Does the driver pack a request of this size with others? From 1 MiB on it gets pages of its own. */
static inline bool cot_is_packed(uint64_t bytes, uint64_t granule) {
    return bytes < 1u << 20 && bytes < granule;
}
/* Bytes by which this process's pages of a GPU grow with [at, at+bytes), or shrink without it: memory is held by the
 * granule, and small allocations share one. */
uint64_t cot_pages_add_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule);
uint64_t cot_pages_remove_ragged(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule);
static inline bool cot_pages_are_whole(uint64_t at, uint64_t bytes, uint64_t granule) { /* as large ones lie */
    return __builtin_expect(((at | bytes | granule) & (granule - 1)) == 0 && at + bytes >= at, 1);
}
static inline uint64_t cot_pages_add(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return cot_pages_are_whole(at, bytes, granule) ? bytes : cot_pages_add_ragged(gpu, at, bytes, granule);
}
static inline uint64_t cot_pages_remove(uint32_t gpu, uint64_t at, uint64_t bytes, uint64_t granule) {
    return cot_pages_are_whole(at, bytes, granule) ? bytes : cot_pages_remove_ragged(gpu, at, bytes, granule);
}
/* Is there room for `bytes` in one row, in a page that small allocations of the context hold anyway? Slow: walks all of
 * them. */
bool cot_pages_have_gap(uint32_t gpu, const void *context, uint64_t bytes, uint64_t granule);

/* ---- gaps.c: the one request that goes into a gap ---- */
bool cot_gap_begin(uint32_t gpu); /* false: others are at it for too long */
bool cot_gap_is_wanted(uint32_t gpu);
/* Of memory announced, or held, that is no longer needed for what it was: false, if no such request needs it. */
bool cot_gap_give_announced(uint32_t gpu, uint64_t bytes);
bool cot_gap_give_held(uint32_t gpu, uint64_t bytes);
uint64_t cot_gap_pot(void);
uint64_t cot_gap_end(void); /* what is in the pot is the caller's, announced */

/* ---- claims.c: requests with granules of their own ---- */
struct cot_claim {
    uint32_t gpu;
    void *context;
    uint64_t bytes; /* whole granules; 0 costs nothing and is only remembered */
    uint64_t root;  /* of the block to be */
    bool charged;   /* before the call */
};
/* Room for `bytes` in the calling thread's context, or the error to answer. */
abi_result cot_claim(uint64_t bytes, struct cot_claim *claim);
/* What the driver answered: a block of this key and kind, or nothing. */
void cot_claim_end(const struct cot_claim *claim, abi_result result, const void *key, uint32_t kind);
/* The driver was asked to take back a block that is out of the table already: un-charges it, or puts it back. */
void cot_claim_released(abi_result result, const struct cot_block *block);

/* ---- handles.c: memory by handle, each under a number of its own ---- */
uint64_t cot_memory_hold(abi_vmm_handle handle); /* what a handle stands for, held; 0: none that is known here */
bool cot_memory_keep(uint64_t memory);           /* holds it once more; false: it is gone */
void cot_memory_drop(uint64_t memory);           /* after the driver has let go */
/* What this process has exported by `file`, or by one that came of it elsewhere, held; 0: none. */
uint64_t cot_memory_of_file(int file);

/* ---- tiles.c ---- */
void cot_tiles_leave(void *array);           /* before the driver destroys an array */
void cot_tiles_left(void *array, bool gone); /* after it */
void cot_tiles_drop_context(void *context);
void cot_tiles_pass_context(const void *context, void *heir);

/* ---- contexts.c ---- */
/* GPU of the calling thread's current context, whose own cost is charged by then. An error, or COT_NO_GPU for a GPU
 * without a grant. */
abi_result cot_current(uint32_t *gpu, void **context);
/* Takes away what we have pushed; tried again where it fails, for the program is to find the context that it left. */
void cot_context_pop(void);
/* After a block was charged to a context that was current: it may have ended before, which has to be noticed. */
void cot_context_recheck(const struct cot_block *block);
/* Puts back what the driver did not free; the view that it was allocated in may have ended meanwhile. */
void cot_context_put_back(const struct cot_block *block);

/* ---- checkpoint.c ---- */
bool cot_is_away(void); /* this process's memory is out of its GPUs: every other call of the driver would wait */

/* ---- pools.c ---- */
void cot_pools_trim(uint32_t gpu); /* lets known pools give back what they do not use, and un-charges it */
void cot_pools_read_back(void);    /* un-charges what they gave to the GPU by themselves, at a synchronization */
void cot_pools_end(uint32_t gpu);  /* the GPU has no context left: what outlived its pool has not outlived that */
bool cot_is_capturing(abi_stream stream); /* what is given to it is recorded, not run */

/* ---- compute_page.c ---- */
bool cot_gates_join(void); /* while attaching, once there is a slot; false: there is a page, and it cannot be read */
void cot_gates_leave(void);

/* ---- gates.c: launches by the compute page ---- */
/* Around what ends contexts or streams: nobody else touches them meanwhile. May be nested, under any lock. The process
 * may become attached in between: what was paused (NULL: nothing) is what is resumed. */
struct cot_gates *cot_gates_pause(void);
void cot_gates_resume(struct cot_gates *gates);
void cot_gates_forget(void *context); /* it has ended */

/* ---- graphs.c ---- */
void cot_graphs_trim(uint32_t gpu);      /* lets go what graphs have reserved and do not use, and un-charges it */
void cot_graphs_read_back(uint32_t gpu); /* after what may have ended them */

#pragma GCC visibility pop
