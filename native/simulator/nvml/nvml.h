/* Shared by the simulated libnvidia-ml.so.1: the connection to the node, and the prologue of every call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../abi/nvml.h"
#include "../client/client.h"

#define NVML_EXPORT __attribute__((visibility("default"))) nvml_abi_return

extern const struct sim_facts *nvml_facts; /* NULL until nvmlInit */
/* The GPUs that this process may see, by NVML index; the values are the node's indices. */
extern uint32_t nvml_gpus[SIM_MAX_GPUS], nvml_gpu_count;

/* GPU of a handle, or an NVML error. Only visible GPUs have handles. */
nvml_abi_return nvml_gpu(nvml_abi_device device, uint32_t *gpu);
nvml_abi_device nvml_handle(uint32_t gpu);
/* The same for a handle that may also be an instance's. */
nvml_abi_return nvml_gpu_or_instance(nvml_abi_device device, uint32_t *gpu);

/* Live state of a GPU, with those of its instances added up. */
nvml_abi_return nvml_gpu_state(uint32_t gpu, struct sim_gpu_state *state);

/* One request of the NVML role; payload_bytes gets the length of the payload. */
nvml_abi_return nvml_ask(uint32_t op, uint32_t gpu, uint64_t a, struct sim_reply *reply, void *payload,
                         uint32_t payload_size);

/* The same for a request with arguments. */
nvml_abi_return nvml_ask_whole(const struct sim_request *request, struct sim_reply *reply, void *payload,
                               uint32_t payload_size);

#define NVML_ENTER(name)                                                \
    do {                                                                \
        nvml_abi_return fault = sim_faults_armed ? sim_fault(name) : 0; \
        if (fault) return fault;                                        \
        if (!nvml_facts) return NVML_ABI_UNINITIALIZED;                 \
    } while (0)

/* Calls that also work on instances. All others treat an instance as an invalid argument. */
#define NVML_ENTER_ANY(name, device, gpu)                           \
    uint32_t gpu;                                                   \
    NVML_ENTER(name);                                               \
    do {                                                            \
        nvml_abi_return wrong = nvml_gpu_or_instance(device, &gpu); \
        if (wrong) return wrong;                                    \
    } while (0)

/* Calls that a GPU divided by MIG does not support. */
#define NVML_UNDIVIDED(gpu)                                               \
    do {                                                                  \
        if (nvml_facts->gpus[gpu].divided) return NVML_ABI_NOT_SUPPORTED; \
    } while (0)

#define NVML_ENTER_GPU(name, device, gpu)               \
    uint32_t gpu;                                       \
    NVML_ENTER(name);                                   \
    do {                                                \
        nvml_abi_return wrong = nvml_gpu(device, &gpu); \
        if (wrong) return wrong;                        \
    } while (0)
