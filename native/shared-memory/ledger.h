/* The usage ledger: one file per container in which its processes count the GPU memory they hold. The container can
 * write it, so it is advisory: the interposer relies on it for the container's own limit, the agent compares it
 * with the driver.
 *
 * Each process has a slot, with a row for each GPU. A word of a slot is written by the slot's process alone (by all
 * its threads, hence atomically); others only read it. There is no lock and no stored total: what the container
 * holds is the sum over its slots, so nothing needs repair after a SIGKILL. The order of changes (announce, then
 * allocate; charge before the announcement is withdrawn; release after the driver's free) makes a crash leave the
 * charge too high, never too low, until the slot is reaped.
 *
 * A process takes a slot by locking its byte of the file, then setting `stamp`; a stamp of 0 means free. The kernel
 * drops the lock when the process dies, and where `lock_stamp` equals `stamp` for no other reason. */
#pragma once

#include <assert.h>
#include <stdint.h>

#include "limits_page.h"

#define COT_LEDGER_MAGIC 0x00315245474c5443ull
#ifndef COT_LEDGER_VERSION
#define COT_LEDGER_VERSION 1u
#endif
#define COT_LEDGER_OLDEST \
    1u /* as for the limits page; the rules above are part of the version, as all processes follow them */

struct cot_ledger_header {
    uint64_t magic;
    uint32_t version;
    uint32_t gpu_count, slot_count;
    uint32_t slots_used; /* slots from here on were never taken; readers bound it by slot_count */
    uint64_t unknown;    /* entry points that processes looked up and the interposer does not know */
    uint64_t reserved[4];
};

struct cot_slot {
    uint64_t stamp;          /* CLOCK_BOOTTIME when the slot was taken, made odd: identifies the occupant; 0: free */
    uint32_t pid;            /* in its own PID namespace; 0 while the slot is being taken */
    uint32_t state;          /* COT_SLOT_* */
    uint64_t start_ticks;    /* field 22 of /proc/PID/stat */
    uint64_t pid_namespace;  /* inode of /proc/PID/ns/pid */
    uint64_t image;          /* identifies the program that the process runs: another one after an exec */
    uint64_t observers;      /* COT_OBSERVER_*: debuggers and profilers when the slot was taken */
    uint32_t engine;         /* number of the engine that the process runs; 0: unknown */
    uint32_t engine_refused; /* number of the last engine that it could not load; 0: none since one worked */
    uint64_t lock_stamp;     /* equals `stamp` if the occupant's lock is held by its memory and ends with that alone */
};
enum { COT_OBSERVER_DEBUGGER = 1, COT_OBSERVER_PROFILER = 2 };
/* Reaping: the process is dead, and held is only what it had shared; `observers` is then the CLOCK_BOOTTIME since when.
 */
enum { COT_SLOT_LIVE = 0, COT_SLOT_REAPING = 1 };

/* Counts of the whole container, per GPU, that outlive its processes. */
struct cot_ledger_total {
    uint64_t denied; /* requests refused because of the grant */
    uint64_t reserved[7];
};

/* In bytes unless stated otherwise. context, managed and pool are parts of held. */
#define COT_PENDING_GRAIN 4096ull /* announced bytes are a multiple of it */
#define COT_IN_FLIGHT 1ull        /* one request that was charged before its driver call, while the call lasts */

struct cot_slot_gpu {
    uint64_t held;
    uint64_t pending; /* announced, not yet decided; below COT_PENDING_GRAIN: number of requests charged before their
                         driver call */
    uint64_t freed;   /* released so far, ever */
    uint64_t context; /* part of held */
    uint64_t managed; /* part of held; not in the driver's process lists */
    uint64_t pool;    /* part of held: reserved by memory pools and for graphs */
    uint64_t changes; /* grows when memory may have changed although no other word did */
    uint64_t shared;  /* part of held: exported to other processes, which may have it open. When the process is dead it
                         stays charged until the agent has measured it elsewhere; 0: a build that does not say */
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
