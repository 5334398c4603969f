#include "usage_delta.h"

#include <string.h>

#define UNTOLD_NS 2000000000ull    /* most that is told of the time between two lines */
#define COUNT_ON_NS 60000000000ull /* without an arbiter: one that is replaced is back sooner */
#define MOST_LEFT 64u

/* What was told last of pages that left: what came after that is told when they are back. */
static struct left {
    char id[PAGE_ID_BYTES];
    uint64_t charged_ns[COT_MAX_GPUS], contended_ns[COT_MAX_GPUS];
} left[MOST_LEFT];
static uint32_t left_count;

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

void counted_leave(const struct page *page) {
    struct left *to = &left[left_count++ % MOST_LEFT];
    memcpy(to->id, page->id, sizeof to->id);
    memcpy(to->charged_ns, page->charged_told_ns, sizeof to->charged_ns);
    memcpy(to->contended_ns, page->contended_told_ns, sizeof to->contended_ns);
}

/* As it left last. */
static const struct left *left_of(const struct page *page) {
    for (uint32_t i = 1; i <= left_count && i <= MOST_LEFT; i++) {
        const struct left *one = &left[(left_count - i) % MOST_LEFT];
        if (!strcmp(one->id, page->id)) return one;
    }
    return NULL;
}

/* Up to where it is told: by its record, but where this process told of it last, by that, which may be a little before
 * its record or after it. */
static uint64_t told_up_to(const uint64_t *told_ns, uint64_t recorded_ns, uint64_t now_has_ns) {
    if (!told_ns || *told_ns > now_has_ns) return recorded_ns;
    return *told_ns < recorded_ns ? recorded_ns - smaller(recorded_ns - *told_ns, UNTOLD_NS) : *told_ns;
}

/* What it used since its record is news, unless nobody has held it to anything for long. */
void counted_join(struct page *page, uint32_t gpu, const struct cot_lease_record *record, uint64_t charged_ns,
                  uint64_t now_ns) {
    const struct left *one = left_of(page);
    uint64_t charged = told_up_to(one ? &one->charged_ns[gpu] : NULL, record->charged_ns, charged_ns);
    uint64_t contended = told_up_to(one ? &one->contended_ns[gpu] : NULL, record->contended_ns, record->contended_ns);
    bool is_recent = record->at_ns >= now_ns || now_ns - record->at_ns < COUNT_ON_NS;
    uint64_t since = charged_ns - record->charged_ns;
    if (!is_recent) charged += smaller(since, charged_ns - charged);
    uint64_t most = COUNT_ON_NS + UNTOLD_NS;
    page->charged_before_ns[gpu] = page->charged_told_ns[gpu] = charged_ns - smaller(charged_ns - charged, most);
    page->contended_before_ns[gpu] = page->contended_told_ns[gpu] = contended;
}

void counted_told(struct page *page, uint32_t gpu, const struct cot_member *member) {
    page->charged_told_ns[gpu] = member->charged_ns;
    page->contended_told_ns[gpu] = member->contended_ns;
}
