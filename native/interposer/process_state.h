/* The state of a process that outlives engines: all accounting, its locks included. It lies in libcotenant.so, zeroed
 * at first; an engine that replaces another one goes on with it.
 *
 * Two engines may use it at the same time, and an older one may follow a newer one. So the layout has a number: a
 * change of a place or meaning raises COT_STATE_LAYOUT, and an engine lists the layouts it works with. A field may be
 * appended under the same number only if the state stays right while an engine that does not know the field works. */
#pragma once

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../abi/cuda.h"
#include "../shared-memory/limits_page.h"

#ifndef COT_STATE_LAYOUT /* tests build another one */
#define COT_STATE_LAYOUT 6u
#endif
#define COT_STATE_BYTES (1u << 20) /* reserved for it, so that later engines may append */

/* ---- limits page, usage ledger and the slot of this process (accounting/attach.c) ---- */

struct cot_attachment {
    _Atomic uint32_t attached;
    _Atomic uint32_t failed;  /* the grant could not be read: this process does not try again */
    volatile uint32_t *alive; /* 1 in the attached process; 0 before, and in its forked children */
    const struct cot_limits_page *page;
    char *ledger;
    int ledger_fd;
    uint32_t gpu_count, slot_count, slot;
    uint64_t slot_bytes;
    uint32_t gpu_of[COT_MAX_GPUS]; /* device ordinal -> GPU of the grant, or COT_NO_GPU */
    int device_count;
    pthread_mutex_t joining;
};

/* A GPU entry of the limits page as last read consistently. A reader during an update may see old and new fields mixed:
 * each of them was true. */
struct cot_cached_limits {
    _Atomic uint64_t generation; /* of the limits page, plus one; 0: never read */
    _Atomic uint64_t memory_bytes, context_bytes, granule_bytes;
    _Atomic uint32_t flags;
};

/* ---- what this process has allocated (memory/blocks/blocks.c, accounting/granules.c) ---- */

struct cot_lock {
    _Atomic uint32_t word;
};
struct cot_shard {
    struct cot_lock lock;
    uint32_t capacity, filled; /* filled counts tombstones */
    char *entries;
};
#define COT_SHARDS 64u

enum cot_kind {
    COT_LINEAR = 1,
    COT_MANAGED,
    COT_VMM,
    COT_ARRAY,
    COT_SPARSE,
    COT_DEFERRED,
    COT_EXTERNAL,
    COT_MAPPING,
    COT_CODE,
    COT_FABRIC
};
struct cot_block {
    uint64_t key; /* pointer or handle */
    uint64_t bytes;
    uint32_t gpu;
    uint32_t kind;
    void *context;
    uint64_t root;       /* physical memory that this block keeps alive; 0 */
    uint32_t references; /* of physical memory (COT_VMM): handles, mappings and imports */
    uint32_t epoch;      /* of the context table when the context was found current; 0: unknown (an older engine) */
};
struct cot_shared_granule {
    uint64_t key; /* granule number + 2: 0 and 1 mean free */
    uint16_t gpu;
    bool small;     /* it may hold requests of a size that the driver packs together */
    uint32_t users; /* allocations that lie partly in it */
};

/* The one request of this process that must fit into a shared granule, as the grant is full (granule_gaps.c). */
struct cot_gap {
    struct cot_lock lock;
    _Atomic uint32_t gpu; /* of the request, plus one; 0: there is none */
    uint64_t donated;     /* announced bytes that other requests did not need */
};

/* Launches of graphs whose memory is reserved: while one is in flight, memory that a trim gave back may be taken again.
 */
struct cot_graph_launches {
    _Atomic uint32_t in_flight, read_back_skipped; /* skipped: a lower charge was not applied during a launch */
    _Atomic uint64_t ended[COT_MAX_GPUS];          /* most bytes that ended graphs left reserved */
};

/* ---- contexts/ ---- */

/* A limit of a context (heap, stack or printf buffer): what it costs beyond its value when contexts were measured. */
#define COT_CONTEXT_LIMITS 3
struct cot_context_limit {
    uint64_t base, charged;
    uint32_t version; /* grows with each change; 0: never read */
    uint32_t setters; /* calls in progress that set it: charged is the most that any of them asks for */
};
#define COT_MAX_CONTEXTS 1024
struct cot_known_context {
    void *handle;
    abi_device device;
    uint32_t gpu;
    uint64_t charged; /* limits included */
    bool primary;
    bool unsure;    /* primary: it may have ended; the last of its users asks the driver */
    uint16_t users; /* primary: calls in progress that retain, release or need it; it stays charged meanwhile */
    uint32_t turns; /* counts the ends of such calls */
    void *green;    /* the green context whose view this is (the same handle, if the driver makes no other) */
    struct cot_context_limit limits[COT_CONTEXT_LIMITS];
};
struct cot_contexts {
    pthread_mutex_t lock;
    _Atomic uint32_t epoch; /* grows when a context is created or ends, which voids what threads cached */
    uint32_t used;          /* entries from here on were never taken */
    struct cot_known_context known[COT_MAX_CONTEXTS];
};

/* Limits of the device runtime, beside those in struct cot_known_context. */
#define COT_RUNTIME_LIMITS 2
struct cot_runtime_limits {
    uint32_t began; /* context_began of the context whose limits these are */
    struct cot_context_limit limits[COT_RUNTIME_LIMITS];
};

/* The last view of a green context to end, its epoch, and the epoch of the one before. */
struct cot_ended_views {
    void *last;
    uint32_t ended, before;
};

/* ---- memory/pools/pools.c ---- */

#define COT_MAX_POOLS 256
struct cot_known_pool {
    abi_pool handle; /* with a mark once the program has destroyed the pool */
    uint32_t gpu;
    uint32_t managed; /* its memory is: appended in layout 6 where there was padding, 0 to engines before */
    uint64_t charged;
};
struct cot_pools {
    pthread_mutex_t lock;
    struct cot_known_pool known[COT_MAX_POOLS];
};

/* ---- memory/pools/graphs.c ---- */

#define COT_MAX_GRAPHS 1024
struct cot_graph_need {
    uint64_t bytes[COT_MAX_GPUS];
    bool any;
    uint32_t epoch; /* when it was reserved */
};
struct cot_known_graph {
    struct cot_graph_need need;
    abi_stream stream; /* of its last launch */
    uint32_t epoch;    /* when its memory was last known to be reserved; 0: never launched */
};
struct cot_graphs {
    pthread_mutex_t lock, charge_lock;
    _Atomic uint32_t epoch; /* grows before graphs may lose memory that they reserved */
    uint32_t used;          /* entries from here on were never taken */
    struct {
        uint64_t charged;
        uint32_t version; /* grows with each change: an answer older than the charge is asked for again */
    } gpus[COT_MAX_GPUS];
    abi_graph_exec handles[COT_MAX_GRAPHS]; /* apart from the rest, as every launch searches them */
    struct cot_known_graph known[COT_MAX_GRAPHS];
};

/* ---- memory/virtual/vmm.c (mappings only of older engines), memory/virtual/sparse_arrays.c: lists allocated by malloc
 * ---- */

struct cot_mapping {
    abi_devptr at;
    uint64_t bytes;
    uint64_t memory;
};
struct cot_mappings {
    pthread_mutex_t lock;
    struct cot_mapping *list;
    size_t count, capacity;
};

#define COT_EXPORT_MARKS 64u
struct cot_export_marks { /* of file descriptors by which this process exported memory */
    pthread_mutex_t lock;
    uint64_t memory[COT_EXPORT_MARKS];
    _Atomic uint32_t next;
    _Atomic uint32_t memories; /* allocations of physical memory so far */
};

/* A part of an array: a box of elements of one level and layer, or a run of bytes of a mip tail. */
struct cot_box {
    int type;
    unsigned level, layer;
    uint64_t from[3], to[3];
};
struct cot_sparse_mapping {
    void *array, *context;
    uint64_t memory;
    struct cot_box box; /* mapped throughout */
    bool array_ending;  /* its array is being destroyed */
};
struct cot_sparse_mappings {
    pthread_mutex_t lock;
    struct cot_sparse_mapping *list;
    size_t count, capacity;
};

/* ---- memory/checkpoint.c ---- */

struct cot_saved_charge {
    uint64_t held, context, managed, pool;
};
struct cot_checkpoint {
    _Atomic bool active;
    struct cot_saved_charge saved[COT_MAX_GPUS]; /* written before `active` is set */
};

/* ---- accounting/exported.c ---- */

#define COT_MOST_GIVEN_UP 64u
struct cot_given_up {
    uint32_t gpu;
    int file,
        mark; /* the descriptor by which it was exported, and what shows that it is still this one; file -1: none */
    uint64_t bytes;
    uint64_t since; /* CLOCK_MONOTONIC */
};
struct cot_given_up_memory { /* exported, without a reference of this process, and still charged */
    struct cot_lock lock;
    uint32_t count;
    struct cot_given_up list[COT_MOST_GIVEN_UP];
};

/* ---- memory/ordered_frees.c: a list allocated by malloc ---- */

struct cot_ordered_free {
    abi_event reached; /* recorded behind the free */
    void *context;     /* of the stream and the event */
    struct cot_block block;
};
struct cot_ordered_frees {
    pthread_mutex_t lock;
    struct cot_ordered_free *list;
    size_t count, capacity;
    uint64_t paused; /* contexts that are being ended: their events are not asked */
};

/* ---- accounting/slot_locks.c ---- */

struct cot_slot_lock {
    uint64_t ledger_device, ledger_inode; /* identify the ledger: a program may have reused its descriptor number */
    void *mapping;                        /* keeps the open file, and so the lock of the slot */
    /* One thread at a time frees slots: all threads lock through one open file, which does not exclude one another. */
    _Atomic uint32_t reaping;
    uint32_t unused; /* by this engine: earlier ones hid the mapping from forked children where it is 0 */
};

/* ---- all of it ---- */

struct cot_state {
    /* Written by libcotenant.so; engines only read it. */
    uint32_t layout, bytes; /* COT_STATE_BYTES of that library */
    union {
        struct {
            _Atomic uint32_t engine,
                engine_refused; /* number of the working engine; of the last refused one, 0: none */
        };
        _Atomic uint64_t engine_words; /* both */
    };
    /* Versions of the mapped files; 0: not mapped yet. */
    _Atomic uint32_t page_version, ledger_version;
    uint64_t reserved[5];

    struct cot_attachment at;
    struct cot_cached_limits limits[COT_MAX_GPUS];
    struct cot_shard blocks[COT_SHARDS];   /* of struct cot_block */
    struct cot_shard granules[COT_SHARDS]; /* of struct cot_shared_granule */
    struct cot_contexts contexts;
    struct cot_pools pools;
    struct cot_graphs graphs;
    struct cot_mappings mappings;
    struct cot_sparse_mappings sparse;
    struct cot_checkpoint checkpoint;
    struct cot_slot_lock slot_lock;
    struct cot_export_marks exports;
    struct cot_gap gap;
    struct cot_graph_launches graph_launches;
    struct cot_gates *gates; /* engine/launch/gate.h; NULL: the container has no lease page */
    /* Appended under layout 2. An engine that does not know these fields does not take the lock and leaves the others.
     */
    _Atomic uint32_t lifecycle_owner;         /* thread that creates or destroys a context (lifecycle_lock.c) */
    uint32_t context_began[COT_MAX_CONTEXTS]; /* epoch in which each of contexts.known began */
    struct cot_ended_views ended_views;       /* under contexts.lock */
    struct cot_given_up_memory given_up;
    struct cot_runtime_limits runtime_limits[COT_MAX_CONTEXTS]; /* under contexts.lock */
    /* Appended under layout 6. */
    struct cot_ordered_frees ordered_frees;
};
static_assert(sizeof(struct cot_state) <= COT_STATE_BYTES, "the state outgrows the bytes reserved for it");

/* Cached for each thread, in thread-local storage of libcotenant.so: engines have none. */
struct cot_thread {
    void *context;  /* last found current, */
    uint32_t gpu;   /* its GPU, */
    uint32_t epoch; /* and the epoch of the context table then */
    uint32_t seed;  /* of random pauses */
    uint32_t reserved;
};

/* An offset that changes here is another layout. */
#if defined(__x86_64__)
#define COT_PLACE(field, offset) static_assert(offsetof(struct cot_state, field) == offset, #field);
COT_PLACE(engine, 8)
COT_PLACE(page_version, 16)
COT_PLACE(at, 64)
COT_PLACE(at.joining, 192)
COT_PLACE(limits, 232)
COT_PLACE(blocks, 872)
COT_PLACE(granules, 2408)
COT_PLACE(contexts, 3944)
COT_PLACE(contexts.known, 3992)
COT_PLACE(pools, 118680)
COT_PLACE(pools.known, 118720)
COT_PLACE(graphs, 124864)
COT_PLACE(graphs.gpus, 124952)
COT_PLACE(graphs.handles, 125208)
COT_PLACE(graphs.known, 133400)
COT_PLACE(mappings, 289048)
COT_PLACE(sparse, 289112)
COT_PLACE(checkpoint, 289176)
COT_PLACE(slot_lock, 289696)
COT_PLACE(exports, 289728)
COT_PLACE(gap, 290288)
COT_PLACE(graph_launches, 290304)
COT_PLACE(lifecycle_owner, 290320 + 8 * COT_MAX_GPUS)
#undef COT_PLACE
static_assert(sizeof(struct cot_known_context) == 112 && sizeof(struct cot_known_graph) == 152, "layout");
static_assert(sizeof(struct cot_block) == 48 && sizeof(struct cot_shared_granule) == 16, "layout");
static_assert(sizeof(struct cot_mapping) == 24 && sizeof(struct cot_sparse_mapping) == 96, "layout");
static_assert(sizeof(struct cot_state) == 294440 + 8 * COT_MAX_GPUS + sizeof(struct cot_given_up_memory) +
                                              sizeof(struct cot_runtime_limits) * COT_MAX_CONTEXTS +
                                              sizeof(struct cot_ordered_frees) &&
                  sizeof(struct cot_thread) == 24,
              "layout");
#endif
