/* A tenant that tries to keep the arbiter busy: hostile_page LEDGER SLOTS LOCKS. Takes so many record locks on its
 * ledger, shows work in flight in every row of its lease page (one GPU), prints "ready", and then rings without a
 * pause. */
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../../native/shared-memory/lease_page.h"

#define FIRST_LOCK 4096 /* behind those of slots */

static bool lock_byte(int fd, long at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (argc != 4) return 2;
    uint32_t slots = (uint32_t)atoi(argv[2]);
    int fd = open(argv[1], O_RDWR | O_CLOEXEC);
    void *page = mmap(NULL, cot_lease_page_bytes(slots, 1), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                      (off_t)cot_lease_page_offset_for(slots, 1));
    if (fd < 0 || page == MAP_FAILED) return 1;
    /* From the last one on: each is then the first in the kernel's list. */
    for (long i = atol(argv[3]); i > 0; i--) {
        if (!lock_byte(fd, FIRST_LOCK + 2 * i)) return 1;
    }
    struct cot_lease_reports *reports = cot_lease_reports_at(page);
    reports->slots_used = slots;
    for (uint32_t slot = 0; slot < slots; slot++) {
        struct cot_lease_row *row = cot_lease_row_at(page, 1, slot, 0);
        row->waiting = row->inflight = 1;
        row->stamp = slot + 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        __atomic_fetch_add(&reports->bell, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &reports->bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}
