/* Compute pages as the agent's arbiter holds them: mapped, guarded against whoever shortens their files, digested.
 * Only the arbiter's thread touches a page that it was given. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../arbiter/arbiter.h"

#define PAGE_ID_BYTES 96

struct page {
    char id[PAGE_ID_BYTES];
    char *map;  /* NULL: it broke */
    int ledger; /* whose locks tell who lives */
    uint32_t slot_count, gpu_count;
    uint32_t gpu[COT_MAX_GPUS]; /* of the arbiter's, for each of the page's */
    int member[COT_MAX_GPUS];   /* index there; -1: none */
    uint32_t container;
    uint32_t bell;      /* as last seen */
    uint32_t rings;     /* since the last heartbeat */
    bool rung;          /* to be reported in this round */
    uint64_t *dead;     /* of each slot: the stamp of an occupant that is known to be gone */
    uint32_t next_slot; /* where the search for the dead goes on */
    const char *broken; /* why it is not used any more */
    struct cot_digest last[COT_MAX_GPUS];
    /* What it had counted before it joined, and what its threads have waited since. */
    uint64_t charged_before_ns[COT_MAX_GPUS], contended_before_ns[COT_MAX_GPUS], throttled_ns[COT_MAX_GPUS];
    uint64_t charged_told_ns[COT_MAX_GPUS], contended_told_ns[COT_MAX_GPUS]; /* and what it had when it was told of */
    uint32_t quiet_beats;  /* heartbeats in a row at which nothing of it waited or was under way */
    bool dropped;          /* of whoever reads plans: one that is to be followed has it no more */
    _Atomic bool released; /* the arbiter's thread will not touch it again */
    struct page *next;
};

/* Catches what a shortened file does to its reader; once, before any page is opened. */
void pages_guard(void);

/* Opens the ledger at `path`, which must be as large as the agent made it, and maps the page in it; or says why not. */
struct page *page_open(const char *id, const char *path, uint32_t slot_count, uint32_t gpu_count, const char **why);
void page_close(struct page *page);

/* Each of these leaves a page that turns out to be shortened broken, and answers false then. */
bool page_bell(struct page *page, uint32_t *bell);
bool page_digest(struct page *page, uint32_t gpu, struct cot_digest *digest);
bool page_read_record(struct page *page, uint32_t gpu, struct cot_lease_record *record);
bool page_publish(struct page *page, uint32_t gpu, struct cot_arbiter *arbiter);
bool page_beat(struct page *page, uint64_t now_ns);
/* Says that its bell is all that will be listened to until then. */
bool page_rest(struct page *page, uint64_t until_ns);
/* Is work under way on this GPU? */
bool page_is_busy(struct page *page, uint32_t gpu, bool *busy);
bool page_record(struct page *page, uint32_t gpu, const struct cot_lease_record *record);
/* Does the order still say what it was told? */
bool page_keeps_order(struct page *page, uint32_t gpu, const struct cot_member *member);
/* Looks, for a few of the slots that say that something is under way, whether their occupants live. */
void page_find_dead(struct page *page);
