/* Exported memory, whose charge may outlast the owner's references to it. */
#pragma once

#include "../../../shared-memory/slot_charge.h"
#include "../core/engine.h"

#pragma GCC visibility push(hidden)

#define COT_EXPORTED_LIMIT_NS 30000000000ull /* how long it stays charged if no agent measures */

/* Memory that is charged has been exported. */
void cot_exported_add(uint32_t gpu, uint64_t bytes);
/* In place of cot_release, for such memory. `file` is the descriptor by which it was exported, with its mark (vmm.c);
 * -1: none. */
void cot_exported_release(uint32_t gpu, uint64_t bytes, int file, int mark);
/* Releases what is not to stay charged any more. */
void cot_exported_settle(void);
/* Bytes that stay charged until the agent has measured: of this process, and of dead ones. */
uint64_t cot_exported_pending(uint32_t gpu);

#pragma GCC visibility pop
