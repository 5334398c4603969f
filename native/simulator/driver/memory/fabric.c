/* Fabric handles: 64 bytes that name memory by handle, as a block of the node, or a pool, whose pointers say the rest.
 * A program that makes or opens one needs a channel: a file of DIR/imex-channels, which stands for
 * /dev/nvidia-caps-imex-channels. */
#include <string.h>
#include <unistd.h>

#include "../sim.h"

#define FABRIC_MAGIC 0x43495242414653ull
#define POOL_MAGIC 0x4c4f4f50414653ull

struct place {
    uint64_t magic, block, channel, number; /* of a pool the GPU in place of the block */
};

int sim_fabric_allowed(int device) {
    if (device < 0 || sim.facts->gpus[sim.gpu_of[device]].cc_major < SIM_FABRIC_CC) return ABI_ERROR_NOT_SUPPORTED;
    return sim_imex_channel(&sim, -1) < 0 ? ABI_ERROR_NOT_PERMITTED : ABI_SUCCESS;
}

/* Each time another one, in each process: NVIDIA promises nothing of the contents. */
static void write_place(uint64_t magic, uint64_t block, void *out) {
    static _Atomic uint32_t number;
    struct place place = {magic, block, (uint64_t)sim_imex_channel(&sim, -1), (uint64_t)getpid() << 32 | ++number};
    memset(out, 0, sizeof(abi_ipc_handle));
    memcpy(out, &place, sizeof place);
}

static int read_place(uint64_t magic, const void *from, uint64_t *block) {
    struct place place;
    if (!from) return ABI_ERROR_INVALID_VALUE;
    memcpy(&place, from, sizeof place);
    if (place.magic != magic) return ABI_ERROR_INVALID_VALUE;
    if (sim_imex_channel(&sim, (int)place.channel) < 0) return ABI_ERROR_NOT_PERMITTED;
    *block = place.block;
    return ABI_SUCCESS;
}

int sim_fabric_export(struct sim_physical *physical, void *out) {
    struct sim_request request = {.op = SIM_SHARE, .arg = {physical->block}};
    struct sim_reply reply;
    SIM_TRY(sim_fabric_allowed(physical->device));
    if (!physical->shared) SIM_TRY(sim_request(&request, physical->memfd, &reply, NULL));
    physical->shared = true;
    write_place(FABRIC_MAGIC, physical->block, out);
    return ABI_SUCCESS;
}

int sim_fabric_import(const void *from, struct sim_reply *reply, int *memfd) {
    struct sim_request request = {.op = SIM_OPEN_SHARED, .arg = {0, true}};
    SIM_TRY(read_place(FABRIC_MAGIC, from, &request.arg[0]));
    return sim_request(&request, -1, reply, memfd);
}

int sim_fabric_export_pool(int device, void *out) {
    SIM_TRY(sim_fabric_allowed(device));
    write_place(POOL_MAGIC, sim.gpu_of[device], out);
    return ABI_SUCCESS;
}

int sim_fabric_import_pool(const void *from, uint32_t *gpu) {
    uint64_t place;
    SIM_TRY(read_place(POOL_MAGIC, from, &place));
    *gpu = (uint32_t)place;
    return ABI_SUCCESS;
}
