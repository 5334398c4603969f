/* Mappings of physical memory under sparse arrays and arrays of deferred mapping. */
#pragma once

#include "../../core/engine.h"

#pragma GCC visibility push(hidden)

void cot_sparse_array_ending(void *array);           /* before the driver destroys an array */
void cot_sparse_array_ended(void *array, bool gone); /* after it */
void cot_sparse_drop_context(void *context);
void cot_sparse_reassign_context(const void *context, void *successor);

#pragma GCC visibility pop
