/* Who is alive: a slot belongs to the living as long as its byte of the ledger is locked. A free lock alone proves
 * nothing (a program may have closed all its descriptors), so the start time decides where /proc shows the process, and
 * the agent where it does not (another PID namespace): it marks the slot in the page. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cot.h"

static off_t lock_byte(uint32_t slot) {
    return (
        off_t)slot; /* which bytes they are does not matter: locks and contents have nothing to do with each other */
}

bool cot_lock_slot(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = lock_byte(slot), .l_len = 1};
    return fcntl(fd, F_SETLK, &lock) == 0;
}

void cot_unlock_slot(int fd, uint32_t slot) {
    struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = lock_byte(slot), .l_len = 1};
    fcntl(fd, F_SETLK, &lock);
}

static bool marked_dead(uint32_t slot, uint64_t stamp) {
    const struct cot_page *page = cot_page_now();
    for (uint32_t card = 0; card < cot_card_count(); card++) {
        struct cot_page_feedback entry = page->feedback[slot * cot_card_count() + card];
        if (entry.dead_stamp == stamp && entry.check == cot_check(&entry, COT_FEEDBACK_WORDS)) return true;
    }
    return false;
}

static bool is_dead(uint32_t index, const struct cot_slot *slot, uint64_t stamp) {
    static _Atomic uint64_t own_namespace;
    if (marked_dead(index, stamp)) return true;
    /* Where memory leaves the card late, only the agent can tell that the dead one's is gone. */
    for (uint32_t card = 0; card < cot_card_count(); card++) {
        struct cot_limits limits;
        cot_limits(card, &limits);
        if (limits.releases_late) return false;
    }
    struct stat info;
    if (!atomic_load(&own_namespace) && cot_stat("/proc/self/ns/pid", &info) == 0)
        atomic_store(&own_namespace, info.st_ino);
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST);
    if (pid == 0) return true; /* died while taking it: the lock would be held otherwise */
    if (slot->pid_namespace != atomic_load(&own_namespace)) return false;
    return cot_start_ticks(pid) != slot->start_ticks;
}

/* Holding the slot's byte lock makes its death ours to note; a process killed in the middle of this leaves a slot that
 * the next one reaps. Counts go to zero before the stamp does, so no sum ever misses a charge that is still held. */
bool cot_reap(void) {
    bool any = false;
    int fd = cot_ledger_fd();
    bool have_slot = cot_attached();
    for (uint32_t i = 0, used = cot_slots_used(); i < used; i++) {
        struct cot_slot *slot = (struct cot_slot *)cot_slot_at(i);
        uint64_t stamp = __atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE);
        if (stamp == 0 || (have_slot && i == cot_own_slot()) || !cot_lock_slot(fd, i)) continue;
        if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == stamp && is_dead(i, slot, stamp)) {
            for (uint32_t card = 0; card < cot_card_count(); card++) {
                memset(cot_row(i, card), 0, sizeof(struct cot_slot_card));
            }
            __atomic_store_n(&slot->pid, 0, __ATOMIC_SEQ_CST);
            __atomic_store_n(&slot->stamp, 0, __ATOMIC_SEQ_CST);
            any = true;
        }
        cot_unlock_slot(fd, i);
    }
    return any;
}
