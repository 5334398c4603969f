/* The bells of all pages and one of our own, waited for at once. */
#pragma once

#include "guarded_pages.h"

#define BELLS_RINGS 128u /* of a page until the next heartbeat; further ones are looked at then */

/* What bells_wait waits for: that the own word (private to us) or the bell of a page is no longer as it was seen. Pages
 * that are broken, or have rung often enough, are left out. False: somebody else has to be looked at every so often. */
bool bells_gather(uint32_t *own, uint32_t own_seen, struct page **pages, uint32_t count);
/* For `most_ns` at most; notes in its page who rang. */
void bells_wait(uint64_t most_ns);
