/* Is a stream being captured into a graph? */
#pragma once

#include "../core/engine.h"

#pragma GCC visibility push(hidden)

/* True: what is submitted to the stream is recorded, or refused, and does not run. */
bool cot_is_capturing(abi_stream stream);
/* Is what is submitted recorded? Not on the legacy default stream, where the driver refuses it during a capture of
 * others: a driver that does it all the same takes memory. */
bool cot_is_recording(abi_stream stream);
/* Records the last events of the stream's batches, and waits until no other thread is recording one. */
void cot_close_batches_of(abi_stream stream);

#pragma GCC visibility pop
