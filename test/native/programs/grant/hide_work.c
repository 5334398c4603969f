/* Hides its container's work from the arbiter: hide_work LEDGER none-in-flight|reported|WORD=VALUE PROGRAM ARGUMENTS...
 * Executes the program, while a child writes for each process in the lease page of a grant of one GPU that nothing is
 * in flight, or that a launch is, and uses the GPU all the time; or keeps a word that the container writes at a value.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/shared-memory/lease_page.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* NULL: there is no such word. */
static uint64_t *find_word(void *page, struct cot_lease_row *row, const char *name, size_t length) {
    struct cot_lease_shared *shared = &cot_lease_order_at(page, 0)->shared;
    const struct {
        const char *name;
        uint64_t *word;
    } words[] = {
        {"used_until_ns", &shared->used_until_ns},
        {"awaited", &shared->awaited},
        {"relieved", &shared->relieved},
        {"made", &shared->made},
        {"stamp", &row->stamp},
        {"waiting", &row->waiting},
        {"used_ns", &row->used_ns},
        {"inflight", &row->inflight},
        {"pending_ns", &row->pending_ns},
        {"longest_ns", &row->longest_ns},
        {"launches", &row->launches},
        {"throttled_ns", &row->throttled_ns},
        {"bell_and_slots_used", (uint64_t *)cot_lease_reports_at(page)},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].name) == length && !strncmp(words[i].name, name, length)) return words[i].word;
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    bool reported = !strcmp(argv[2], "reported");
    struct cot_ledger_header header;
    int fd = open(argv[1], O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) return perror(argv[1]), 3;
    uint32_t slots = header.slot_count;
    void *page = mmap(NULL, cot_lease_page_bytes(slots, 1), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      (off_t)cot_lease_page_offset_for(slots, 1));
    if (page == MAP_FAILED) return perror("lease page"), 3;
    const char *equals = strchr(argv[2], '=');
    if (equals && !find_word(page, cot_lease_row_at(page, 1, 0, 0), argv[2], (size_t)(equals - argv[2]))) return 2;
    uint64_t value = equals ? strtoull(equals + 1, NULL, 10) : 0;
    pid_t parent = getpid();
    if (fork() != 0) {
        execvp(argv[3], argv + 3);
        return perror(argv[3]), 127;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 0;
    for (uint64_t from = now_ns(), now;; from = now) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        now = now_ns();
        for (uint32_t slot = 0; slot < slots; slot++) {
            struct cot_lease_row *row = cot_lease_row_at(page, 1, slot, 0);
            if (row->stamp == 0) continue;
            if (equals) {
                uint64_t *word = find_word(page, row, argv[2], (size_t)(equals - argv[2]));
                __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
                continue;
            }
            __atomic_store_n(&row->inflight, reported ? 1 : 0, __ATOMIC_SEQ_CST);
            if (reported) __atomic_fetch_add(&row->used_ns, now - from, __ATOMIC_RELEASE);
        }
    }
}
