/* Mappings of physical memory under sparse arrays and arrays of deferred mapping. */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

void cot_tiles_leave(void *array);           /* before the driver destroys an array */
void cot_tiles_left(void *array, bool gone); /* after it */
void cot_tiles_drop_context(void *context);
void cot_tiles_pass_context(const void *context, void *heir);

#pragma GCC visibility pop
