/* What both simulated libraries need to speak with their node: finding it, one request at a time, injected faults. */
#pragma once

#include <stddef.h>

#include "../protocol.h"

/* Connects to the node that owns the library which `own_symbol` lies in (DIR/lib/NAME -> DIR/node.sock; where there is
 * none, that of SIM_DEFAULT_DIR) and says hello. Returns the socket, or -1. The caller closes the two descriptors. */
int sim_link_open(const void *own_symbol, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd);

/* One request and its reply on `fd`; -1 when the node is gone, else 0 (the node's answer is in reply->result). Up to
 * two descriptors come back in `fds`. `payload` may be NULL when none is expected. The caller locks. */
int sim_link_exchange(int fd, const struct sim_request *request, int passed_fd, struct sim_reply *reply, char *payload,
                      size_t payload_size, int *fds, int *fd_count);

/* The GPUs that this process may see, in the node's order; returns how many. Where DIR/gpus exists, it stands for the
 * device nodes: a GPU is seen when a file with its UUID's name is there. */
uint32_t sim_visible_gpus(const void *own_symbol, const struct sim_facts *facts, uint32_t gpus[SIM_MAX_GPUS]);

/* A GPU's or an instance's UUID as the driver's tools write it. */
void sim_uuid_text(const struct sim_gpu_facts *gpu, char text[SIM_UUID_TEXT]);

/* Faults per symbol, from COTENANT_SIM_FAULTS="cuMemAlloc_v2=2@3x1,nvmlInit_v2=9": the 3rd call of the first answers 2,
 * once; every call of the second answers 9. Armed until the environment has been read. */
extern int sim_faults_armed;
int sim_fault(const char *symbol); /* 0 = none */

/* The same at a point of time: the file at COTENANT_SIM_PLAN, shared with whoever plans, says at which call from now
 * on, whatever its symbol, something happens before the driver does anything. */
enum { SIM_PLAN_FAIL, SIM_PLAN_DIE, SIM_PLAN_PAUSE };
struct sim_plan {
    _Atomic uint32_t calls; /* counted by the driver, those that a library in front of it makes included */
    _Atomic uint32_t at;    /* something happens when `calls` gets there; 0 = nothing */
    _Atomic uint32_t met;   /* it has happened; a pause ends when this is 0 again */
    uint32_t act;           /* SIM_PLAN_*: the call answers `result`, the process dies, or it stands still */
    int32_t result;
    char symbol[64]; /* whose call it was */
};
