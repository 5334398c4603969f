/* Is a stream being captured into a graph? */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* True: what is submitted to the stream is recorded and does not run. */
bool cot_is_capturing(abi_stream stream);

#pragma GCC visibility pop
