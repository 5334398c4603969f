/* Bounds what a page costs the arbiter's thread, by time: a tenant can ring without a pause, make its page slow to
 * read, and take record locks by the thousand. A page that has used up its budget is read at the next heartbeat. */
#pragma once

#include "guarded_pages.h"

#define MOST_PAGE_NS 250000ull   /* of a page, from one heartbeat to the next; */
#define MOST_PAGES_NS 3000000ull /* of all pages: beyond it a page may cost ... */
#define LEAST_PAGE_NS 20000ull   /* ... so much */
#define ROUND_NS 10000ull        /* of a round, for the system calls that waking and waiting take */

void budget_charge_reading(struct page *page, uint64_t ns);
bool budget_is_exhausted(const struct page *page);
/* The pages whose rings caused a round pay for the rest of it. */
void budget_charge_round(struct page **pages, uint32_t count, uint64_t ns);
/* With a heartbeat. */
void budget_renew(struct page **pages, uint32_t count);
/* Looks for ended processes of some pages, for a bounded time. */
void budget_find_dead(struct page **pages, uint32_t count, uint64_t now_ns);
