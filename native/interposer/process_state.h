/* What must live as long as the process: everything that the policy remembers, its locks included. It lies in the
 * object that the process maps (libcotenant.so), all of it zero at first; engines come and go and work on it.
 *
 * Two engines may work on it at the same time, and an older one may follow a newer one. So places and meanings belong
 * to a layout number: what changes them raises COT_STATE_LAYOUT, and an engine says on which layouts it works. A field
 * may be appended under the same number only if the state stays right while an engine that does not know it works. */
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
#define COT_STATE_LAYOUT 2u
#endif
#define COT_STATE_ROOM (1u << 20) /* what the process has for it; later engines may append */

/* ---- the page, the ledger, this process's slot (attach.c) ---- */

struct cot_attachment {
    _Atomic uint32_t attached;
    _Atomic uint32_t failed;  /* a grant that could not be read once is not read again by this process */
    volatile uint32_t *alive; /* 1 in the process that attached, 0 in its forked children and before anybody has */
    const struct cot_limits_page *page;
    char *ledger;
    int ledger_fd;
    uint32_t gpu_count, slot_count, slot;
    uint64_t slot_bytes;
    uint32_t gpu_of[COT_MAX_GPUS]; /* device ordinal -> GPU; COT_NO_GPU */
    int device_count;
    pthread_mutex_t joining;
};

/* A GPU entry as last read whole. Words are copied one by one: a reader that meets an update sees old and new ones
 * mixed for a moment, each of which was true. */
struct cot_seen_gpu {
    _Atomic uint64_t generation; /* of the page, plus one; 0 = never read */
    _Atomic uint64_t memory_bytes, context_bytes, granule_bytes;
    _Atomic uint32_t flags;
};

/* ---- what this process allocated (blocks.c) ---- */

struct cot_lock {
    _Atomic uint32_t word;
};
struct cot_shard {
    struct cot_lock lock;
    uint32_t capacity, filled; /* filled counts tombstones */
    char *entries;
};
#define COT_SHARDS 64u

enum cot_kind { COT_LINEAR = 1, COT_MANAGED, COT_VMM, COT_ARRAY, COT_SPARSE, COT_DEFERRED, COT_EXTERNAL };
struct cot_block {
    uint64_t key; /* pointer or handle */
    uint64_t bytes;
    uint32_t gpu;
    uint32_t kind;
    void *context;
    uint64_t root;       /* memory by handle, held for as long as this block is there; 0 */
    uint32_t references; /* COT_VMM: of memory: handles, mappings and imports */
    uint32_t epoch;      /* of contexts, when the thread saw the context current; 0: nobody said (an older engine) */
};
struct cot_shared_page {
    uint64_t key; /* page number + 2, so that no key looks free */
    uint16_t gpu;
    bool small;     /* requests of the size that the driver packs together may be in it */
    uint32_t users; /* allocations that lie in it in part */
};

/* The one request of this process that goes where memory is held already, for the grant is full (linear.c). */
struct cot_gap {
    struct cot_lock lock;
    _Atomic uint32_t gpu; /* plus one; 0: there is none */
    uint64_t pot;         /* announced: what others had to spare meanwhile */
};

/* Launches under way of graphs whose memory is there: what the driver takes from it meanwhile they may take again. */
struct cot_launches {
    _Atomic uint32_t under_way, skipped;  /* skipped: what went was left charged for their sake */
    _Atomic uint64_t ended[COT_MAX_GPUS]; /* the most that graphs which have ended left reserved */
};

/* ---- contexts.c ---- */

/* What a limit of a context (heap, stack or printf buffer) costs, beyond what it did when the context was measured. */
#define COT_LIMITS 3
struct cot_limit {
    uint64_t base, charged;
    uint32_t version; /* grows with each change; 0 = never looked at */
    uint32_t setters; /* calls under way that set it: the charge is the most that any of them may take */
};
#define COT_MOST_CONTEXTS 1024
struct cot_known_context {
    void *handle;
    abi_device device;
    uint32_t gpu;
    uint64_t charged; /* limits included */
    bool primary;
    bool unsure;    /* primary: it may have ended; the last of its users finds out */
    uint16_t users; /* primary: calls under way that retain, release or need it: it stays charged */
    uint32_t turns; /* grows as these end */
    void *green;    /* the green context that this one is a view of, or is itself, if its view has its handle */
    struct cot_limit limits[COT_LIMITS];
};
struct cot_contexts {
    pthread_mutex_t lock;
    _Atomic uint32_t epoch; /* grows when any context comes or goes: what threads remember is void then */
    uint32_t used;          /* no entry at or above it was ever taken */
    struct cot_known_context known[COT_MOST_CONTEXTS];
};

/* The view of a green context that ended last, and the epochs by which it had, and the one before it. */
struct cot_ended_views {
    void *last;
    uint32_t ended, before;
};

/* ---- pools.c ---- */

#define COT_MOST_POOLS 256
struct cot_known_pool {
    abi_pool handle; /* marked, if the program has destroyed it */
    uint32_t gpu;
    uint64_t charged;
};
struct cot_pools {
    pthread_mutex_t lock;
    struct cot_known_pool known[COT_MOST_POOLS];
};

/* ---- graphs.c ---- */

#define COT_MOST_GRAPHS 1024
struct cot_graph_need {
    uint64_t bytes[COT_MAX_GPUS];
    bool any;
    uint32_t epoch; /* when it was reserved */
};
struct cot_known_graph {
    struct cot_graph_need need;
    abi_stream stream; /* of its last launch */
    uint32_t epoch;    /* what it needs was there then; 0 = never launched */
};
struct cot_graphs {
    pthread_mutex_t lock, charge_lock;
    _Atomic uint32_t epoch; /* grows before memory that graphs keep may be taken from them */
    uint32_t used;          /* no entry at or above it was ever taken */
    struct {
        uint64_t charged;
        uint32_t version; /* grows with each change: an answer that is older than the charge is asked for again */
    } gpus[COT_MAX_GPUS];
    abi_graph_exec handles[COT_MOST_GRAPHS]; /* apart from the rest, for every launch searches them */
    struct cot_known_graph known[COT_MOST_GRAPHS];
};

/* ---- handles.c, tiles.c: lists in malloc's memory ---- */

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

#define COT_MARKS 64u
struct cot_marks { /* of files by which this process has exported memory */
    pthread_mutex_t lock;
    uint64_t memory[COT_MARKS];
    _Atomic uint32_t next;
    _Atomic uint32_t memories; /* that there ever were */
};

/* A part of an array: a box of elements of one level and layer, or a run of bytes of a mip tail. */
struct cot_box {
    int type;
    unsigned level, layer;
    uint64_t from[3], to[3];
};
struct cot_tile {
    void *array, *context;
    uint64_t memory;
    struct cot_box box; /* mapped throughout */
    bool leaving;       /* its array is being destroyed */
};
struct cot_tiles {
    pthread_mutex_t lock;
    struct cot_tile *list;
    size_t count, capacity;
};

/* ---- checkpoint.c ---- */

struct cot_parts {
    uint64_t held, context, managed, pool;
};
struct cot_checkpoint {
    _Atomic bool away;
    struct cot_parts saved[COT_MAX_GPUS]; /* by whoever won `away` */
};

/* ---- liveness.c ---- */

struct cot_lives {
    uint64_t ledger_device, ledger_inode; /* tell the ledger from a file that got its descriptor's number */
    void *kept;                           /* a mapping that keeps the lock of the slot */
    /* One thread of a process frees slots at a time: all of them lock through one open file, which keeps none out. */
    _Atomic uint32_t burying;
    uint32_t forked; /* 1: forked children get the mapping, and give it back when they attach */
};

/* ---- all of it ---- */

struct cot_state {
    /* The entry's words, which engines only read. */
    uint32_t layout, bytes; /* of the room */
    union {
        struct {
            _Atomic uint32_t engine, engine_refused; /* the number that works; the last one that could not (0: none) */
        };
        _Atomic uint64_t engine_words; /* both */
    };
    /* Versions of what is mapped, by whoever mapped it; 0: nothing yet. */
    _Atomic uint32_t page_version, ledger_version;
    uint64_t reserved[5];

    struct cot_attachment at;
    struct cot_seen_gpu seen[COT_MAX_GPUS];
    struct cot_shard blocks[COT_SHARDS]; /* of struct cot_block */
    struct cot_shard pages[COT_SHARDS];  /* of struct cot_shared_page */
    struct cot_contexts contexts;
    struct cot_pools pools;
    struct cot_graphs graphs;
    struct cot_mappings mappings;
    struct cot_tiles tiles;
    struct cot_checkpoint checkpoint;
    struct cot_lives lives;
    struct cot_marks marks;
    struct cot_gap gap;
    struct cot_launches launches;
    struct cot_gates *gates; /* engine/gates.h; NULL: the container has no compute page */
    /* Appended under layout 2: an engine that does not know them takes no turn, and leaves those of 0 or of old. */
    _Atomic uint32_t context_turn;    /* the thread that makes or ends a context (turn.c) */
    uint32_t born[COT_MOST_CONTEXTS]; /* of contexts.known: the epoch that each began */
    struct cot_ended_views views;     /* under contexts.lock */
};
static_assert(sizeof(struct cot_state) <= COT_STATE_ROOM, "the state outgrows its room");

/* What is remembered of each thread, in the thread storage of the object that the process maps: engines have none. */
struct cot_thread {
    void *context;  /* the last one that was seen to be current, */
    uint32_t gpu;   /* and its GPU, */
    uint32_t epoch; /* when the contexts' epoch was this */
    uint32_t seed;  /* of pauses */
    uint32_t reserved;
};

/* A number that changes here is another layout. */
#if defined(__x86_64__)
#define COT_PLACE(field, offset) static_assert(offsetof(struct cot_state, field) == offset, #field);
COT_PLACE(engine, 8)
COT_PLACE(page_version, 16)
COT_PLACE(at, 64)
COT_PLACE(at.joining, 192)
COT_PLACE(seen, 232)
COT_PLACE(blocks, 872)
COT_PLACE(pages, 2408)
COT_PLACE(contexts, 3944)
COT_PLACE(contexts.known, 3992)
COT_PLACE(pools, 118680)
COT_PLACE(pools.known, 118720)
COT_PLACE(graphs, 124864)
COT_PLACE(graphs.gpus, 124952)
COT_PLACE(graphs.handles, 125208)
COT_PLACE(graphs.known, 133400)
COT_PLACE(mappings, 289048)
COT_PLACE(tiles, 289112)
COT_PLACE(checkpoint, 289176)
COT_PLACE(lives, 289696)
COT_PLACE(marks, 289728)
COT_PLACE(gap, 290288)
COT_PLACE(launches, 290304)
COT_PLACE(context_turn, 290320 + 8 * COT_MAX_GPUS)
#undef COT_PLACE
static_assert(sizeof(struct cot_known_context) == 112 && sizeof(struct cot_known_graph) == 152, "layout");
static_assert(sizeof(struct cot_block) == 48 && sizeof(struct cot_shared_page) == 16, "layout");
static_assert(sizeof(struct cot_mapping) == 24 && sizeof(struct cot_tile) == 96, "layout");
static_assert(sizeof(struct cot_state) == 294440 + 8 * COT_MAX_GPUS && sizeof(struct cot_thread) == 24, "layout");
#endif
