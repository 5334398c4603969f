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

/* Where a GPU is, as nvmlPciInfo_t says it. */
void nvml_pci(const struct sim_gpu_facts *facts, struct nvml_abi_pci_v3 *pci);

/* One request of the NVML role; payload_bytes gets the length of the payload. */
nvml_abi_return nvml_ask(uint32_t op, uint32_t gpu, uint64_t a, struct sim_reply *reply, void *payload,
                         uint32_t payload_size);

/* The same for a request with arguments. */
nvml_abi_return nvml_ask_whole(const struct sim_request *request, struct sim_reply *reply, void *payload,
                               uint32_t payload_size);

/* How NVML returns a text, and a list: *count gets the number of entries, and too small an array is an error. */
nvml_abi_return nvml_text(char *to, unsigned length, const char *text);
nvml_abi_return nvml_list(unsigned *count, unsigned have, const void *out);

/* Returns an error from the calling function. */
#define NVML_TRY(result)                    \
    do {                                    \
        nvml_abi_return failed_ = (result); \
        if (failed_) return failed_;        \
    } while (0)
#define NVML_REQUIRE(condition, error)  \
    do {                                \
        if (!(condition)) return error; \
    } while (0)

/* Begins an entry point: injected faults, calls before nvmlInit, arguments that are not `good`. */
#define NVML_ENTER(good)                                 \
    if (sim_faults_armed) NVML_TRY(sim_fault(__func__)); \
    NVML_REQUIRE(nvml_facts, NVML_ABI_UNINITIALIZED);    \
    NVML_REQUIRE(good, NVML_ABI_INVALID_ARGUMENT)
/* One with the parameter `device`: declares `gpu`. */
#define NVML_ENTER_BY(find, good) \
    uint32_t gpu;                 \
    NVML_ENTER(true);             \
    NVML_TRY(find(device, &gpu)); \
    NVML_REQUIRE(good, NVML_ABI_INVALID_ARGUMENT)
/* Calls that also work on instances. All others treat an instance as an invalid argument. */
#define NVML_ENTER_ANY(good) NVML_ENTER_BY(nvml_gpu_or_instance, good)
#define NVML_ENTER_GPU(good) NVML_ENTER_BY(nvml_gpu, good)
/* Calls that a GPU divided by MIG does not support. */
#define NVML_UNDIVIDED() NVML_REQUIRE(!nvml_facts->gpus[gpu].divided, NVML_ABI_NOT_SUPPORTED)

/* In an entry point that has `gpu`: its facts, its live state, its health. */
#define NVML_FACTS (&nvml_facts->gpus[gpu])
#define NVML_STATE                              \
    ({                                          \
        struct sim_gpu_state state_;            \
        NVML_TRY(nvml_gpu_state(gpu, &state_)); \
        state_;                                 \
    })
#define NVML_HEALTH                                                                \
    ({                                                                             \
        struct sim_health health_;                                                 \
        struct sim_reply reply_;                                                   \
        NVML_TRY(nvml_ask(SIM_HEALTH, gpu, 0, &reply_, &health_, sizeof health_)); \
        health_;                                                                   \
    })

/* An entry point that reads one value of a GPU. */
#define NVML_VALUE_BY(find, name, type, supported, value) \
    NVML_EXPORT name(nvml_abi_device device, type *out) { \
        NVML_ENTER_BY(find, true);                        \
        NVML_REQUIRE(supported, NVML_ABI_NOT_SUPPORTED);  \
        NVML_REQUIRE(out, NVML_ABI_INVALID_ARGUMENT);     \
        *out = (type)(value);                             \
        return NVML_ABI_SUCCESS;                          \
    }
#define NVML_VALUE(name, type, value) NVML_VALUE_BY(nvml_gpu, name, type, true, value)
/* The same for two values, and for one that is chosen by the number `which`. */
#define NVML_PAIR(name, type, supported, first, second)                \
    NVML_EXPORT name(nvml_abi_device device, type *one, type *other) { \
        NVML_ENTER_GPU(true);                                          \
        NVML_REQUIRE(supported, NVML_ABI_NOT_SUPPORTED);               \
        NVML_REQUIRE(one && other, NVML_ABI_INVALID_ARGUMENT);         \
        *one = (type)(first);                                          \
        *other = (type)(second);                                       \
        return NVML_ABI_SUCCESS;                                       \
    }
#define NVML_CHOSEN(name, good, value)                                        \
    NVML_EXPORT name(nvml_abi_device device, unsigned which, unsigned *out) { \
        NVML_ENTER_GPU(out && (good));                                        \
        *out = (unsigned)(value);                                             \
        return NVML_ABI_SUCCESS;                                              \
    }
