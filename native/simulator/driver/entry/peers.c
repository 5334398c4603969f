/* Access between devices, which no two simulated devices have. */
#include "../sim.h"

enum { PEER_ACCESS_UNSUPPORTED = 217, PEER_ACCESS_NOT_ENABLED = 705 };
enum { MOST_LINK_ATTRIBUTE = 5 };

static bool is_device(abi_device device) {
    return device >= 0 && device < sim.device_count;
}

SIM_EXPORT abi_result cuDeviceCanAccessPeer(int *can, abi_device device, abi_device peer) {
    SIM_ENTER("cuDeviceCanAccessPeer");
    if (!is_device(device) || !is_device(peer)) return ABI_ERROR_INVALID_DEVICE;
    if (!can) return ABI_ERROR_INVALID_VALUE;
    *can = 0;
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuCtxEnablePeerAccess(struct sim_context *peer, unsigned flags) {
    SIM_ENTER("cuCtxEnablePeerAccess");
    SIM_CURRENT(context);
    if (peer == context || !SIM_LOCKED(sim_is_context(peer))) return ABI_ERROR_INVALID_CONTEXT;
    return flags ? ABI_ERROR_INVALID_VALUE : PEER_ACCESS_UNSUPPORTED;
}

SIM_EXPORT abi_result cuCtxDisablePeerAccess(struct sim_context *peer) {
    SIM_ENTER("cuCtxDisablePeerAccess");
    SIM_CURRENT(context);
    return SIM_LOCKED(sim_is_context(peer)) ? PEER_ACCESS_NOT_ENABLED : ABI_ERROR_INVALID_CONTEXT;
}

SIM_EXPORT abi_result cuDeviceGetP2PAttribute(int *value, int attribute, abi_device from, abi_device to) {
    SIM_ENTER("cuDeviceGetP2PAttribute");
    if (!is_device(from) || !is_device(to) || from == to) return ABI_ERROR_INVALID_DEVICE;
    if (!value || attribute < 1 || attribute > MOST_LINK_ATTRIBUTE) return ABI_ERROR_INVALID_VALUE;
    *value = 0;
    return ABI_SUCCESS;
}
