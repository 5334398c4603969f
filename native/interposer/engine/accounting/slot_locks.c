/* Which processes are alive: a slot is taken as long as its byte of the ledger is locked. The lock belongs to an
 * open file that a mapping keeps open, so closing descriptors does not drop it, and it ends with the memory of the
 * process. Locks work across PID namespaces. Older builds locked by a descriptor, which a program may close: for
 * their slots a free lock proves nothing, so the start time in /proc decides, or the agent where /proc does not
 * show the process. */
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "../../clock.h"
#include "../../libc.h"
#include "../../process_start.h"
#include "exported.h"
#include "grant.h"
#include "slots.h"

/* The inode, read from the link's text: half as costly as stat of its target. */
uint64_t cot_pid_namespace(void) {
    char text[64];
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/ns/pid", text, sizeof text - 1);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *number = strchr(text, '[');
    return number ? cot_digits(number + 1) : 0;
}

/* Byte N of the file for slot N: locks do not depend on what the bytes mean. */
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
    const struct cot_limits_page *page = cot_mapped_limits_page();
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_limits_page_feedback entry = page->feedback[slot * cot_gpu_count() + gpu];
        if (entry.dead_stamp == stamp && entry.check == cot_check(&entry, COT_FEEDBACK_WORDS)) return true;
    }
    return false;
}

static bool is_dead(uint32_t index, const struct cot_slot *slot, uint64_t stamp) {
    static _Atomic uint64_t own_namespace;
    if (marked_dead(index, stamp)) return true;
    /* On a GPU that frees memory late, only the agent knows when a dead process's memory is free. */
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_gpu_limits limits;
        cot_read_limits(gpu, &limits);
        if (limits.releases_late) return false;
    }
    if (!atomic_load(&own_namespace)) atomic_store(&own_namespace, cot_pid_namespace());
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST);
    if (pid == 0) return true; /* its process died while taking the slot: it would hold the lock otherwise */
    if (slot->lock_stamp == stamp) return true;
    if (slot->pid_namespace != atomic_load(&own_namespace)) return false;
    return !cot_started_at(pid, slot->start_ticks);
}

bool cot_other_process(uint32_t than) {
    int fd = cot_ledger_fd();
    for (uint32_t i = 0, used = cot_slots_used(); i < used; i++) {
        uint64_t stamp = __atomic_load_n(&cot_slot_at(i)->stamp, __ATOMIC_ACQUIRE);
        if (i != than && stamp && cot_slot_at(i)->state == COT_SLOT_LIVE &&
            ((cot_attached() && i == cot->at.slot) || is_locked(fd, i) || !is_dead(i, cot_slot_at(i), stamp)))
            return true;
    }
    return false;
}

/* Word by word: other threads and processes add up the rows meanwhile, without a lock. */
static void write_row(struct cot_slot_gpu *row, const struct cot_slot_gpu *values) {
    uint64_t *to = (uint64_t *)row;
    const uint64_t *from = (const uint64_t *)values;
    for (size_t i = 0; i < sizeof *row / sizeof *to; i++) __atomic_store_n(to + i, from[i], __ATOMIC_SEQ_CST);
}

/* What a dead process had exported may be open in others: it stays charged in its slot until the agent has measured
 * where it is (exported.c). */
static bool keeps_shared(uint32_t index, struct cot_slot *slot, uint64_t stamp) {
    uint64_t shared = 0, now = cot_boottime_ns();
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) shared |= cot_row(index, gpu)->shared;
    if (!shared || marked_dead(index, stamp) || !cot_other_process(index)) return false;
    if (slot->state == COT_SLOT_REAPING) return now >= slot->observers && now - slot->observers < COT_EXPORTED_LIMIT_NS;
    for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) {
        struct cot_slot_gpu *row = cot_row(index, gpu), left = {.held = row->held, .freed = row->freed};
        left.shared = row->shared < row->held ? row->shared : row->held;
        left.held = left.shared;
        write_row(row, &left);
    }
    slot->observers = now;
    __atomic_store_n(&slot->state, COT_SLOT_REAPING, __ATOMIC_RELEASE);
    return true;
}

void cot_reset_reaper(void) {
    atomic_store(&cot->slot_lock.reaping, 0);
}

/* Frees a dead process's slot while holding its byte lock. If this process is killed meanwhile, the next one frees
 * it. Counts are zeroed before the stamp, so no sum misses a charge that is still held. */
static bool free_dead_slot(int fd, uint32_t index, struct cot_slot *slot, uint64_t stamp) {
    if (!cot_lock_slot(fd, index)) return false;
    bool same = __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == stamp;
    bool dead = same && is_dead(index, slot, stamp) && cot_is_ledger(fd);
    dead = dead && !keeps_shared(index, slot, stamp);
    if (dead) {
        const struct cot_slot_gpu empty = {0};
        for (uint32_t gpu = 0; gpu < cot_gpu_count(); gpu++) write_row(cot_row(index, gpu), &empty);
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
        while (atomic_exchange(&cot->slot_lock.reaping, 1)) sched_yield();
        any |= free_dead_slot(fd, i, slot, stamp);
        atomic_store(&cot->slot_lock.reaping, 0);
    }
    return any;
}
