/* What pages used while no report named them: counted when they are reported again, once and within bounds. */
#include "usage_delta.h"

#include <string.h>

#define MAX_UNREPORTED_NS 2000000000ull /* the longest time between two statuses that is accounted for */
#define COUNT_ON_NS \
    60000000000ull /* absence of an arbiter up to which use still counts: a replaced one is back sooner */
#define MAX_REMEMBERED 64u

/* What was last reported of pages that left: what they use afterwards is reported when they are back. */
static struct departed {
    char id[PAGE_ID_BYTES];
    uint64_t charged_ns[COT_MAX_GPUS], contended_ns[COT_MAX_GPUS];
} departed[MAX_REMEMBERED];
static uint32_t departed_count;

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

void usage_delta_leave(const struct page *page) {
    struct departed *to = &departed[departed_count++ % MAX_REMEMBERED];
    memcpy(to->id, page->id, sizeof to->id);
    memcpy(to->charged_ns, page->charged_reported_ns, sizeof to->charged_ns);
    memcpy(to->contended_ns, page->contended_reported_ns, sizeof to->contended_ns);
}

/* The page's most recent departure. */
static const struct departed *find_departed(const struct page *page) {
    for (uint32_t i = 1; i <= departed_count && i <= MAX_REMEMBERED; i++) {
        const struct departed *one = &departed[(departed_count - i) % MAX_REMEMBERED];
        if (!strcmp(one->id, page->id)) return one;
    }
    return NULL;
}

/* Up to where use was already reported: the record, or what this process reported last, which may be a little before or
 * after the record. */
static uint64_t reported_up_to(const uint64_t *status_ns, uint64_t recorded_ns, uint64_t now_has_ns) {
    if (!status_ns || *status_ns > now_has_ns) return recorded_ns;
    return *status_ns < recorded_ns ? recorded_ns - smaller(recorded_ns - *status_ns, MAX_UNREPORTED_NS) : *status_ns;
}

/* What it used since its record counts, unless no arbiter has run for long. */
void usage_delta_join(struct page *page, uint32_t gpu, const struct cot_lease_record *record, uint64_t charged_ns,
                      uint64_t now_ns) {
    const struct departed *one = find_departed(page);
    uint64_t charged = reported_up_to(one ? &one->charged_ns[gpu] : NULL, record->charged_ns, charged_ns);
    uint64_t contended =
        reported_up_to(one ? &one->contended_ns[gpu] : NULL, record->contended_ns, record->contended_ns);
    bool is_recent = record->at_ns >= now_ns || now_ns - record->at_ns < COUNT_ON_NS;
    uint64_t since = charged_ns - record->charged_ns;
    if (!is_recent) charged += smaller(since, charged_ns - charged);
    uint64_t most = COUNT_ON_NS + MAX_UNREPORTED_NS;
    page->charged_before_ns[gpu] = page->charged_reported_ns[gpu] = charged_ns - smaller(charged_ns - charged, most);
    page->contended_before_ns[gpu] = page->contended_reported_ns[gpu] = contended;
}

void usage_delta_reported(struct page *page, uint32_t gpu, const struct cot_member *member) {
    page->charged_reported_ns[gpu] = member->charged_ns;
    page->contended_reported_ns[gpu] = member->contended_ns;
}
