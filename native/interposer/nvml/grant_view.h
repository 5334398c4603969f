/* What the NVML object knows of the container: the grant and what is held, both read-only. It shares no state with the
 * CUDA object: a monitoring tool may load NVML alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../abi/nvml.h"
#include "../../shared-memory/ledger.h"

#define VIEW_NO_CARD UINT32_MAX

struct view_card {
    uint64_t memory_bytes, held_bytes;
    bool isolate;
};
struct view_process {
    uint32_t pid; /* as the caller counts pids */
    uint64_t bytes;
};

/* False: there is no readable grant beside this object, and nothing may be told about the card's memory. */
bool view_ready(void);
uint32_t view_card_count(void);
bool view_uuid_of(uint32_t card, char *text); /* "GPU-..." of a granted card, 41 bytes */
/* The card of the grant with this identifier; false: not granted. */
bool view_find(const char *uuid, uint32_t *card);
void view_card_now(uint32_t card, struct view_card *out);

/* The most entries that view_processes writes. */
uint32_t view_most_processes(void);
/* The container's living processes that this one can see, each once, with what they count for on `card`
 * (VIEW_NO_CARD: with 0); their number. */
uint32_t view_processes(uint32_t card, struct view_process *out);
