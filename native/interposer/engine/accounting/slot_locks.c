/* Who is alive: a slot belongs to the living as long as its byte of the ledger is locked. The lock belongs to an open
 * file that a mapping keeps open, so no close drops it, and it ends with the memory of the process: wherever that is,
 * for locks know no PID namespaces. Of occupants that older builds locked by a descriptor a free lock proves nothing (a
 * program may have closed all of its descriptors): there the start time decides where /proc shows the process, and the
 * agent where it does not. */
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "../../libc.h"
#include "../../process_start.h"
#include "grant.h"
#include "slots.h"

/* Its inode, which the kernel also writes into the name that this leads to: reading that costs half as much as looking
 * at what it leads to. */
uint64_t cot_pid_namespace(void) {
    char text[64];
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", text, sizeof text - 1);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *number = strchr(text, '[');
    return number ? cot_digits(number + 1) : 0;
}

/* Which bytes they are does not matter: locks and contents have nothing to do with each other. */
bool cot_lock_slot(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void cot_unlock_slot(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    fcntl(fd, F_OFD_SETLK, &lock);
}

/* By another open file than this one. */
static bool is_locked(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool marked_dead(uint32_t slot, uint64_t stamp) {
    const struct cot_limits_page *page = cot_page_now();
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_limits_page_feedback entry = page->feedback[slot * cot_gpu_count() + gpu];
        if (entry.dead_stamp == stamp && entry.check == cot_check(&entry, COT_FEEDBACK_WORDS)) return true;
    }
    return false;
}

static bool is_dead(uint32_t index, const struct cot_slot *slot, uint64_t stamp) {
    static _Atomic uint64_t own_namespace;
    if (marked_dead(index, stamp)) return true;
    /* Where memory leaves the GPU late, only the agent can tell that the dead one's is gone. */
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_limits limits;
        cot_limits(gpu, &limits);
        if (limits.releases_late) return false;
    }
    if (!atomic_load(&own_namespace)) atomic_store(&own_namespace, cot_pid_namespace());
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST);
    if (pid == 0) return true; /* died while taking it: the lock would be held otherwise */
    if (slot->life == stamp) return true;
    if (slot->pid_namespace != atomic_load(&own_namespace)) return false;
    return cot_start_ticks(pid) != slot->start_ticks;
}

void cot_reap_anew(void) {
    atomic_store(&cot->lives.burying, 0);
}

/* Holding the slot's byte lock makes its death ours to note; a process killed in the middle of this leaves a slot that
 * the next one reaps. Counts go to zero before the stamp does, so no sum ever misses a charge that is still held. */
static bool bury(int fd, uint32_t index, struct cot_slot *slot, uint64_t stamp) {
    if (!cot_lock_slot(fd, index)) return false;
    bool same = __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == stamp;
    bool dead = same && is_dead(index, slot, stamp) && cot_is_ledger(fd);
    if (dead) {
        for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
            memset(cot_row(index, gpu), 0, sizeof(struct cot_slot_gpu));
        }
        __atomic_store_n(&slot->pid, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->stamp, 0, __ATOMIC_SEQ_CST);
    }
    cot_unlock_slot(fd, index);
    return dead || !same;
}

bool cot_reap(void) {
    bool any = false, have_slot = cot_attached();
    int fd = cot_ledger_fd();
    for (uint32_t i = 0, used = cot_slots_used(); i < used; i++) {
        struct cot_slot *slot = cot_slot_at(i);
        uint64_t stamp = __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE);
        if (stamp == 0 || (have_slot && i == cot->at.slot) || is_locked(fd, i)) continue;
        while (atomic_exchange(&cot->lives.burying, 1)) sched_yield();
        any |= bury(fd, i, slot, stamp);
        atomic_store(&cot->lives.burying, 0);
    }
    return any;
}
