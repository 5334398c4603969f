/* Fabric handles of memory by handle: 64 bytes that name a block of the node. Who makes or opens one needs a channel:
 * a file of DIR/imex-channels, which stands for /dev/nvidia-caps-imex-channels. */
#include <string.h>
#include <unistd.h>

#include "../sim.h"

#define FABRIC_MAGIC 0x43495242414653ull

struct place {
    uint64_t magic, block, channel, number;
};

int sim_fabric_allowed(int device) {
    if (device < 0 || sim.facts->gpus[sim.gpu_of[device]].cc_major < SIM_FABRIC_CC) return ABI_ERROR_NOT_SUPPORTED;
    return sim_imex_channel(&sim, -1) < 0 ? ABI_ERROR_NOT_PERMITTED : ABI_SUCCESS;
}

/* Each time another one: NVIDIA promises nothing of the contents. */
int sim_fabric_export(struct sim_physical *physical, void *out) {
    static uint64_t number;
    struct place place = {FABRIC_MAGIC, physical->block, (uint64_t)sim_imex_channel(&sim, -1), ++number};
    struct sim_request request = {.op = SIM_SHARE, .arg = {physical->block}};
    struct sim_reply reply;
    SIM_TRY(sim_fabric_allowed(physical->device));
    if (!physical->shared) SIM_TRY(sim_request(&request, physical->memfd, &reply, NULL));
    physical->shared = true;
    memset(out, 0, sizeof(abi_ipc_handle));
    memcpy(out, &place, sizeof place);
    return ABI_SUCCESS;
}

int sim_fabric_import(const void *from, struct sim_reply *reply, int *memfd) {
    struct place place;
    if (!from) return ABI_ERROR_INVALID_VALUE;
    memcpy(&place, from, sizeof place);
    if (place.magic != FABRIC_MAGIC) return ABI_ERROR_INVALID_VALUE;
    if (sim_imex_channel(&sim, (int)place.channel) < 0) return ABI_ERROR_NOT_PERMITTED;
    struct sim_request request = {.op = SIM_OPEN_SHARED, .arg = {place.block, true}};
    return sim_request(&request, -1, reply, memfd);
}
