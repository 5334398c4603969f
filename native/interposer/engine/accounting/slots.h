/* The usage ledger: slots of the container's processes, their rows for each GPU, and the locks that show which of those
 * processes are alive. */
#pragma once

#include <limits.h>

#include "../../../shared-memory/ledger.h"
#include "../core/engine.h"

#pragma GCC visibility push(hidden)

static inline struct cot_slot *cot_slot_at(uint32_t slot) {
    uint64_t first = cot_ledger_slots_offset(cot->at.gpu_count);
    return (struct cot_slot *)(cot->at.ledger + first + slot * cot->at.slot_bytes);
}
static inline struct cot_slot_gpu *cot_row(uint32_t slot, uint32_t gpu) {
    return (struct cot_slot_gpu *)(cot_slot_at(slot) + 1) + gpu;
}
static inline struct cot_slot_gpu *cot_own_row(uint32_t gpu) {
    return cot_row(cot->at.slot, gpu);
}
static inline uint32_t cot_slots_used(void) {
    uint32_t used = __atomic_load_n(&((const struct cot_ledger_header *)cot->at.ledger)->slots_used, __ATOMIC_SEQ_CST);
    return used < cot->at.slot_count ? used : cot->at.slot_count;
}
static inline struct cot_ledger_total *cot_gpu_total(uint32_t gpu) {
    return (struct cot_ledger_total *)(cot->at.ledger + sizeof(struct cot_ledger_header)) + gpu;
}

/* ---- ledger_file.c ---- */

/* A path in the folder of the grant. One buffer serves all its files, so that the stack grows by one path only. */
struct cot_grant_path {
    char path[PATH_MAX];
    size_t folder_length;
};
bool cot_find_grant_folder(struct cot_grant_path *path);
/* The path of a file there; NULL: too long. */
const char *cot_path_in_grant(struct cot_grant_path *path, const char *name);
/* Opens with a high descriptor number, out of the way of programs that count theirs. */
int cot_open_high(const char *path, int flags);
/* A descriptor of the ledger for file locks, reopened if the program closed it; -1. */
int cot_ledger_fd(void);
bool cot_is_ledger(int fd);

/* ---- slot_locks.c ---- */

uint64_t cot_pid_namespace(void);      /* inode of this process's PID namespace; 0: unknown */
bool cot_reap(void);                   /* frees slots of dead processes; true if there were any */
bool cot_other_process(uint32_t than); /* is there a living process of the container with another slot? */
void cot_reset_reaper(void);           /* for a child that was forked while its parent was reaping */
bool cot_lock_slot(int fd, uint32_t slot);
void cot_unlock_slot(int fd, uint32_t slot);

/* ---- observers.c: debuggers and profilers of this process, COT_OBSERVER_* ---- */
uint64_t cot_observers(void);

#pragma GCC visibility pop
