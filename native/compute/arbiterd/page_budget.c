#include "page_budget.h"

#define MOST_LOOKS_NS 500000ull /* from one heartbeat to the next */

static uint64_t spent_ns;   /* by all pages */
static uint64_t reading_ns; /* in this round, already charged */

static void charge(struct page *page, uint64_t ns) {
    page->spent_ns += ns;
    spent_ns += ns;
}

void budget_charge_reading(struct page *page, uint64_t ns) {
    charge(page, ns);
    reading_ns += ns;
}

bool budget_is_exhausted(const struct page *page) {
    return page->spent_ns >= MOST_PAGE_NS || (spent_ns >= MOST_PAGES_NS && page->spent_ns >= LEAST_PAGE_NS);
}

void budget_charge_round(struct page **pages, uint32_t count, uint64_t ns) {
    uint32_t causes = 0;
    uint64_t rest = (ns > reading_ns ? ns - reading_ns : 0) + ROUND_NS;
    reading_ns = 0;
    for (uint32_t i = 0; i < count; i++) causes += pages[i]->caused_round;
    for (uint32_t i = 0; causes && i < count; i++) {
        if (pages[i]->caused_round) charge(pages[i], rest / causes);
        pages[i]->caused_round = false;
    }
}

void budget_renew(struct page **pages, uint32_t count) {
    spent_ns = 0;
    for (uint32_t i = 0; i < count; i++) pages[i]->spent_ns = 0;
}

void budget_find_dead(struct page **pages, uint32_t count, uint64_t now_ns) {
    static uint32_t next;
    uint64_t took = 0;
    for (uint32_t i = 0; i < count && took < MOST_LOOKS_NS; i++) {
        struct page *page = pages[next++ % count];
        if (page->quiet_beats == 0) took += page_find_dead(page, now_ns);
    }
}
