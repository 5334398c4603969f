/* The compute page: one per container, shared with the agent alone, through which the agent's arbiter lets the
 * container's processes put work on its GPUs, and through which they tell what they used. It lies in the ledger's
 * file, behind the ledger, where the limits page says (`lease_page_offset`): what mounts the one brings the other.
 *
 * Two halves. The agent writes the first (a header, an order per GPU) and never reads an order back, except its own
 * records when it starts; the tenant's processes write the second (a row per process and GPU), which the agent copies
 * and checks. Each word has one writer: the agent, or the process that holds the ledger's slot of that index (all its
 * threads, hence atomic). Little-endian, 8-byte aligned, no pointers, a size that never changes. Times are
 * CLOCK_BOOTTIME in ns; amounts are ns for which the GPU was the container's ("used"), counted up and never reset.
 *
 * The one rule between the halves: a process announces (`inflight`, seq_cst), then looks at `lease` (seq_cst); the
 * agent closes `lease` (seq_cst), then looks at `inflight`. So at least one of the two sees the other, and a GPU that
 * was found drained after it was closed stays drained. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ledger.h"

#define COT_LEASE_PAGE_MAGIC 0x0031504d4f435443ull /* read as bytes: CTCOMP1 */
#define COT_LEASE_PAGE_VERSION 1u
#define COT_LEASE_REPORTS_OFFSET 8192u          /* where the tenant's half begins: a boundary of pages */
#define COT_PPM 1000000u                        /* a share of all of a GPU */
#define COT_LEASE_PAGE_STALE_NS 60000000ull     /* a heartbeat as old as this: the agent is not there */
#define COT_LEASE_PAGE_HEARTBEAT_NS 10000000ull /* how often the agent comes by, while anything waits or runs */
#define COT_MAX_PLAUSIBLE_NS (1ull << 60)       /* a word above this was scribbled over */

/* State of a GPU's lease, the low byte of `lease`; above it the epoch, which grows with every change. */
enum {
    COT_LEASE_CLOSED = 0,   /* no launch may begin */
    COT_LEASE_GRANTED = 1,  /* launches may begin up to the limit */
    COT_LEASE_CATCH_UP = 2, /* closed, but a launch whose counterpart on another GPU is under way may follow it */
    COT_LEASE_FREE = 3,     /* nothing limits this container */
};

struct cot_lease_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes; /* of the whole page */
    uint32_t gpu_count;
    uint32_t slot_count;
    uint64_t heartbeat_ns; /* the agent's last visit; or, while it rests, the same as ... */
    uint64_t rest_until_ns;
    uint64_t reserved[3];
};
/* A rest is a promise: nothing waits or runs, and until then whoever rings is heard, so no process waits for longer
 * than COT_LEASE_PAGE_STALE_NS after its ring. It stands where the heartbeat does, for who does not know of rests: to
 * it the agent is there until then. `rest_until_ns` is written first, and stays when the rest ends. Visits are even,
 * promises odd. */
static inline void cot_lease_page_beat(struct cot_lease_page_header *header, uint64_t now_ns) {
    __atomic_store_n(&header->heartbeat_ns, now_ns & ~1ull, __ATOMIC_SEQ_CST);
}
static inline void cot_lease_page_rest(struct cot_lease_page_header *header, uint64_t until_ns) {
    __atomic_store_n(&header->rest_until_ns, until_ns | 1, __ATOMIC_RELEASE);
    __atomic_store_n(&header->heartbeat_ns, until_ns | 1, __ATOMIC_RELEASE);
}

/* What the agent says of the container itself, in two copies written in turns, so that one is always whole: what the
 * processes go by when the agent is away, and what a new agent goes on with. */
struct cot_lease_record {
    uint64_t at_ns;
    uint64_t limit_ns; /* at that time launches may begin while less than this was used; grows by rate_ppm */
    uint64_t charged_ns;
    uint64_t contended_ns; /* charged while another container's work shared the GPU */
    uint32_t rate_ppm;     /* 0: nothing limits */
    uint32_t sequence;     /* the other copy's and 1 */
    uint64_t used_ns;      /* what the rows said at that time */
    uint64_t epoch;        /* of the lease at that time */
    uint64_t check;        /* over the words before it */
};
#define COT_LEASE_RECORD_WORDS 7u

struct cot_lease_order {
    uint64_t lease;
    uint64_t limit_ns; /* launches may begin while `used` and `pending` of all rows are below this */
    uint64_t at_ns;    /* from this time on the limit grows ... */
    uint32_t rate_ppm; /* ... by this share of the time */
    uint32_t wake;     /* a futex word; another value after each change that may let somebody go */
    uint64_t depth_ns; /* most predicted work under way */
    uint64_t reserved[3];
    struct cot_lease_record records[2];
    uint64_t reserved2[8];
};

struct cot_lease_reports {
    uint32_t bell;       /* a futex word; another value when the agent should look */
    uint32_t slots_used; /* no row of a slot at or above this index was ever written */
    uint64_t reserved[7];
};

/* One process on one GPU. A process that takes a slot sets all but `used_ns` and `launches` to 0, then `stamp`. */
struct cot_lease_row {
    uint64_t stamp;   /* of the ledger's slot: names the occupant; 0: nobody */
    uint64_t waiting; /* threads that wait to launch */
    uint64_t used_ns;
    uint64_t inflight;   /* launches announced and not known to have ended */
    uint64_t pending_ns; /* predicted length of these */
    uint64_t longest_ns; /* longest launch of late */
    uint64_t launches;   /* ever */
    uint64_t throttled_ns;
};

static_assert(sizeof(struct cot_lease_page_header) == 64, "compute header");
static_assert(sizeof(struct cot_lease_record) == 64, "compute record");
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
/* Mapped apart from the ledger, so at a boundary of pages, however large the machine's are. */
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

/* Closes, writes the terms, and opens under an epoch of its own: a reader that met the same lease before and after it
 * read the terms has terms that belong together. `epoch` is larger by at least 2 than any before. */
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

/* Terms stay as they are: CLOSED, or CATCH_UP on the way there. */
static inline void cot_lease_order_close(struct cot_lease_order *order, uint64_t epoch, uint32_t state) {
    __atomic_store_n(&order->lease, cot_lease(epoch, state), __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void cot_lease_order_record(struct cot_lease_order *order, struct cot_lease_record record) {
    /* The older one, so that a writer that dies half way leaves the newer. */
    uint32_t newer = (int32_t)(order->records[1].sequence - order->records[0].sequence) > 0;
    struct cot_lease_record *to = &order->records[!newer];
    record.sequence = order->records[newer].sequence + 1;
    record.check = cot_check(&record, COT_LEASE_RECORD_WORDS);
    __atomic_store_n(&to->check, 0, __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    memcpy(to, &record, sizeof record - sizeof record.check);
    __atomic_store_n(&to->check, record.check, __ATOMIC_RELEASE);
}

/* The agent's half of a page that no agent has visited yet: COT_LEASE_REPORTS_OFFSET bytes of zeros become one by which
 * its processes go on their own credit, `rate_ppm` of each GPU (0: nothing limits). */
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

/* False where the agent is changing it: it will bump `wake` when it is done. */
static inline bool cot_lease_order_read(const struct cot_lease_order *order, struct cot_lease_order_view *view) {
    view->lease = __atomic_load_n(&order->lease, __ATOMIC_SEQ_CST);
    view->terms.limit_ns = __atomic_load_n(&order->limit_ns, __ATOMIC_RELAXED);
    view->terms.at_ns = __atomic_load_n(&order->at_ns, __ATOMIC_RELAXED);
    view->terms.rate_ppm = __atomic_load_n(&order->rate_ppm, __ATOMIC_RELAXED);
    view->terms.depth_ns = __atomic_load_n(&order->depth_ns, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return __atomic_load_n(&order->lease, __ATOMIC_RELAXED) == view->lease;
}

/* The newest record that is whole. */
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
