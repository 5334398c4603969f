/* Events of other processes: cuIpcGetEventHandle, cuIpcOpenEventHandle. Their counters are in a file that the daemon
 * keeps under an ID, as the contents of shared memory. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../sim.h"

#define EVENT_MAGIC 0x31544e4556454d53ull
enum { INTERPROCESS = 4, DISABLE_TIMING = ABI_EVENT_DISABLE_TIMING };

struct place {
    uint64_t magic, block;
};

SIM_EXPORT abi_result cuIpcGetEventHandle(abi_ipc_handle *out, abi_event handle) {
    SIM_ENTER("cuIpcGetEventHandle");
    struct sim_event *event = (struct sim_event *)handle;
    if (!event || event->magic != SIM_EVENT_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (!out) return ABI_ERROR_INVALID_VALUE;
    if (!event->shared) return ABI_ERROR_INVALID_HANDLE;
    int result = ABI_SUCCESS;
    pthread_mutex_lock(&sim.lock);
    if (!event->shared_block) {
        struct sim_request request = {.op = SIM_SHARE_FILE, .gpu = event->context->gpu};
        struct sim_reply reply;
        result = sim_request(&request, event->shared_fd, &reply, NULL);
        event->shared_block = reply.arg[0];
    }
    pthread_mutex_unlock(&sim.lock);
    if (result != ABI_SUCCESS) return result;
    memset(out, 0, sizeof *out);
    memcpy(out, &(struct place){EVENT_MAGIC, event->shared_block}, sizeof(struct place));
    return ABI_SUCCESS;
}

SIM_EXPORT abi_result cuIpcOpenEventHandle(abi_event *out, abi_ipc_handle handle) {
    SIM_ENTER("cuIpcOpenEventHandle");
    struct place place;
    SIM_CURRENT(context);
    memcpy(&place, &handle, sizeof place);
    if (!out || place.magic != EVENT_MAGIC) return ABI_ERROR_INVALID_VALUE;
    struct sim_event *event = calloc(1, sizeof *event);
    if (!event) return ABI_ERROR_OUT_OF_MEMORY;
    *event = (struct sim_event){.magic = SIM_EVENT_MAGIC,
                                .context = context,
                                .flags = INTERPROCESS | DISABLE_TIMING,
                                .shared_block = place.block,
                                .shared_fd = -1};
    struct sim_request request = {.op = SIM_OPEN_SHARED, .gpu = context->gpu, .arg = {place.block}};
    struct sim_reply reply;
    int fd = -1, result = sim_request(&request, -1, &reply, &fd);
    if (result == ABI_SUCCESS && !sim_event_map(event, fd)) {
        sim_simple(SIM_RELEASE, context->gpu, place.block, 0, NULL);
        result = ABI_ERROR_MAP_FAILED;
        if (fd >= 0) close(fd);
    }
    if (result != ABI_SUCCESS) {
        free(event);
        return result;
    }
    sim_event_add(event);
    *out = (abi_event)event;
    return ABI_SUCCESS;
}
