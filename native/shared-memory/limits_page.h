/* The limits page: one file per container, written by the agent alone, mapped read-only by the interposer. It holds
 * the grant, and what only the agent knows: what a context costs on this GPU, the driver's granule, what the driver
 * reports for each process.
 *
 * The file never changes its size and is rewritten in place. GPU entries and feedback entries end in a check word
 * over their own bytes; a reader that finds it wrong has read during a write, and reads again. The gate is a single
 * word. Little-endian, 8-byte aligned, no pointers.
 *
 * A version covers what a field means, where it lies and how it is written; a change of these raises it. A field
 * may be taken from `reserved` without that if 0 means what it meant before (a writer that does not know the field
 * writes 0) and readers may ignore it. `magic`, `version` and `engine` never move, as they are read before the
 * version is known. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define COT_LIMITS_PAGE_MAGIC 0x00314547415f5443ull /* read as bytes: CT_AGE1 */
#ifndef COT_LIMITS_PAGE_VERSION                     /* tests build the next version */
#define COT_LIMITS_PAGE_VERSION 1u
#endif
#ifndef COT_LIMITS_PAGE_OLDEST
#define COT_LIMITS_PAGE_OLDEST 1u /* versions from here on are read, and kept when a page is rewritten */
#endif
#define COT_MAX_GPUS 16u
#define COT_MAX_SLOTS 4096u

/* page flags */
enum {
    COT_LIMITS_PAGE_ISOLATE_MEMORY = 1, /* memory requests beyond the grant are refused */
    COT_LIMITS_PAGE_HAS_FEEDBACK = 2,   /* some feedback entry is not empty */
};
enum {
    COT_GPU_RELEASES_LATE = 1, /* the GPU frees memory late: it counts until the agent has seen it gone */
};
/* Bits of the gate word; 0 is open. */
enum {
    COT_GATE_OPEN = 0,
    COT_GATE_CLOSED = 1, /* launches wait */
    COT_GATE_LEASED = 2, /* launches follow the lease page (lease_page.h) */
};

struct cot_limits_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;      /* of the whole file */
    uint32_t gpu_count;  /* valid entries in gpus[], at most COT_MAX_GPUS */
    uint32_t slot_count; /* slots of the ledger and rows of the feedback */
    uint32_t flags;
    uint32_t gate;              /* COT_GATE_* bits: the one word that every launch reads */
    uint64_t generation;        /* grows with every change of a GPU entry */
    uint64_t heartbeat_ns;      /* CLOCK_BOOTTIME of the agent's last visit */
    uint32_t engine;            /* number of the engine that processes are to run; 0: that of their build */
    uint32_t ledger_version;    /* version of the ledger beside it, which is not read from the ledger; 0: 1 */
    uint64_t lease_page_offset; /* offset of the lease page in the ledger's file; 0: it has none */
};

struct cot_limits_page_gpu {
    uint8_t uuid[16];
    uint64_t memory_bytes;  /* memory granted on this GPU, contexts included */
    uint64_t context_bytes; /* measured cost of one context; 0: not measured */
    uint64_t granule_bytes; /* memory is allocated in pieces of this size; 0: not measured */
    uint32_t cores_percent; /* compute granted; 0: none requested. Enforced through the lease page */
    uint32_t flags;
    uint64_t reserved[9];
    uint64_t check;
};

/* What the agent measured of one slot on one GPU, for the occupant that `stamp` identifies. */
struct cot_limits_page_feedback {
    uint64_t stamp;
    int64_t residual_bytes;  /* held according to the driver minus charged by the process, while no request was in
                                progress */
    uint64_t released_bytes; /* how much of cot_slot_gpu.freed has really left the GPU */
    uint64_t signature; /* cot_row_signature of the row when measured: a negative residual is valid only while it is the
                           same */
    uint64_t dead_stamp; /* this occupant has died and its memory is gone: any process may reap the slot */
    uint64_t check;
    uint64_t reserved[2];
};

struct cot_limits_page {
    struct cot_limits_page_header header;
    struct cot_limits_page_gpu gpus[COT_MAX_GPUS];
    struct cot_limits_page_feedback feedback[]; /* [slot_count][gpu_count] */
};

static inline bool cot_limits_page_known(uint32_t version) {
    return version >= COT_LIMITS_PAGE_OLDEST && version <= COT_LIMITS_PAGE_VERSION;
}

static_assert(sizeof(struct cot_limits_page_header) == 64, "page header");
static_assert(sizeof(struct cot_limits_page_gpu) == 128, "page GPU");
static_assert(sizeof(struct cot_limits_page_feedback) == 64, "page feedback");

/* Check word over the words of an entry; never 0, so that a zeroed entry is not valid. */
static inline uint64_t cot_check(const void *entry, uint32_t words) {
    const uint64_t *word = (const uint64_t *)entry;
    uint64_t mix = 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < words; i++) {
        mix ^= word[i];
        mix *= 0xff51afd7ed558ccdull;
        mix ^= mix >> 32;
    }
    return mix | 1;
}
#define COT_GPU_WORDS 15u     /* of struct cot_limits_page_gpu before check */
#define COT_FEEDBACK_WORDS 5u /* of struct cot_limits_page_feedback before check */

/* Identifies a state of a ledger row. */
static inline uint64_t cot_row_signature(uint64_t held, uint64_t freed, uint64_t changes) {
    const uint64_t words[3] = {held, freed, changes};
    return cot_check(words, 3);
}

static inline uint64_t cot_limits_page_bytes(uint32_t slot_count, uint32_t gpu_count) {
    return sizeof(struct cot_limits_page) + (uint64_t)slot_count * gpu_count * sizeof(struct cot_limits_page_feedback);
}
