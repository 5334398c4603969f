/* Health of a simulated GPU: driver events in order, error counts, remapped rows, bytes over links. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../../abi/nvml.h"
#include "node.h"

void health_report_event(struct node *node, uint32_t gpu, uint64_t xid) {
    uint32_t number = atomic_load(&node->facts->newest_event) + 1;
    node->events[number % SIM_EVENTS] =
        (struct sim_driver_event){.number = number, .gpu = gpu, .type = NVML_ABI_EVENT_XID, .data = xid};
    atomic_store(&node->facts->newest_event, number);
    syscall(SYS_futex, &node->facts->newest_event, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

bool health_set(struct gpu *gpu, uint64_t state, uint64_t value) {
    struct sim_health *health = &gpu->health;
    switch (state) {
    case SIM_STATE_THROTTLE: health->throttle = value; return true;
    case SIM_STATE_ECC_CORRECTED_MORE:
    case SIM_STATE_ECC_UNCORRECTED_MORE:
        for (int lifetime = 0; lifetime < 2; lifetime++)
            health->ecc[state == SIM_STATE_ECC_UNCORRECTED_MORE][lifetime] += value;
        return true;
    case SIM_STATE_ROWS_CORRECTED_MORE: health->rows[0] += (uint32_t)value; return true;
    case SIM_STATE_ROWS_UNCORRECTED_MORE: health->rows[1] += (uint32_t)value; return true;
    case SIM_STATE_ROWS_PENDING: health->rows_pending = value != 0; return true;
    case SIM_STATE_ROWS_FAILED: health->rows_failed = value != 0; return true;
    case SIM_STATE_PCIE_RECEIVED_MORE: health->pcie_bytes[0] += value; return true;
    case SIM_STATE_PCIE_SENT_MORE: health->pcie_bytes[1] += value; return true;
    case SIM_STATE_NVLINK_RECEIVED_MORE: health->nvlink_bytes[0] += value; return true;
    case SIM_STATE_NVLINK_SENT_MORE: health->nvlink_bytes[1] += value; return true;
    case SIM_STATE_RESET: /* counts since the driver initialized the GPU */
        gpu->energy_mj = 0;
        gpu->lost = false;
        for (int kind = 0; kind < 2; kind++) health->ecc[kind][0] = 0; /* volatile */
        return true;
    default: return false;
    }
}

static const struct sim_driver_event *next_event(const struct node *node, uint32_t seen) {
    const struct sim_driver_event *next = NULL;
    for (size_t i = 0; i < SIM_EVENTS; i++) {
        const struct sim_driver_event *event = &node->events[i];
        if (event->number > seen && (!next || event->number < next->number)) next = event;
    }
    return next;
}

void answer_health(const struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload) {
    if (request->op == SIM_EVENT) {
        const struct sim_driver_event *event = next_event(node, (uint32_t)request->arg[0]);
        if (event) reply_record(reply, payload, event, sizeof *event);
        return;
    }
    const struct gpu *gpu = &node->gpus[request->gpu];
    struct sim_health health = gpu->health;
    if (gpu->samples[(gpu->sample_next + SIM_SAMPLES - 1) % SIM_SAMPLES].percent == 0)
        health.throttle |= NVML_ABI_CLOCKS_IDLE;
    reply_record(reply, payload, &health, sizeof health);
}
