/* Physical memory of the virtual memory management API (cuMemCreate): each allocation has a number of its own, which is
 * never reused, and counts the handles, mappings and imports that keep it alive. */
#pragma once

#include "../../core/engine.h"

#pragma GCC visibility push(hidden)

/* An allocation's `root`: 0, or the descriptor by which it was exported last, and its mark. */
#define COT_EXPORTED_AS(file, mark) ((uint64_t)(unsigned)(file) << 32 | (unsigned)(mark))
#define COT_EXPORT_FILE(root) ((int)((root) >> 32))
#define COT_EXPORT_MARK(root) ((int)((root) & UINT32_MAX))

/* In the key of an allocation, and of no handle and no device address. */
#define COT_MEMORY_BIT (1ull << 63)

/* ---- memory_refs.c ---- */

bool cot_memory_ref(uint64_t memory); /* one reference more; false: it is gone */
void cot_memory_unref(
    uint64_t memory); /* one reference less, after the driver's; the last one takes the charge along */

/* ---- vmm.c ---- */

/* The allocation behind a handle, with a reference for the caller; 0: unknown. */
uint64_t cot_memory_of_handle(abi_vmm_handle handle);
/* The allocation of this process that was exported as `file`, or re-exported as it elsewhere, with a reference for the
 * caller; 0: none. */
uint64_t cot_memory_of_file(int file);

/* ---- fabric.c ---- */

/* The same for a fabric handle (64 bytes). */
uint64_t cot_memory_of_fabric(const void *fabric_handle);
void cot_fabric_exported(const void *fabric_handle, uint64_t memory);

#pragma GCC visibility pop
