/* How much of a page's counts is new when it joins: its records and rows outlive the arbiter, and most of what they say
 * was reported before. For the arbiter's thread. */
#pragma once

#include "guarded_pages.h"

/* The page was adopted by this record; `charged_ns` is its charge by now, including its use since the record. */
void usage_delta_join(struct page *page, uint32_t gpu, const struct cot_lease_record *record, uint64_t charged_ns,
                      uint64_t now_ns);
/* The current counts are being reported. */
void usage_delta_reported(struct page *page, uint32_t gpu, const struct cot_member *member);
/* The page left the plan. */
void usage_delta_leave(const struct page *page);
