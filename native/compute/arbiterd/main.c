/* cotenant-arbitrate: runs the arbiter as a process of its own, so that neither pauses of the agent nor a page that a
 * tenant truncates can delay it. Standard input takes plans (plan.h). Standard output has one line of JSON each second
 * and with each plan, a short one if nothing changed since the line before. It exits when standard input ends. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "event_loop.h"

static struct page *known;

static void close_released(void) {
    for (struct page **at = &known; *at;) {
        struct page *page = *at;
        if (!atomic_load(&page->released)) {
            at = &page->next;
            continue;
        }
        *at = page->next;
        page_close(page);
    }
}

static void print_text(const char *text) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    putchar('"');
}

static void print_gpu(const struct gpu_status *gpu, const char *before) {
    printf("%s{\"chargedNs\":%" PRIu64 ",\"contendedNs\":%" PRIu64 ",\"throttledNs\":%" PRIu64 ",\"relieved\":%" PRIu64
           ",\"launches\":%" PRIu64 ",\"overruns\":%" PRIu64 ",\"faults\":%" PRIu64
           ",\"guaranteePpm\":%u,\"limitPpm\":%u,\"high\":%s,\"native\":%s}",
           before, gpu->charged_ns, gpu->contended_ns, gpu->throttled_ns, gpu->relieved, gpu->launches, gpu->overruns,
           gpu->faults, gpu->guarantee_ppm, gpu->limit_ppm, gpu->high ? "true" : "false",
           gpu->native ? "true" : "false");
}

static bool is_same(const struct status *status, const struct status *before) {
    return before && status->plan == before->plan && status->count == before->count &&
           !memcmp(status->page, before->page, status->count * sizeof *status->page);
}

static void print_pages(const struct status *status) {
    printf("\"pages\":[");
    for (uint32_t i = 0; i < status->count; i++) {
        const struct page_status *page = &status->page[i];
        printf("%s{\"id\":", i ? "," : "");
        print_text(page->id);
        printf(",\"join\":%u", page->join);
        if (page->broken) printf(",\"broken\":");
        if (page->broken) print_text(page->broken);
        printf(",\"gpus\":[");
        for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) print_gpu(&page->gpu[gpu], gpu ? "," : "");
        printf("]}");
    }
    printf("]}\n");
}

/* False: the reader has closed its end. */
static bool print_status(void) {
    static struct status *before;
    struct status *status = event_loop_take_status();
    if (!status) return true;
    printf("{\"plan\":%" PRIu64 ",\"lateNs\":%" PRIu64 ",", status->plan, status->late_ns);
    if (is_same(status, before)) printf("\"same\":true}\n");
    else print_pages(status);
    free(before);
    before = status;
    return fflush(stdout) == 0;
}

static void handle_line(const char *line) {
    const char *why;
    struct plan *plan = plan_line(line, &known, &why);
    if (why) {
        printf("{\"problem\":");
        print_text(why);
        printf("}\n");
        fflush(stdout);
    }
    if (plan) event_loop_set_plan(plan);
}

int main(void) {
    static char buffer[1 << 16];
    size_t filled = 0;
    prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    install_page_guard();
    struct pollfd events[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = event_loop_start(), .events = POLLIN}};
    for (;;) {
        close_released();
        int ready = poll(events, 2, -1);
        if (ready < 0 && errno != EINTR) return 1;
        if (ready <= 0) continue;
        if (events[1].revents && !print_status()) return 0;
        if (!events[0].revents) continue;
        ssize_t length = read(STDIN_FILENO, buffer + filled, sizeof buffer - filled - 1);
        if (length <= 0) return 0;
        filled += (size_t)length;
        buffer[filled] = 0;
        char *from = buffer;
        for (char *end; (end = memchr(from, '\n', filled - (size_t)(from - buffer))); from = end + 1) {
            *end = 0;
            handle_line(from);
        }
        filled -= (size_t)(from - buffer);
        memmove(buffer, from, filled);
        if (filled == sizeof buffer - 1) filled = 0; /* no valid line is this long */
    }
}
