/* Memory pools and the memory of graphs: both keep memory that is charged although nothing uses it. */
#pragma once

#include "../../core/engine.h"

#pragma GCC visibility push(hidden)

/* ---- pools.c ---- */
void cot_pools_trim(uint32_t gpu); /* trims all known pools of a GPU and updates their charge */
void cot_pools_read_back(
    void); /* updates the charge: pools give memory back by themselves when a stream synchronizes */
void cot_pools_end(uint32_t gpu); /* the GPU has no context left, and so no memory of destroyed pools */

/* ---- graphs.c ---- */
void cot_graphs_trim(uint32_t gpu);      /* trims what graphs have reserved and do not use, and updates the charge */
void cot_graphs_read_back(uint32_t gpu); /* after contexts have ended, and perhaps graphs with them */

#pragma GCC visibility pop
