/* The ledger: one file per container in which its processes account what they hold. The tenant can write it, so it is
 * advisory: the interposer believes it for the tenant's own sake, the agent compares it with the driver's truth.
 *
 * One slot per process, one row per GPU in it. Each word of a slot has one writer, the slot's process (all its
 * threads, hence atomic); others only read. Nothing is locked and no total is stored: what the container holds is the
 * sum over slots, so there is nothing to repair after a SIGKILL. The order of changes (announce, then act; charge
 * before un-announce; un-charge after the driver's free) makes every crash leave too much in the books, never too
 * little, until the slot is reaped.
 *
 * A slot is taken by locking its byte of the file, then setting `stamp`. Free: stamp is 0. The kernel drops the lock
 * when the process dies; where `life` says so, for no other reason. */
#pragma once

#include <assert.h>
#include <stdint.h>

#include "limits_page.h"

#define COT_LEDGER_MAGIC 0x00315245474c5443ull
#ifndef COT_LEDGER_VERSION
#define COT_LEDGER_VERSION 1u
#endif
#define COT_LEDGER_OLDEST \
    1u /* as of the page; the rules above are part of the version, for all processes follow them */

struct cot_ledger_header {
    uint64_t magic;
    uint32_t version;
    uint32_t gpu_count, slot_count;
    uint32_t slots_used; /* no slot at or above this index was ever taken; readers bound it by slot_count */
    uint64_t unknown;    /* entry points that an interposer does not know, looked up by the container's processes */
    uint64_t reserved[4];
};

struct cot_slot {
    uint64_t stamp;          /* CLOCK_BOOTTIME when the slot was taken, made odd; 0 = free. Names the occupant */
    uint32_t pid;            /* in its own PID namespace; 0 while the slot is being taken */
    uint32_t state;          /* COT_SLOT_* */
    uint64_t start_ticks;    /* field 22 of /proc/PID/stat */
    uint64_t pid_namespace;  /* inode of /proc/PID/ns/pid */
    uint64_t image;          /* tells two programs apart that one process ran, before and after an exec */
    uint64_t observers;      /* COT_OBSERVER_*: who watched it when the slot was taken */
    uint32_t engine;         /* number of the engine that the process runs; 0 = not told */
    uint32_t engine_refused; /* the last one that it was to run and could not; 0 = none since one could */
    uint64_t life;           /* the stamp again: this occupant's lock is held by its memory, and goes with it alone */
};
enum { COT_OBSERVER_DEBUGGER = 1, COT_OBSERVER_PROFILER = 2 };
enum { COT_SLOT_LIVE = 0, COT_SLOT_REAPING = 1 };

/* What a container counts as a whole, per GPU, because it must outlive the process that counted. */
struct cot_ledger_total {
    uint64_t denied; /* requests refused because of the grant */
    uint64_t reserved[7];
};

/* All in bytes unless named otherwise. held = everything charged; context, managed and pool say of what it consists. */
#define COT_PENDING_GRAIN 4096ull /* announced is always a multiple of it */
#define COT_IN_FLIGHT 1ull        /* one request that is charged already, while its call lasts */

struct cot_slot_gpu {
    uint64_t held;
    uint64_t pending; /* announced, not yet decided; below COT_PENDING_GRAIN: requests charged before their call */
    uint64_t freed;   /* un-charged so far, ever */
    uint64_t context; /* part of held */
    uint64_t managed; /* part of held; no process list of the driver shows it */
    uint64_t pool;    /* part of held: reserved by stream-ordered pools and for graphs */
    uint64_t changes; /* grows where something may have changed although no other word did */
    uint64_t reserved;
};

static inline uint32_t cot_ledger_version(const struct cot_limits_page_header *page) {
    return page->ledger_version ? page->ledger_version : 1;
}

static inline bool cot_ledger_known(uint32_t version) {
    return version >= COT_LEDGER_OLDEST && version <= COT_LEDGER_VERSION;
}

static_assert(sizeof(struct cot_ledger_header) == 64, "ledger header");
static_assert(sizeof(struct cot_slot) == 64, "slot");
static_assert(sizeof(struct cot_slot_gpu) == 64, "slot GPU");
static_assert(sizeof(struct cot_ledger_total) == 64, "ledger total");

/* Layout: header, totals[gpu_count], then slot_count times a slot and its rows[gpu_count]. */
static inline uint64_t cot_ledger_slots_offset(uint32_t gpu_count) {
    return sizeof(struct cot_ledger_header) + gpu_count * sizeof(struct cot_ledger_total);
}

static inline uint64_t cot_slot_bytes(uint32_t gpu_count) {
    return sizeof(struct cot_slot) + (uint64_t)gpu_count * sizeof(struct cot_slot_gpu);
}
static inline uint64_t cot_ledger_bytes(uint32_t slot_count, uint32_t gpu_count) {
    return cot_ledger_slots_offset(gpu_count) + slot_count * cot_slot_bytes(gpu_count);
}
