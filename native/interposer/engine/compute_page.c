/* The compute page of a process: mapped while it attaches, given back when that failed. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gates.h"

bool cot_gates_join(void) {
    uint64_t at = cot->at.page->header.compute_at, bytes = cot_compute_bytes(cot->at.slot_count, cot->at.card_count);
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
    for (uint32_t card = 0; card < cot->at.card_count; card++) {
        struct cot_gate *gate = &gates->gate[card];
        cot_gate_attach(gate, &cot_default_gate, page, cot->at.slot_count, cot->at.card_count, cot->at.slot, card,
                        stamp);
        gate->others = gates->gate;
        gate->others_count = cot->at.card_count;
    }
    cot->gates = gates;
    return true;
}

void cot_gates_leave(void) {
    struct cot_gates *gates = cot->gates;
    cot->gates = NULL;
    if (!gates) return;
    munmap(gates->page, cot_compute_bytes(cot->at.slot_count, cot->at.card_count));
    munmap(gates, sizeof *gates);
}
