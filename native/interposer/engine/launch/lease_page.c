/* The container's lease page: mapped while a process attaches, unmapped if that fails, and cleared of launches that
 * dead processes left announced. */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../libc.h"
#include "gate.h"

bool cot_lease_page_map(void) {
    uint64_t at = cot->at.page->header.lease_page_offset,
             bytes = cot_lease_page_bytes(cot->at.slot_count, cot->at.gpu_count);
    struct stat info;
    cot->gates = NULL;
    if (at == 0) return true;
    errno = 0;
    if (cot_fstat(cot->at.ledger_fd, &info) != 0 || (uint64_t)info.st_size < at + bytes) return false;
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cot->at.ledger_fd, (off_t)at);
    if (page == MAP_FAILED) return false;
    struct cot_gates *gates =
        mmap(NULL, sizeof *gates, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (gates == MAP_FAILED) {
        munmap(page, bytes);
        return false;
    }
    gates->page = page;
    uint64_t stamp = cot_slot_at(cot->at.slot)->stamp;
    for (uint32_t gpu = 0; gpu < cot->at.gpu_count; gpu++) {
        struct cot_gate *gate = &gates->gate[gpu];
        cot_gate_attach(gate, &cot_default_gate, page, cot->at.slot_count, cot->at.gpu_count, cot->at.slot, gpu, stamp);
    }
    cot->gates = gates;
    return true;
}

void cot_lease_page_unmap(void) {
    struct cot_gates *gates = cot->gates;
    cot->gates = NULL;
    if (!gates) return;
    munmap(gates->page, cot_lease_page_bytes(cot->at.slot_count, cot->at.gpu_count));
    munmap(gates, sizeof *gates);
}

/* The rows of a slot, one for each GPU, lie side by side. */
static bool is_under_way(const struct cot_lease_row *row) {
    bool any = false;
    for (uint32_t gpu = 0; gpu < cot->at.gpu_count; gpu++) {
        any |= __atomic_load_n(&row[gpu].inflight, __ATOMIC_RELAXED) != 0 ||
               __atomic_load_n(&row[gpu].pending_ns, __ATOMIC_RELAXED) != 0;
    }
    return any;
}

/* A process's work on the GPU ends with it, even if its memory is freed later, so this does not wait until the slot
 * may be reaped. No process attaches to a slot whose lock is held here; GPU time that was used stays counted. */
void cot_lease_page_clear_dead(struct cot_gates *gates) {
    uint32_t used = __atomic_load_n(&cot_lease_reports_at(gates->page)->slots_used, __ATOMIC_ACQUIRE);
    if (used > cot->at.slot_count) used = cot->at.slot_count; /* every process of the container can write it */
    int fd = cot_ledger_fd();
    for (uint32_t slot = 0; fd >= 0 && slot < used; slot++) {
        struct cot_lease_row *row = cot_lease_row_at(gates->page, cot->at.gpu_count, slot, 0);
        if (slot == cot->at.slot || !is_under_way(row)) continue;
        while (atomic_exchange(&cot->slot_lock.reaping, 1)) sched_yield();
        if (cot_lock_slot(fd, slot)) {
            for (uint32_t gpu = 0; gpu < cot->at.gpu_count; gpu++) {
                __atomic_store_n(&row[gpu].waiting, 0, __ATOMIC_RELAXED);
                __atomic_store_n(&row[gpu].inflight, 0, __ATOMIC_SEQ_CST);
                __atomic_store_n(&row[gpu].pending_ns, 0, __ATOMIC_SEQ_CST);
            }
            cot_unlock_slot(fd, slot);
        }
        atomic_store(&cot->slot_lock.reaping, 0);
    }
}
