/* The limits page: one file per container, written by the agent alone, mapped read-only by the interposer. It is the
 * trusted copy of the grant, and it carries what only the agent can know: what a context costs on this GPU, how the
 * driver rounds, what the driver says that each process really holds.
 *
 * Rules of change: the file never changes its size and is rewritten in place. A GPU entry and a feedback entry end in
 * a check word over their own bytes; a reader that finds it wrong has caught a write half done and reads again. The
 * gate words are single words. Little-endian, 8-byte aligned, no pointers.
 *
 * What a field means, where it lies and how it is written belongs to the version: what changes that raises it. A field
 * may be taken out of `reserved` without that if 0 means what it meant before, for who does not know the field writes
 * 0, and if all is well while others do not read it. `magic`, `version` and `engine` stay where they are for ever: they
 * are read before the version is known. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#define COT_LIMITS_PAGE_MAGIC 0x00314547415f5443ull /* "CT_PAGE1" read as bytes CT_AGE1 */
#ifndef COT_LIMITS_PAGE_VERSION                     /* tests build what comes next */
#define COT_LIMITS_PAGE_VERSION 1u
#endif
#ifndef COT_LIMITS_PAGE_OLDEST
#define COT_LIMITS_PAGE_OLDEST 1u /* versions from here on are read, and kept by who rewrites a page */
#endif
#define COT_MAX_GPUS 16u
#define COT_MAX_SLOTS 4096u

/* page flags */
enum {
    COT_LIMITS_PAGE_ISOLATE_MEMORY = 1, /* memory requests beyond the grant are refused */
    COT_LIMITS_PAGE_HAS_FEEDBACK = 2,   /* some feedback entry says something */
};
enum {
    COT_GPU_RELEASES_LATE = 1, /* freed memory may still be held: it counts until the agent has seen it gone */
};
/* Bits of the gate word; 0 is open. */
enum {
    COT_GATE_OPEN = 0,
    COT_GATE_CLOSED = 1, /* no launch goes */
    COT_GATE_LEASED = 2, /* launches go by the compute page (compute.h) */
};

struct cot_limits_page_header {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;      /* of the whole file */
    uint32_t gpu_count;  /* entries in GPUs[] that are valid, at most COT_MAX_GPUS */
    uint32_t slot_count; /* slots of the ledger and rows of the feedback */
    uint32_t flags;
    uint32_t gate;         /* COT_GATE_* bits: the one word that every launch reads */
    uint64_t generation;   /* grows with every change of a GPU entry */
    uint64_t heartbeat_ns; /* CLOCK_BOOTTIME of the agent's last visit */
    uint32_t engine;       /* number of the engine that processes shall run; 0 = the one that their object came with */
    uint32_t ledger_version;    /* of the ledger beside it, which is not asked itself; 0 = 1 */
    uint64_t lease_page_offset; /* where in the ledger's file the compute page begins; 0 = it has none */
};

struct cot_limits_page_gpu {
    uint8_t uuid[16];
    uint64_t memory_bytes;  /* the grant on this GPU; contexts included */
    uint64_t context_bytes; /* what one context costs, as measured; 0 = not measured */
    uint64_t granule_bytes; /* physical memory comes in pieces of this size; 0 = not measured */
    uint32_t cores_percent; /* 0 = none asked for; who holds launches to it goes by the compute page */
    uint32_t flags;
    uint64_t reserved[9];
    uint64_t check;
};

/* What the agent found out about one slot on one GPU. `stamp` says about which occupant of the slot. */
struct cot_limits_page_feedback {
    uint64_t stamp;
    int64_t residual_bytes; /* held according to the driver, minus charged by the process, when nothing was under way */
    uint64_t released_bytes; /* of slot_gpu.freed: so much has really left the GPU */
    uint64_t signature;  /* cot_row_signature of the row as measured: a negative residual holds only while it does */
    uint64_t dead_stamp; /* this occupant is gone and its memory with it: anybody may reap the slot */
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

/* A mix of all words of an entry before its check word; never 0, so that a zeroed entry is not valid. */
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

/* Tells one state of a ledger row from every other it is likely to meet. */
static inline uint64_t cot_row_signature(uint64_t held, uint64_t freed, uint64_t changes) {
    const uint64_t words[3] = {held, freed, changes};
    return cot_check(words, 3);
}

static inline uint64_t cot_limits_page_bytes(uint32_t slot_count, uint32_t gpu_count) {
    return sizeof(struct cot_limits_page) + (uint64_t)slot_count * gpu_count * sizeof(struct cot_limits_page_feedback);
}
