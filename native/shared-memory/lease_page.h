/* The lease page: one per container, shared with the agent. Through it the agent's arbiter decides when the
 * container's processes may launch work on its GPUs, and the processes report the GPU time they used. It lies in
 * the ledger's file, behind the ledger, at `lease_page_offset` of the limits page.
 *
 * The agent writes the first half (a header, an order per GPU) and reads none of it back, except its own records at
 * its start. The container's processes write the second half (a row per process and GPU), which the agent copies
 * and checks. Each word has one writer: the agent, or the process that has the ledger's slot of that index (all its
 * threads, hence atomically). In an order cot_lease_shared is written by all processes of the container, and `wake` is
 * increased by them and by the agent.
 * Little-endian, 8-byte aligned, no pointers, fixed size. Times are CLOCK_BOOTTIME in ns; used GPU time in ns is
 * counted up and never reset.
 *
 * One rule joins the halves: a process announces a launch (`inflight`, seq_cst), then reads `lease` (seq_cst); the
 * agent closes `lease` (seq_cst), then reads `inflight`. So at least one of the two sees the other, and a GPU that
 * was found drained after its lease was closed stays drained. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ledger.h"

#define COT_LEASE_PAGE_MAGIC 0x0031504d4f435443ull /* read as bytes: CTCOMP1 */
#define COT_LEASE_PAGE_VERSION 1u
#define COT_LEASE_REPORTS_OFFSET 8192u          /* where the container's half begins: at a page boundary */
#define COT_PPM 1000000u                        /* a share of 1 */
#define COT_LEASE_PAGE_STALE_NS 60000000ull     /* with a heartbeat as old as this the agent counts as away */
#define COT_LEASE_PAGE_HEARTBEAT_NS 10000000ull /* how often the agent visits the page while launches wait or run */
#define COT_MAX_PLAUSIBLE_NS (1ull << 60)       /* a larger word is corrupt */

/* State of a GPU's lease: the low byte of `lease`. The epoch is above it and grows with every change. */
enum {
    COT_LEASE_CLOSED = 0,   /* no launch may begin */
    COT_LEASE_GRANTED = 1,  /* launches may begin up to the limit */
    COT_LEASE_CATCH_UP = 2, /* closed, except for launches that follow their counterparts on other GPUs */
    COT_LEASE_FREE = 3,     /* the container is not limited */
};

struct cot_lease_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* of the whole page */
    uint32_t gpu_count;
    uint32_t slot_count;
    uint64_t heartbeat_ns; /* the agent's last visit; while it rests the same as rest_until_ns */
    uint64_t rest_until_ns;
    uint64_t reserved[3];
};
/* While the agent rests no launch waits or runs, and until rest_until_ns it hears every ring: no process waits
 * longer than COT_LEASE_PAGE_STALE_NS after its ring. The time also stands in heartbeat_ns, so that a process that
 * does not know of rests takes the agent for present. `rest_until_ns` is written first, and stays when the rest
 * ends. Visits are even numbers, rests odd. */
static inline void cot_lease_page_beat(struct cot_lease_page_header *header, uint64_t now_ns) {
    __atomic_store_n(&header->heartbeat_ns, now_ns & ~1ull, __ATOMIC_SEQ_CST);
}
static inline void cot_lease_page_rest(struct cot_lease_page_header *header, uint64_t until_ns) {
    __atomic_store_n(&header->rest_until_ns, until_ns | 1, __ATOMIC_RELEASE);
    __atomic_store_n(&header->heartbeat_ns, until_ns | 1, __ATOMIC_RELEASE);
}

/* The agent's record of the container, in two copies written in turns, so that one is always consistent. Processes
 * follow it while the agent is away, and a new agent continues from it. */
struct cot_lease_record {
    uint64_t at_ns;
    uint64_t limit_ns; /* at that time launches may begin while less than this was used; grows by rate_ppm */
    uint64_t charged_ns;
    uint64_t contended_ns; /* charged while another container's work shared the GPU */
    uint32_t rate_ppm;     /* 0: not limited */
    uint32_t sequence;     /* that of the other copy plus 1 */
    uint64_t used_ns;      /* sum of the rows at that time */
    uint64_t epoch;        /* of the lease at that time */
    uint64_t check;        /* over the words before it */
};
#define COT_LEASE_RECORD_WORDS 7u

/* How far the container's processes are on a GPU. They alone write it, atomically; the agent reads `awaited` and
 * `relieved`. */
struct cot_lease_shared {
    uint64_t used_until_ns; /* use is counted up to here: time in which several processes use the GPU counts once */
    uint64_t round;         /* of older builds */
    uint64_t awaited;       /* launches ever that work in flight might wait for: those that went without credit, and the
                               first one that waited for its turn or for its process */
    uint64_t relieved;      /* launches ever that went without credit, or at the bound of their wait */
    uint64_t made; /* launches of the process that has made most; in the high half, when nothing was in flight last */
    uint64_t reserved[3];
};

struct cot_lease_order {
    uint64_t lease;
    uint64_t limit_ns;       /* launches may begin while used_ns and pending_ns of all rows are below this */
    uint64_t at_ns;          /* from this time on the limit grows ... */
    uint32_t rate_ppm;       /* ... by this share of the time */
    uint32_t wake;           /* futex; changes when a waiting launch may be allowed to go */
    uint64_t depth_ns;       /* most predicted work in flight */
    uint64_t launches_limit; /* in state CATCH_UP launches may begin while fewer were made on this GPU */
    uint64_t reserved[2];
    struct cot_lease_record records[2];
    struct cot_lease_shared shared;
};

struct cot_lease_reports {
    uint32_t bell;       /* futex; changes when the agent is to visit */
    uint32_t slots_used; /* rows of slots from here on were never written */
    uint64_t reserved[7];
};

/* One process on one GPU. A process that takes a slot zeroes all words but `used_ns` and `launches`, then sets
 * `stamp`. */
struct cot_lease_row {
    uint64_t stamp;   /* of the ledger's slot: identifies the occupant; 0: none */
    uint64_t waiting; /* threads that wait to launch */
    uint64_t used_ns;
    uint64_t inflight;   /* launches announced and not known to have ended */
    uint64_t pending_ns; /* their predicted duration */
    uint64_t longest_ns; /* longest recent launch */
    uint64_t launches;   /* ever */
    uint64_t throttled_ns;
};

static_assert(sizeof(struct cot_lease_page_header) == 64, "compute header");
static_assert(sizeof(struct cot_lease_record) == 64, "compute record");
static_assert(sizeof(struct cot_lease_shared) == 64, "compute shared");
static_assert(sizeof(struct cot_lease_order) == 256, "compute order");
static_assert(sizeof(struct cot_lease_reports) == 64, "compute reports");
static_assert(sizeof(struct cot_lease_row) == 64, "compute row");
static_assert(sizeof(struct cot_lease_page_header) + COT_MAX_GPUS * sizeof(struct cot_lease_order) <=
                  COT_LEASE_REPORTS_OFFSET,
              "the agent's half");

static inline uint64_t cot_lease_page_bytes(uint32_t slot_count, uint32_t gpu_count) {
    return COT_LEASE_REPORTS_OFFSET + sizeof(struct cot_lease_reports) +
           (uint64_t)slot_count * gpu_count * sizeof(struct cot_lease_row);
}
/* It is mapped apart from the ledger, so it begins at a page boundary for every page size. */
static inline uint64_t cot_lease_page_offset_for(uint32_t slot_count, uint32_t gpu_count) {
    const uint64_t boundary = 65536;
    return (cot_ledger_bytes(slot_count, gpu_count) + boundary - 1) / boundary * boundary;
}
static inline struct cot_lease_order *cot_lease_order_at(void *page, uint32_t gpu) {
    return (struct cot_lease_order *)((char *)page + sizeof(struct cot_lease_page_header)) + gpu;
}
static inline struct cot_lease_reports *cot_lease_reports_at(void *page) {
    return (struct cot_lease_reports *)((char *)page + COT_LEASE_REPORTS_OFFSET);
}
static inline struct cot_lease_row *cot_lease_row_at(void *page, uint32_t gpu_count, uint32_t slot, uint32_t gpu) {
    return (struct cot_lease_row *)(cot_lease_reports_at(page) + 1) + (uint64_t)slot * gpu_count + gpu;
}

static inline uint64_t cot_lease(uint64_t epoch, uint32_t state) {
    return epoch << 8 | state;
}
static inline uint32_t cot_lease_state(uint64_t lease) {
    return lease & 0xff;
}
static inline uint64_t cot_lease_epoch(uint64_t lease) {
    return lease >> 8;
}

/* ---- the agent's side of an order ---- */

struct cot_lease_terms {
    uint64_t limit_ns, at_ns, depth_ns;
    uint32_t rate_ppm;
};

/* Closes the lease, writes the terms, and opens it under a new epoch: a reader that finds the same lease before and
 * after reading the terms has consistent ones. `epoch` is larger by at least 2 than any before. */
static inline void cot_lease_order_grant(struct cot_lease_order *order, uint64_t epoch, uint32_t state,
                                         const struct cot_lease_terms *terms) {
    __atomic_store_n(&order->lease, cot_lease(epoch - 1, COT_LEASE_CLOSED), __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_store_n(&order->limit_ns, terms->limit_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&order->at_ns, terms->at_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&order->rate_ppm, terms->rate_ppm, __ATOMIC_RELAXED);
    __atomic_store_n(&order->depth_ns, terms->depth_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&order->lease, cot_lease(epoch, state), __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&order->wake, 1, __ATOMIC_RELEASE);
}

/* The terms do not change. */
static inline void cot_lease_order_close(struct cot_lease_order *order, uint64_t epoch) {
    __atomic_store_n(&order->lease, cot_lease(epoch, COT_LEASE_CLOSED), __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* Before that, with a limit that never falls. */
static inline void cot_lease_order_catch_up(struct cot_lease_order *order, uint64_t epoch, uint64_t launches_limit) {
    __atomic_store_n(&order->launches_limit, launches_limit, __ATOMIC_RELAXED);
    __atomic_store_n(&order->lease, cot_lease(epoch, COT_LEASE_CATCH_UP), __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    __atomic_fetch_add(&order->wake, 1, __ATOMIC_RELEASE);
}

static inline void cot_lease_order_record(struct cot_lease_order *order, struct cot_lease_record record) {
    /* Overwrites the older copy, so that the newer one survives a writer that dies halfway. */
    uint32_t newer = (int32_t)(order->records[1].sequence - order->records[0].sequence) > 0;
    struct cot_lease_record *to = &order->records[!newer];
    record.sequence = order->records[newer].sequence + 1;
    record.check = cot_check(&record, COT_LEASE_RECORD_WORDS);
    __atomic_store_n(&to->check, 0, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(to, &record, sizeof record - sizeof record.check);
    __atomic_store_n(&to->check, record.check, __ATOMIC_RELEASE);
}

/* Initializes the agent's half of a new page, COT_LEASE_REPORTS_OFFSET zeroed bytes: its processes follow their own
 * credit, `rate_ppm` of each GPU (0: not limited). */
static inline void cot_lease_page_init(void *half, uint32_t slot_count, uint32_t gpu_count, const uint32_t *rate_ppm,
                                       uint64_t now_ns) {
    struct cot_lease_page_header *header = (struct cot_lease_page_header *)half;
    header->magic = COT_LEASE_PAGE_MAGIC;
    header->version = COT_LEASE_PAGE_VERSION;
    header->bytes = (uint32_t)cot_lease_page_bytes(slot_count, gpu_count);
    header->gpu_count = gpu_count;
    header->slot_count = slot_count;
    for (uint32_t gpu = 0; gpu < gpu_count; gpu++) {
        struct cot_lease_record record;
        memset(&record, 0, sizeof record);
        record.at_ns = now_ns;
        record.rate_ppm = rate_ppm[gpu];
        cot_lease_order_record(cot_lease_order_at(half, gpu), record);
    }
}

/* ---- the readers' side ---- */

struct cot_lease_order_view {
    uint64_t lease;
    struct cot_lease_terms terms;
};

/* False: the agent is changing it, and will change `wake` after that. */
static inline bool cot_lease_order_read(const struct cot_lease_order *order, struct cot_lease_order_view *view) {
    view->lease = __atomic_load_n(&order->lease, __ATOMIC_SEQ_CST);
    view->terms.limit_ns = __atomic_load_n(&order->limit_ns, __ATOMIC_RELAXED);
    view->terms.at_ns = __atomic_load_n(&order->at_ns, __ATOMIC_RELAXED);
    view->terms.rate_ppm = __atomic_load_n(&order->rate_ppm, __ATOMIC_RELAXED);
    view->terms.depth_ns = __atomic_load_n(&order->depth_ns, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&order->lease, __ATOMIC_RELAXED) == view->lease;
}

/* The newest consistent record. */
static inline bool cot_lease_order_read_record(const struct cot_lease_order *order, struct cot_lease_record *record) {
    bool found = false;
    for (uint32_t i = 0; i < 2; i++) {
        struct cot_lease_record copy = order->records[i];
        if (copy.check != cot_check(&copy, COT_LEASE_RECORD_WORDS) ||
            (found && (int32_t)(copy.sequence - record->sequence) <= 0))
            continue;
        *record = copy;
        found = true;
    }
    return found;
}

/* What `limit_ns` has grown to. */
static inline uint64_t cot_lease_limit_at(uint64_t limit_ns, uint64_t at_ns, uint32_t rate_ppm, uint64_t now_ns) {
    uint64_t elapsed = now_ns > at_ns ? now_ns - at_ns : 0;
    return limit_ns + elapsed / COT_PPM * rate_ppm + elapsed % COT_PPM * rate_ppm / COT_PPM;
}
