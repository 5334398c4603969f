/* How GPUs are attached: to the host, and to one another by NVLink. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

/* What two GPUs have in common. */
NVML_EXPORT nvmlDeviceGetTopologyCommonAncestor(nvml_abi_device device, nvml_abi_device other, int *level) {
    uint32_t peer;
    NVML_ENTER_GPU(level);
    NVML_TRY(nvml_gpu(other, &peer));
    const struct sim_gpu_facts *one = NVML_FACTS, *two = &nvml_facts->gpus[peer];
    *level = gpu == peer                            ? NVML_ABI_COMMON_BOARD
             : one->numa != two->numa               ? NVML_ABI_COMMON_SYSTEM
             : one->pcie_switch != two->pcie_switch ? NVML_ABI_COMMON_NUMA_NODE
                                                    : NVML_ABI_COMMON_SWITCH;
    return NVML_ABI_SUCCESS;
}

/* One bit for each NUMA node; `scope`: 0 nodes, 1 sockets, which are nodes here. */
NVML_EXPORT nvmlDeviceGetMemoryAffinity(nvml_abi_device device, unsigned size, unsigned long *nodes, unsigned scope) {
    NVML_ENTER_GPU(size && nodes && scope <= 1);
    memset(nodes, 0, size * sizeof *nodes);
    const uint32_t numa = NVML_FACTS->numa, bits = 8 * sizeof *nodes;
    if (numa / bits < size) nodes[numa / bits] = 1ul << numa % bits;
    return NVML_ABI_SUCCESS;
}

/* Links to GPUs come first, then those to switches. */
static nvml_abi_return remote_end(uint32_t gpu, unsigned link, uint32_t *peer) {
    const struct sim_gpu_facts *facts = NVML_FACTS;
    unsigned links = 0;
    for (*peer = 0; *peer < SIM_MAX_GPUS; (*peer)++) {
        links += facts->nvlinks[*peer];
        if (link < links) return NVML_ABI_SUCCESS;
    }
    links += facts->nvswitch_links;
    NVML_REQUIRE(links, NVML_ABI_NOT_SUPPORTED);
    return link < links ? NVML_ABI_SUCCESS : NVML_ABI_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlDeviceGetNvLinkState(nvml_abi_device device, unsigned link, unsigned *active) {
    uint32_t peer;
    NVML_ENTER_GPU(active);
    NVML_TRY(remote_end(gpu, link, &peer));
    *active = 1;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetNvLinkRemoteDeviceType(nvml_abi_device device, unsigned link, unsigned *type) {
    uint32_t peer;
    NVML_ENTER_GPU(type);
    NVML_TRY(remote_end(gpu, link, &peer));
    *type = peer < SIM_MAX_GPUS ? NVML_ABI_LINK_GPU : NVML_ABI_LINK_SWITCH;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_abi_device device, unsigned link, struct nvml_abi_pci_v3 *pci) {
    static const struct sim_gpu_facts nvswitch = {.pci_bus = 0xc0, .pci_id = 0x22a310de};
    uint32_t peer;
    NVML_ENTER_GPU(pci);
    NVML_TRY(remote_end(gpu, link, &peer));
    nvml_pci(peer < SIM_MAX_GPUS ? &nvml_facts->gpus[peer] : &nvswitch, pci);
    return NVML_ABI_SUCCESS;
}
