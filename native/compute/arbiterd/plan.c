/* Plans, line by line. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct plan *being_read;
static struct want *last; /* page that `on` lines belong to; NULL: one that is not there */
static uint32_t gpus_told;
static bool wrong, not_there;

/* One that a plan before this one has dropped is being given up, also where nobody has come to it yet: whoever wants it
 * again has it opened anew. */
static struct page *find(struct page *list, const char *id) {
    while (list && (list->dropped || atomic_load(&list->released) || strcmp(list->id, id) != 0)) list = list->next;
    return list;
}

/* The arbiter's thread never saw what was opened for this plan: kept, it would be taken for a page that it knows. */
static void discard(struct plan *plan) {
    for (uint32_t i = 0; plan && i < plan->count; i++) {
        if (plan->want[i].is_new) atomic_store(&plan->want[i].page->released, true);
    }
    free(plan);
}

/* Each of its GPUs has been told of, or it is one that is not there. */
static bool is_complete(void) {
    return !last || gpus_told == last->page->gpu_count;
}

static bool is_in(const struct plan *plan, const struct page *page) {
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->want[i].page == page) return true;
    }
    return false;
}

static const char *read_page(const char *line, struct page **known) {
    char id[PAGE_ID_BYTES];
    unsigned slots, gpus;
    int rest = 0;
    static char text[512];
    if (sscanf(line, "page %95s %u %u %n", id, &slots, &gpus, &rest) < 3 || rest == 0 || line[rest] != '/')
        return "page: want ID SLOTS GPUS PATH";
    if (slots == 0 || slots > COT_MAX_SLOTS || gpus == 0 || gpus > COT_MAX_GPUS) return "page: of no such size";
    bool was_complete = is_complete();
    last = NULL;
    gpus_told = 0;
    if (!was_complete) return "page: the one before it has more GPUs";
    if (being_read->count == sizeof being_read->want / sizeof *being_read->want) return "page: too many";
    struct page *page = find(*known, id);
    const char *why = NULL;
    bool is_new = !page;
    if (!page) {
        page = page_open(id, line + rest, slots, gpus, &why);
        if (page) {
            page->next = *known;
            *known = page;
        }
    } else if (page->slot_count != slots || page->gpu_count != gpus) {
        return "page: it had another size";
    } else if (is_in(being_read, page)) {
        return "page: it was named before";
    }
    not_there = !page;
    if (page) last = &being_read->want[being_read->count++];
    if (last) *last = (struct want){.page = page, .is_new = is_new};
    snprintf(text, sizeof text, "%s: %s", id, why ? why : "");
    return why ? text : NULL;
}

static const char *read_gpu_of_page(const char *line) {
    unsigned gpu, policy, share, limit, weight, high, cap;
    if (sscanf(line, "on %u %u %u %u %u %u %u", &gpu, &policy, &share, &limit, &weight, &high, &cap) != 7 ||
        gpu >= COT_ARBITER_GPUS || policy > COT_POLICY_NATIVE)
        return "on: want GPU POLICY SHARE LIMIT WEIGHT HIGH CAP";
    if (!last) return NULL; /* of a page that could not be opened */
    if (gpus_told == last->page->gpu_count) return "on: more GPUs than its page has";
    if (!last->is_new && last->page->gpu[gpus_told] != gpu) return "on: it was on another GPU";
    if (last->is_new) last->page->gpu[gpus_told] = gpu;
    last->request[gpus_told++] = (struct cot_request){.policy = (enum cot_policy)policy,
                                                      .share_ppm = share,
                                                      .limit_ppm = limit,
                                                      .weight = weight,
                                                      .high = high != 0,
                                                      .high_cap_ppm = cap};
    return NULL;
}

static const char *read_gpu(const char *line) {
    unsigned gpu, instances;
    if (sscanf(line, "GPU %u %u", &gpu, &instances) != 2 || gpu >= COT_ARBITER_GPUS) return "GPU: want GPU INSTANCES";
    being_read->instances[gpu] = instances;
    return NULL;
}

static struct plan *finish(struct page *known, const char **why) {
    struct plan *plan = being_read;
    bool is_whole = is_complete();
    being_read = NULL;
    last = NULL;
    if (!wrong && is_whole) {
        for (struct page *page = known; page; page = page->next) page->dropped = page->dropped || !is_in(plan, page);
        return plan;
    }
    discard(plan);
    *why = is_whole ? "a plan with lines that were not understood" : "end: the last page has more GPUs";
    return NULL;
}

struct plan *plan_line(const char *line, struct page **known, const char **why) {
    unsigned long long number;
    *why = NULL;
    if (sscanf(line, "plan %llu", &number) == 1) {
        discard(being_read);
        being_read = calloc(1, sizeof *being_read);
        if (!being_read) abort();
        being_read->number = number;
        last = NULL;
        wrong = false;
        return NULL;
    }
    if (!being_read) return *why = "a line outside of a plan", NULL;
    if (!strcmp(line, "end")) return finish(*known, why);
    not_there = false;
    if (!strncmp(line, "page ", 5)) *why = read_page(line, known);
    else if (!strncmp(line, "on ", 3)) *why = read_gpu_of_page(line);
    else if (!strncmp(line, "GPU ", 4)) *why = read_gpu(line);
    else *why = "no such line";
    /* One page that is not there is no reason to leave the others as they were. */
    wrong = wrong || (*why && !not_there);
    return NULL;
}
