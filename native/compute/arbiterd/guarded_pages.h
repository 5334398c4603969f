/* Lease pages as the arbiter's process maps them: guarded against truncation, and digested. Once a page is in a plan,
 * only the arbiter's thread touches it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../arbiter/arbiter.h"

#define PAGE_ID_BYTES 96

struct page {
    char id[PAGE_ID_BYTES];
    char *map;  /* NULL: it is broken */
    int ledger; /* its locks show which processes run */
    uint32_t slot_count, gpu_count;
    uint32_t gpu[COT_MAX_GPUS]; /* index in the arbiter, for each GPU of the page */
    int member[COT_MAX_GPUS];   /* member index there; -1: none */
    uint32_t container;
    uint32_t bell;      /* last value seen */
    uint64_t spent_ns;  /* of the arbiter's time, since the last heartbeat */
    bool rung;          /* to be digested in this round */
    bool caused_round;  /* by its bell */
    uint64_t *dead;     /* by slot: the stamp of a process that is known to have ended */
    uint32_t next_slot; /* where the search for ended processes continues, */
    uint64_t look_ns;   /* not before this time */
    const char *broken; /* why the page is no longer used */
    struct cot_digest last[COT_MAX_GPUS];
    /* What was counted before it joined; what its threads have waited since, and launches that were let go. */
    uint64_t charged_before_ns[COT_MAX_GPUS], contended_before_ns[COT_MAX_GPUS], throttled_ns[COT_MAX_GPUS],
        relieved[COT_MAX_GPUS];
    uint64_t charged_reported_ns[COT_MAX_GPUS], contended_reported_ns[COT_MAX_GPUS]; /* as of its last status */
    uint32_t quiet_beats;  /* heartbeats in a row without anything waiting or in flight */
    bool dropped;          /* for the reader of plans: a later plan does not have it */
    _Atomic bool released; /* the arbiter's thread no longer uses it */
    struct page *next;
};

/* Installs the signal handler for accesses to truncated files; once, before any page is opened. */
void install_page_guard(void);

/* Opens the ledger at `path`, which must be as large as the agent made it, and maps its lease page; NULL: *why says why
 * not. */
struct page *page_open(const char *id, const char *path, uint32_t slot_count, uint32_t gpu_count, const char **why);
void page_close(struct page *page);

/* Each of these returns false, and marks the page broken, if the file was truncated. */
bool page_bell(struct page *page, uint32_t *bell);
bool page_digest(struct page *page, uint32_t gpu, struct cot_digest *digest);
bool page_read_record(struct page *page, uint32_t gpu, struct cot_lease_record *record);
bool page_publish(struct page *page, uint32_t gpu, struct cot_arbiter *arbiter);
bool page_heartbeat(struct page *page, uint64_t now_ns);
/* Announces that until then only its bell will wake the arbiter. */
bool page_announce_idle(struct page *page, uint64_t until_ns);
/* Whether work is in flight on this GPU. */
bool page_is_busy(struct page *page, uint32_t gpu, bool *busy);
bool page_record(struct page *page, uint32_t gpu, const struct cot_lease_record *record);
/* Whether the page still has the order that was published. */
bool page_has_order(struct page *page, uint32_t gpu, const struct cot_member *member);
/* Checks for a few slots with work in flight whether their processes still run. Returns how long that took; it takes a
 * small part of the time at most, and a page for which a look takes much too long is given up. */
uint64_t page_find_dead(struct page *page, uint64_t now_ns);
