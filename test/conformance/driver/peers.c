/* Access between contexts of two devices. */
#define SUBJECT "peers"
#include "../memory.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* A context is no peer of itself, and no device is a peer of itself. */
RULE(self, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess", .calls = "cuCtxEnablePeerAccess") {
    primary_context();
    ONE_OF(cuCtxEnablePeerAccess(current_context(), 0), CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

/* Without a current context there is no peer. */
RULE(without_context, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess, cuCtxDisablePeerAccess",
     .calls = "cuCtxSetCurrent cuCtxEnablePeerAccess cuCtxDisablePeerAccess") {
    primary_context();
    CUcontext mine = current_context();
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(mine, 0));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxDisablePeerAccess(mine));
}

/* A null context is no valid peer. */
RULE(peer_null, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess",
     .calls = "cuCtxEnablePeerAccess") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(NULL, 0));
}

static CUcontext second_device(void) {
    CUcontext context = NULL;
    int count = 0;
    cuDeviceGetCount(&count);
    if (count < 2 || cuDevicePrimaryCtxRetain(&context, 1)) return NULL;
    return context;
}

/* Access is enabled where the device says that it can be, and only there. */
RULE(follows_answer, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess, cuDeviceCanAccessPeer",
     .calls = "cuDeviceCanAccessPeer cuCtxEnablePeerAccess") {
    primary_context();
    CUcontext other = second_device();
    int can = -1;
    NEEDS(other, "needs a second device");
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    TRUE(can == 0 || can == 1);
    EXPECT(can ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(other, 0));
}

/* Access that is enabled is not enabled again. */
RULE(twice, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess",
     .calls = "cuCtxEnablePeerAccess cuCtxDisablePeerAccess") {
    primary_context();
    CUcontext other = second_device();
    NEEDS(other && !cuCtxEnablePeerAccess(other, 0), "needs a second device that can be a peer");
    EXPECT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(other, 0));
    OK(cuCtxDisablePeerAccess(other));
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(other));
}

/* Its flags must be 0. */
RULE(flags, .source = DRIVER_API "Peer Context Memory Access, cuCtxEnablePeerAccess",
     .calls = "cuCtxEnablePeerAccess") {
    primary_context();
    CUcontext other = second_device();
    NEEDS(other, "needs a second device");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(other, 1));
}

/* Access that was not enabled is not disabled. */
RULE(not_enabled, .source = DRIVER_API "Peer Context Memory Access, cuCtxDisablePeerAccess",
     .calls = "cuCtxDisablePeerAccess") {
    primary_context();
    CUcontext other = second_device();
    NEEDS(other, "needs a second device");
    EXPECT(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(other));
}

/* A device that does not exist is an invalid device. */
RULE(unknown_device, .source = DRIVER_API "Peer Context Memory Access, cuDeviceCanAccessPeer",
     .calls = "cuDeviceCanAccessPeer") {
    primary_context();
    int can;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 0, 100));
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&can, 100, 0));
}

/* A device has no link to itself. */
RULE(link_of_one, .source = DRIVER_API "Peer Context Memory Access, cuDeviceGetP2PAttribute",
     .calls = "cuDeviceGetP2PAttribute") {
    primary_context();
    int value;
    EXPECT(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
}

/* An attribute that does not exist, or a null place, is an invalid value. */
RULE(link_attribute, .source = DRIVER_API "Peer Context Memory Access, cuDeviceGetP2PAttribute",
     .calls = "cuDeviceGetP2PAttribute") {
    primary_context();
    int value;
    NEEDS(second_device(), "needs a second device");
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAttribute(&value, 99, 0, 1));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAttribute(NULL, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
}
