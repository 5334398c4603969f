/* What the simulated libraries and the commands share: the connection to their node, requests, injected faults. */
#pragma once

#include <stddef.h>

#include "../protocol.h"

/* Connects to the node of the library that contains `own_symbol` (DIR/lib/NAME -> DIR/node.sock; without that socket,
 * the node of SIM_DEFAULT_DIR). Returns the socket, or -1. The caller closes the two descriptors. */
int sim_link_open(const void *own_symbol, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd);

/* The same for the node of a folder. On failure errno says why; EPROTO: the node uses another version of the protocol.
 */
int sim_link_connect(const char *folder, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd);

/* Sends one request and receives its reply; -1 when the node is gone, else 0 (the node's result is in reply->result).
 * Up to two descriptors come back in `fds`. `payload` may be NULL when none is expected. The caller locks. */
int sim_link_exchange(int fd, const struct sim_request *request, int passed_fd, struct sim_reply *reply, char *payload,
                      size_t payload_size, int *fds, int *fd_count);

/* The GPUs that this process may see, in the node's order; returns how many. If DIR/gpus exists it stands for the
 * device nodes: a GPU is visible if it has a file named by its UUID there. */
uint32_t sim_visible_gpus(const void *own_symbol, const struct sim_facts *facts, uint32_t gpus[SIM_MAX_GPUS]);

/* That channel for fabric handles, or with -1 the first one, if this process may use its file in DIR/imex-channels,
 * which stands for the channels of IMEX; else -1. */
int sim_imex_channel(const void *own_symbol, int channel);

/* The UUID of a GPU or instance as the driver's tools write it. */
void sim_uuid_text(const struct sim_gpu_facts *gpu, char text[SIM_UUID_TEXT]);

/* Faults by symbol, from COTENANT_SIM_FAULTS="cuMemAlloc_v2=2@3x1,nvmlInit_v2=9": the 3rd call of the first returns 2,
 * once; every call of the second returns 9. Armed until the environment has been read. */
extern int sim_faults_armed;
int sim_fault(const char *symbol); /* 0 = none */

/* A fault at a given call, whatever its symbol: the file at COTENANT_SIM_PLAN, shared with the test, says at which call
 * from now on the driver fails, kills the process or stops, before it does anything. */
enum { SIM_PLAN_FAIL, SIM_PLAN_DIE, SIM_PLAN_PAUSE };
struct sim_plan {
    _Atomic uint32_t calls; /* counted by the driver, including calls made by a library in front of it */
    _Atomic uint32_t at;    /* the action happens when `calls` reaches this; 0 = never */
    _Atomic uint32_t met;   /* the action happened; a pause ends when this is 0 again */
    uint32_t act;           /* SIM_PLAN_*: the call returns `result`, the process dies, or it pauses */
    int32_t result;
    char symbol[64]; /* of that call */
};
