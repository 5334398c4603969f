/* Charging memory against the grant. A request announces its bytes in this process's slot, checks the sum of all slots
 * against the limit, calls the driver, and then commits or rolls back. */
#pragma once

#include "grant.h"
#include "slots.h"

#pragma GCC visibility push(hidden)

/* True: `bytes` are announced and fit. The caller then calls the driver, and commits or rolls back. */
bool cot_reserve(uint32_t gpu, uint64_t bytes);
/* The same without waiting, and without taking back memory that this process keeps and does not use. */
bool cot_reserve_at_once(uint32_t gpu, uint64_t bytes);
/* The same for a caller that has already `announced` bytes of the same request: it does not wait for these. */
bool cot_reserve_more(uint32_t gpu, uint64_t bytes, uint64_t announced);
void cot_commit(uint32_t gpu, uint64_t reserved, uint64_t charged);
void cot_rollback(uint32_t gpu, uint64_t reserved);
/* The same for a request whose size is known exactly. Where little memory is left its bytes are `charged` before the
 * driver is called. */
bool cot_reserve_exact(uint32_t gpu, uint64_t bytes, bool *charged);
void cot_commit_exact(uint32_t gpu, uint64_t bytes, bool charged);
void cot_rollback_exact(uint32_t gpu, uint64_t bytes, bool charged);
void cot_charge(uint32_t gpu, uint64_t bytes);   /* without a check: the memory is held already */
void cot_release(uint32_t gpu, uint64_t bytes);  /* the driver has freed it */
void cot_announce(uint32_t gpu, uint64_t bytes); /* without a check: it is charged, and about to be released */
bool cot_exceeds_limit(uint32_t gpu);            /* more is charged and announced than the grant has */
void cot_count_denied(uint32_t gpu);             /* counts a refused request */
/* Memory may have been taken although no byte count changed: the agent's measurement of the row is void. */
void cot_mark_changed(uint32_t gpu);
/* What all processes of the container hold and have announced on a GPU. */
uint64_t cot_container_usage(uint32_t gpu);

/* True while this process is checkpointed: its memory is off the GPUs, and every driver call but the checkpoint ones
 * would block. */
static inline bool cot_is_checkpointed(void) {
    return atomic_load(&cot->checkpoint.active);
}

#pragma GCC visibility pop
