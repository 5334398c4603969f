/* Parses the agent's plans (plan.h), line by line: which lease pages there are, and what each may use of which GPU. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct plan *current;
static struct planned *last; /* page that `on` lines belong to; NULL: it could not be opened */
static uint32_t gpus_read;
static bool wrong, is_missing;

/* A page that an earlier plan dropped is being closed, even if the arbiter's thread has not seen that yet: a later plan
 * opens it anew. */
static struct page *find(struct page *list, const char *id) {
    while (list && (list->dropped || atomic_load(&list->released) || strcmp(list->id, id) != 0)) list = list->next;
    return list;
}

/* Pages that were opened for this plan only: the arbiter's thread has never seen them. */
static void discard(struct plan *plan) {
    for (uint32_t i = 0; plan && i < plan->count; i++) {
        if (plan->planned[i].is_new) atomic_store(&plan->planned[i].page->released, true);
    }
    free(plan);
}

/* All GPUs of the last page were named, or that page could not be opened. */
static bool is_complete(void) {
    return !last || gpus_read == last->page->gpu_count;
}

static bool is_in(const struct plan *plan, const struct page *page) {
    for (uint32_t i = 0; i < plan->count; i++) {
        if (plan->planned[i].page == page) return true;
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
    if (slots == 0 || slots > COT_MAX_SLOTS || gpus == 0 || gpus > COT_MAX_GPUS)
        return "page: SLOTS or GPUS is out of range";
    bool was_complete = is_complete();
    last = NULL;
    gpus_read = 0;
    if (!was_complete) return "page: the page before it lacks `on` lines";
    if (current->count == sizeof current->planned / sizeof *current->planned) return "page: too many pages";
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
        return "page: an open page cannot change its size";
    } else if (is_in(current, page)) {
        return "page: it is in the plan twice";
    }
    is_missing = !page;
    if (page) last = &current->planned[current->count++];
    if (last) *last = (struct planned){.page = page, .is_new = is_new};
    snprintf(text, sizeof text, "%s: %s", id, why ? why : "");
    return why ? text : NULL;
}

static const char *read_gpu_of_page(const char *line) {
    unsigned gpu, policy, share, limit, weight, high, cap;
    if (sscanf(line, "on %u %u %u %u %u %u %u", &gpu, &policy, &share, &limit, &weight, &high, &cap) != 7 ||
        gpu >= COT_ARBITER_GPUS || policy > COT_POLICY_NATIVE)
        return "on: want GPU POLICY SHARE LIMIT WEIGHT HIGH CAP";
    if (!last) return NULL; /* its page could not be opened */
    if (gpus_read == last->page->gpu_count) return "on: its page has fewer GPUs";
    if (!last->is_new && last->page->gpu[gpus_read] != gpu) return "on: an open page cannot move to another GPU";
    if (last->is_new) last->page->gpu[gpus_read] = gpu;
    last->request[gpus_read++] = (struct cot_request){.policy = (enum cot_policy)policy,
                                                      .share_ppm = share,
                                                      .limit_ppm = limit,
                                                      .weight = weight,
                                                      .high = high != 0,
                                                      .high_cap_ppm = cap};
    return NULL;
}

static const char *read_gpu(const char *line) {
    unsigned gpu, instances;
    if (sscanf(line, "gpu %u %u", &gpu, &instances) != 2 || gpu >= COT_ARBITER_GPUS) return "gpu: want GPU INSTANCES";
    current->instances[gpu] = instances;
    return NULL;
}

static struct plan *finish(struct page *known, const char **why) {
    struct plan *plan = current;
    bool is_whole = is_complete();
    current = NULL;
    last = NULL;
    if (!wrong && is_whole) {
        for (struct page *page = known; page; page = page->next) page->dropped = page->dropped || !is_in(plan, page);
        return plan;
    }
    discard(plan);
    *why = is_whole ? "end: the plan is refused because of invalid lines" : "end: the last page lacks `on` lines";
    return NULL;
}

struct plan *plan_line(const char *line, struct page **known, const char **why) {
    unsigned long long number;
    *why = NULL;
    if (sscanf(line, "plan %llu", &number) == 1) {
        discard(current);
        current = calloc(1, sizeof *current);
        if (!current) abort();
        current->number = number;
        last = NULL;
        wrong = false;
        return NULL;
    }
    if (!current) return *why = "a line before `plan NUMBER`", NULL;
    if (!strcmp(line, "end")) return finish(*known, why);
    is_missing = false;
    if (!strncmp(line, "page ", 5)) *why = read_page(line, known);
    else if (!strncmp(line, "on ", 3)) *why = read_gpu_of_page(line);
    else if (!strncmp(line, "gpu ", 4)) *why = read_gpu(line);
    else *why = "unknown line; want plan, gpu, page, on or end";
    /* A page that cannot be opened does not make the whole plan invalid. */
    wrong = wrong || (*why && !is_missing);
    return NULL;
}
