/* What of a page's counts is news when it joins: its records and rows outlive the arbiter, and what they say was mostly
 * told before. For the arbiter's thread. */
#pragma once

#include "guarded_pages.h"

/* It was adopted by this record, and has been charged so much by now, what it used since the record included. */
void counted_join(struct page *page, uint32_t gpu, const struct cot_lease_record *record, uint64_t charged_ns,
                  uint64_t now_ns);
/* What it has now is being told. */
void counted_told(struct page *page, uint32_t gpu, const struct cot_member *member);
/* It is wanted no more. */
void counted_leave(const struct page *page);
