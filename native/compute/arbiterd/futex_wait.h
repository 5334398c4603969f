/* Waits for the bells of all pages and for one futex of this process at once. */
#pragma once

#include "page_budget.h"

/* Prepares futex_wait_any: it returns when `own` or the bell of a page differs from the value last seen. Broken pages,
 * and pages whose budget is exhausted, are left out. False: some pages must be polled. */
bool futex_wait_prepare(uint32_t *own, uint32_t own_seen, struct page **pages, uint32_t count);
/* Waits for at most `most_ns`; marks the page that rang. */
void futex_wait_any(uint64_t most_ns);
