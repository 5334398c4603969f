/* Requests that the driver serves with granules of their own: arrays and imports. */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

struct cot_claim {
    uint32_t gpu;
    void *context;
    uint64_t bytes; /* whole granules; 0: nothing to charge, only to remember */
    uint64_t root;  /* of the block to be */
    bool charged;   /* before the driver's call */
};
/* Reserves `bytes` in the calling thread's context, or returns the error to answer with. */
abi_result cot_claim(uint64_t bytes, struct cot_claim *claim);
/* After the driver's call: adds a block of this key and kind, or gives the reservation up. */
void cot_claim_end(const struct cot_claim *claim, abi_result result, const void *key, uint32_t kind);
/* After the driver was to free a block that was taken from the table: releases its charge, or adds it again. */
void cot_claim_released(abi_result result, const struct cot_block *block);

#pragma GCC visibility pop
