#include "capture.h"

#include "../core/driver_calls.h"

bool cot_is_capturing(abi_stream stream) {
    int status = ABI_CAPTURE_NONE;
    return CALL_DRIVER("cuStreamIsCapturing", (abi_stream, int *), stream, &status) == ABI_SUCCESS &&
           status == ABI_CAPTURE_ACTIVE;
}
