/* Receives the requests of clients and answers those of the CUDA role. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../abi/cuda.h"
#include "../state/queues.h"
#include "requests.h"

void client_end(struct node *node, struct client *client) {
    if (client->fd < 0) return;
    /* The time that its kernels ran until now counts as used; nothing of its queue runs after its end. */
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
        timeline_advance(node, &node->gpus[i], node_now_ns());
        timeline_remove(&node->gpus[i], client);
        channel_close(&client->channel[i]);
    }
    epoll_ctl(node->epoll_fd, EPOLL_CTL_DEL, client->fd, NULL);
    close(client->fd);
    client->fd = -1;
    memory_release_all(node, client);
}

static void reply_with(struct client *client, const struct sim_reply *reply, const char *payload, const int *fds,
                       int fd_count) {
    struct iovec parts[2] = {{(void *)reply, sizeof *reply}, {(void *)payload, reply->payload_bytes}};
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = reply->payload_bytes ? 2 : 1};
    if (fd_count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)fd_count * sizeof(int));
    }
    /* A client that does not read its replies loses them; it cannot block the node. */
    if (sendmsg(client->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) return;
}

static int process_step(struct node *node, struct client *client, uint64_t step) {
    static const struct {
        int from, to;
    } STEPS[] = {
        [SIM_PROCESS_LOCK] = {ABI_PROCESS_RUNNING, ABI_PROCESS_LOCKED},
        [SIM_PROCESS_CHECKPOINT] = {ABI_PROCESS_LOCKED, ABI_PROCESS_CHECKPOINTED},
        [SIM_PROCESS_RESTORE] = {ABI_PROCESS_CHECKPOINTED, ABI_PROCESS_LOCKED},
        [SIM_PROCESS_UNLOCK] = {ABI_PROCESS_LOCKED, ABI_PROCESS_RUNNING},
    };
    if (step == SIM_PROCESS_GET_STATE) return ABI_SUCCESS;
    if (step > SIM_PROCESS_UNLOCK) return ABI_ERROR_INVALID_VALUE;
    if (client->process_state != STEPS[step].from) return ABI_ERROR_ILLEGAL_STATE;
    int result = step == SIM_PROCESS_CHECKPOINT ? memory_checkpoint(node, client)
                 : step == SIM_PROCESS_RESTORE  ? memory_restore(node, client)
                                                : ABI_SUCCESS;
    if (result == ABI_SUCCESS) client->process_state = STEPS[step].to;
    return result;
}

static void answer_process(struct node *node, const struct client *caller, const struct sim_request *request,
                           struct sim_reply *reply) {
    struct client *client = node->clients;
    while (client && (client->role != SIM_ROLE_CUDA || client->fd < 0 ||
                      pid_seen_by(caller, client) != (uint32_t)request->arg[0]))
        client = client->next;
    reply->result = client ? process_step(node, client, request->arg[1]) : ABI_ERROR_INVALID_VALUE;
    if (client) reply->arg[0] = (uint64_t)client->process_state;
}

static void reply_block(struct sim_reply *reply, const struct block *block) {
    reply->arg[0] = block->id;
    reply->arg[1] = block->bytes;
    reply->arg[2] = block->gpu;
}

static void answer_cuda(struct node *node, struct client *client, const struct sim_request *request, int passed_fd,
                        struct sim_reply *reply, int *fds, int *fd_count) {
    uint32_t gpu = request->gpu;
    struct block *block = NULL;
    struct stat info = {0};
    if (gpu >= node->facts->gpu_count) {
        reply->result = ABI_ERROR_INVALID_DEVICE;
        return;
    }
    switch (request->op) {
    case SIM_CONTEXT_NEW:
        reply->result = memory_new_context(node, client, gpu, &block);
        if (reply->result != ABI_SUCCESS) return;
        reply->arg[0] = block->id;
        int fd = channel_open(&client->channel[gpu]);
        if (fd >= 0) fds[(*fd_count)++] = fd;
        return;
    case SIM_ALLOCATE:
        if (request->arg[1] == SIM_KIND_CONTEXT || request->arg[1] >= SIM_KIND_COUNT ||
            (request->arg[1] == SIM_KIND_VMM && (passed_fd < 0 || fstat(passed_fd, &info) != 0))) {
            reply->result = ABI_ERROR_INVALID_VALUE;
            return;
        }
        reply->result = memory_allocate(node, client, gpu, request->arg[0], (uint32_t)request->arg[1], &block);
        if (reply->result != ABI_SUCCESS) return;
        block->device = info.st_dev;
        block->inode = info.st_ino;
        reply_block(reply, block);
        return;
    case SIM_CONTEXT_END:
    case SIM_RELEASE:
    case SIM_RETAIN:
        block = memory_find(node, request->arg[0]);
        reply->result = !block                      ? ABI_ERROR_INVALID_VALUE
                        : request->op == SIM_RETAIN ? memory_retain(client, block)
                                                    : memory_release(node, client, block);
        return;
    case SIM_IMPORT:
        if (passed_fd >= 0 && fstat(passed_fd, &info) == 0) block = memory_find_file(node, info.st_dev, info.st_ino);
        reply->result = block ? memory_retain(client, block) : ABI_ERROR_INVALID_VALUE;
        if (reply->result == ABI_SUCCESS) reply_block(reply, block);
        return;
    case SIM_SHARE:
        block = memory_find(node, request->arg[0]);
        reply->result = block ? memory_share(client, block, passed_fd) : ABI_ERROR_INVALID_VALUE;
        return;
    case SIM_SHARE_FILE:
        reply->result =
            passed_fd >= 0 ? memory_share_file(node, client, gpu, passed_fd, &block) : ABI_ERROR_INVALID_VALUE;
        if (reply->result == ABI_SUCCESS) reply_block(reply, block);
        return;
    case SIM_OPEN_SHARED:
        block = memory_find(node, request->arg[0]);
        reply->result = block ? memory_open_shared(client, block, request->arg[1]) : ABI_ERROR_INVALID_VALUE;
        if (reply->result != ABI_SUCCESS) return;
        reply_block(reply, block);
        fds[(*fd_count)++] = block->shared_fd;
        return;
    case SIM_HOST_DONE:
        queues_host_done(&client->channel[gpu], request->arg[0]);
        timeline_advance(node, &node->gpus[gpu], node_now_ns());
        return;
    case SIM_PROCESS: answer_process(node, client, request, reply); return;
    case SIM_MEMORY: {
        uint64_t hard, capacity = limits_available(node, client, gpu, &hard), usable = gpu_usable(node, gpu);
        reply->arg[0] = atomic_load(&node->facts->gpus[gpu].used_bytes);
        reply->arg[1] = usable - reply->arg[0] < capacity ? usable - reply->arg[0] : capacity;
        reply->arg[2] = usable < hard ? usable : hard;
        return;
    }
    default: reply->result = ABI_ERROR_NOT_SUPPORTED;
    }
}

static void answer_hello(struct node *node, struct client *client, const struct sim_request *request,
                         struct sim_reply *reply, int *fds, int *fd_count) {
    client->role = (uint32_t)request->arg[0];
    client->types = (uint32_t)request->arg[1] & (SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS | SIM_TYPE_MPS);
    client->encoder_percent = SIM_VIDEO_ENCODER(request->arg[1]);
    client->decoder_percent = SIM_VIDEO_DECODER(request->arg[1]);
    if (client->role == SIM_ROLE_CUDA) client->group = group_of(node, client->pid);
    reply->arg[0] = SIM_PROTOCOL;
    fds[(*fd_count)++] = node->facts_fd;
    fds[(*fd_count)++] = node->doorbell_fd;
}

#define MAX_PASSED 4

/* Receives a request and the descriptors passed with it; returns the result of recvmsg. */
static ssize_t receive(const struct client *client, struct sim_request *request, int passed[MAX_PASSED],
                       int *passed_count) {
    struct iovec part = {request, sizeof *request};
    union {
        char bytes[CMSG_SPACE(MAX_PASSED * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t length = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    *passed_count = 0;
    if (length <= 0) return length;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) && *passed_count < MAX_PASSED; i++)
            memcpy(&passed[(*passed_count)++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
    }
    return length;
}

/* Answers one request per call: a request that was sent after a process died must not be answered before the daemon has
 * noticed that death, and the event loop handles all deaths before it answers any request sent by then. */
void client_readable(struct node *node, struct client *client) {
    static char payload[SIM_MAX_PAYLOAD];
    if (client->fd < 0) return;
    struct sim_request request = {0};
    int passed[MAX_PASSED], passed_count;
    ssize_t length = receive(client, &request, passed, &passed_count);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (length <= 0) {
        client_end(node, client);
        return;
    }
    struct sim_reply reply = {0};
    int fds[2], fd_count = 0;
    if ((size_t)length < sizeof request) reply.result = ABI_ERROR_INVALID_VALUE;
    else if (request.op == SIM_HELLO) answer_hello(node, client, &request, &reply, fds, &fd_count);
    else if (client->role == SIM_ROLE_CUDA)
        answer_cuda(node, client, &request, passed_count ? passed[0] : -1, &reply, fds, &fd_count);
    else if (client->role == SIM_ROLE_NVML) answer_nvml(node, client, &request, &reply, payload);
    else if (client->role == SIM_ROLE_CONTROL) answer_control(node, &request, &reply, payload);
    else reply.result = ABI_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < passed_count; i++) close(passed[i]);
    reply_with(client, &reply, payload, fds, fd_count);
}
