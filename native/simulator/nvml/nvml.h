/* Inside of the simulated libnvidia-ml.so.1: the link to the node, and how every call begins. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../abi/nvml.h"
#include "../client/client.h"

#define NVML_EXPORT __attribute__((visibility("default"))) nvml_abi_return

extern const struct sim_facts *nvml_facts; /* NULL until nvmlInit */
/* The cards that this process may see, by index; their numbers are the node's. */
extern uint32_t nvml_cards[SIM_MAX_CARDS], nvml_card_count;

/* Card of a handle, or an NVML return. Handles exist for cards that may be seen. */
nvml_abi_return nvml_card(nvml_abi_device device, uint32_t *card);
nvml_abi_device nvml_handle(uint32_t card);
/* The same of a handle that may also be an instance's. */
nvml_abi_return nvml_card_or_instance(nvml_abi_device device, uint32_t *card);

/* Its live readings, those of its instances added up. */
nvml_abi_return nvml_card_state(uint32_t card, struct sim_card_state *state);

/* One request of the NVML role; payload_bytes gets the length of what came. */
nvml_abi_return nvml_ask(uint32_t op, uint32_t card, uint64_t a, struct sim_reply *reply, void *payload,
                         uint32_t payload_size);

/* The same with a request that says more. */
nvml_abi_return nvml_ask_whole(const struct sim_request *request, struct sim_reply *reply, void *payload,
                               uint32_t payload_size);

#define NVML_ENTER(name)                                                \
    do {                                                                \
        nvml_abi_return fault = sim_faults_armed ? sim_fault(name) : 0; \
        if (fault) return fault;                                        \
        if (!nvml_facts) return NVML_ABI_UNINITIALIZED;                 \
    } while (0)

/* Also for instances. Whatever else is asked of one is an invalid argument. */
#define NVML_ENTER_ANY(name, device, card)                            \
    uint32_t card;                                                    \
    NVML_ENTER(name);                                                 \
    do {                                                              \
        nvml_abi_return wrong = nvml_card_or_instance(device, &card); \
        if (wrong) return wrong;                                      \
    } while (0)

/* Of a divided card the driver tells nothing of the kind. */
#define NVML_UNDIVIDED(card)                                                \
    do {                                                                    \
        if (nvml_facts->cards[card].divided) return NVML_ABI_NOT_SUPPORTED; \
    } while (0)

#define NVML_ENTER_CARD(name, device, card)               \
    uint32_t card;                                        \
    NVML_ENTER(name);                                     \
    do {                                                  \
        nvml_abi_return wrong = nvml_card(device, &card); \
        if (wrong) return wrong;                          \
    } while (0)
