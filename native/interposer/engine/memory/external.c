/* Memory of another API (mostly Vulkan) that this process imports: it is charged at the import, as nothing else
 * counts it. Physical memory that a CUDA process exported (cuMemExportToShareableHandle) is charged to that
 * process: the driver accepts it, and nothing else, in cuMemImportFromShareableHandle. */
#include "../../../abi/cuda_arrays.h"
#include "../accounting/grant.h"
#include "../core/driver_calls.h"
#include "blocks/blocks.h"
#include "claims.h"
#include "virtual/vmm.h"

/* The answer counts as long as the import lasts, so a failing call is repeated once, also that which undoes it. */
static bool is_memory_by_handle(const abi_external_handle *from) {
    abi_vmm_handle handle = 0;
    if (from->type != ABI_EXTERNAL_OPAQUE_FD && from->type != ABI_EXTERNAL_DMABUF_FD) return false;
    for (int tries = 0; tries < 2; tries++) {
        if (CALL_REAL(cuMemImportFromShareableHandle, (abi_vmm_handle *, void *, int), &handle,
                      (void *)(intptr_t)from->handle.fd, ABI_HANDLE_POSIX_FD) != ABI_SUCCESS)
            continue;
        for (int releases = 0; releases < 2; releases++) {
            if (CALL_REAL(cuMemRelease, (abi_vmm_handle), handle) == ABI_SUCCESS) break;
        }
        return true;
    }
    return false;
}

abi_result cot_cuImportExternalMemory(abi_external *out, const abi_external_handle *from) {
    typedef abi_external_handle H;
    struct cot_claim claim;
    if (!out || !from) return CALL_REAL(cuImportExternalMemory, (abi_external *, const H *), out, from);
    const H copy = *from; /* the program may change its own meanwhile */
    abi_result result = cot_attach();
    bool by_handle = result == ABI_SUCCESS && is_memory_by_handle(&copy);
    if (result == ABI_SUCCESS) result = cot_claim(by_handle ? 0 : copy.size, &claim);
    if (result != ABI_SUCCESS) return result;
    if (by_handle) claim.root = cot_memory_of_file(copy.handle.fd);
    result = CALL_REAL(cuImportExternalMemory, (abi_external *, const H *), out, &copy);
    cot_claim_end(&claim, result, result == ABI_SUCCESS ? *out : NULL, COT_EXTERNAL);
    return result;
}

abi_result cot_cuDestroyExternalMemory(abi_external memory) {
    struct cot_block block;
    if (!cot_attached() || !cot_blocks_take_latest((uintptr_t)memory, COT_EXTERNAL, &block))
        return CALL_REAL(cuDestroyExternalMemory, (abi_external), memory);
    abi_result result = CALL_REAL(cuDestroyExternalMemory, (abi_external), memory);
    cot_claim_released(result, &block);
    return result;
}
