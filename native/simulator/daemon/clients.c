/* Processes of a simulated node: who they are (from peer credentials and /proc), what they ask, and their end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../abi/cuda.h"
#include "node.h"

static uint64_t pid_namespace_of(pid_t pid) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return stat(path, &info) == 0 ? info.st_ino : 0;
}

/* The number on the last column of "NSpid:", the process's pid in its own namespace; 0 = cannot tell. */
static uint32_t own_namespace_pid(pid_t pid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    uint32_t found = 0;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:", 6) != 0) continue;
        char *last = strrchr(line, '\t');
        if (last) found = (uint32_t)strtoul(last, NULL, 10);
        break;
    }
    fclose(file);
    return found;
}

static pid_t parent_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    char *end = strrchr(text, ')'); /* the command may hold anything, brackets included */
    int parent = 0;
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1) return 0;
    return parent;
}

static struct group *group_of(struct node *node, pid_t pid) {
    for (int depth = 0; pid > 1 && depth < 64; depth++, pid = parent_of(pid)) {
        for (struct group *group = node->groups; group; group = group->next) {
            if (group->root == pid) return group;
        }
    }
    return NULL;
}

uint32_t pid_seen_by(const struct client *caller, const struct client *client) {
    static uint64_t ours;
    if (!ours) ours = pid_namespace_of(getpid());
    if (caller->pid_namespace == ours) return (uint32_t)client->pid;
    if (caller->pid_namespace == 0 || caller->pid_namespace != client->pid_namespace) return 0;
    return own_namespace_pid(client->pid);
}

void clients_accept(struct node *node) {
    for (;;) {
        int fd = accept4(node->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        struct ucred peer;
        socklen_t size = sizeof peer;
        struct client *client = calloc(1, sizeof *client);
        if (!client || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
            free(client);
            close(fd);
            continue;
        }
        client->fd = fd;
        client->pid = peer.pid;
        client->root = peer.uid == 0;
        client->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
        client->pid_namespace = pid_namespace_of(peer.pid);
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        client->started_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
        for (int i = 0; i < SIM_MAX_GPUS; i++) client->channel[i].memfd = -1;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/comm", (int)peer.pid);
        int comm = open(path, O_RDONLY | O_CLOEXEC);
        if (comm >= 0) {
            ssize_t length = read(comm, client->command, sizeof client->command - 1);
            close(comm);
            if (length > 0 && client->command[length - 1] == '\n') client->command[length - 1] = 0;
        }
        int sockets = 1024 * 1024;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &sockets, sizeof sockets);
        /* New clients go to the end, so that turns on a GPU follow the order of arrival. */
        struct client **last = &node->clients;
        while (*last) last = &(*last)->next;
        *last = client;
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = client};
        epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, fd, &event);
        if (client->pidfd >= 0) {
            /* A forked child that inherited the socket must not keep its dead parent's memory alive. */
            struct epoll_event exit_event = {.events = EPOLLIN, .data.u64 = (uint64_t)(uintptr_t)client | 1};
            epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, client->pidfd, &exit_event);
        }
    }
}

static void channel_close(struct channel *channel) {
    if (channel->shared) munmap(channel->shared, sizeof *channel->shared);
    if (channel->memfd >= 0) close(channel->memfd);
    *channel = (struct channel){.memfd = -1};
}

void client_gone(struct node *node, struct client *client) {
    if (client->fd < 0) return;
    /* What ran until now is time that it used; nothing of its queue runs after its end. */
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
        timeline_advance(node, &node->gpus[i], node_now_ns());
        timeline_forget(&node->gpus[i], client);
        channel_close(&client->channel[i]);
    }
    epoll_ctl(node->epoll_fd, EPOLL_CTL_DEL, client->fd, NULL);
    close(client->fd);
    client->fd = -1;
    if (client->pidfd >= 0) {
        epoll_ctl(node->epoll_fd, EPOLL_CTL_DEL, client->pidfd, NULL);
        close(client->pidfd);
        client->pidfd = -1;
    }
    books_bury(node, client);
}

void client_free(struct node *node, struct client *client) {
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) timeline_forget(&node->gpus[i], client);
    free(client);
}

static int channel_open(struct channel *channel) {
    if (channel->shared) return -1;
    int fd = memfd_create("simulated-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    /* Sealed against shrinking: a client that truncated it would take the daemon down with SIGBUS. */
    if (ftruncate(fd, sizeof(struct sim_channel)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return -1;
    }
    void *map = mmap(NULL, sizeof(struct sim_channel), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        close(fd);
        return -1;
    }
    *channel = (struct channel){.shared = map, .memfd = fd};
    return fd;
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
    /* A client that does not read its replies loses them; it cannot hold up the node. */
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
    if (step == SIM_PROCESS_LOOK) return ABI_SUCCESS;
    if (step > SIM_PROCESS_UNLOCK) return ABI_ERROR_INVALID_VALUE;
    if (client->process_state != STEPS[step].from) return ABI_ERROR_ILLEGAL_STATE;
    int result = step == SIM_PROCESS_CHECKPOINT ? books_take_away(node, client)
                 : step == SIM_PROCESS_RESTORE  ? books_bring_back(node, client)
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
        reply->result = books_context(node, client, gpu, &block);
        if (reply->result != ABI_SUCCESS) return;
        reply->arg[0] = block->id;
        int fd = channel_open(&client->channel[gpu]);
        if (fd >= 0) fds[(*fd_count)++] = fd;
        return;
    case SIM_TAKE:
        if (request->arg[1] == SIM_KIND_CONTEXT || request->arg[1] >= SIM_KIND_COUNT ||
            (request->arg[1] == SIM_KIND_VMM && (passed_fd < 0 || fstat(passed_fd, &info) != 0))) {
            reply->result = ABI_ERROR_INVALID_VALUE;
            return;
        }
        reply->result = books_take(node, client, gpu, request->arg[0], (uint32_t)request->arg[1], &block);
        if (reply->result != ABI_SUCCESS) return;
        block->device = info.st_dev;
        block->inode = info.st_ino;
        reply->arg[0] = block->id;
        reply->arg[1] = block->bytes;
        return;
    case SIM_CONTEXT_END:
    case SIM_GIVE:
    case SIM_KEEP:
        block = books_find(node, request->arg[0]);
        reply->result = !block                    ? ABI_ERROR_INVALID_VALUE
                        : request->op == SIM_KEEP ? books_keep(client, block)
                                                  : books_give(node, client, block);
        return;
    case SIM_IMPORT:
        if (passed_fd >= 0 && fstat(passed_fd, &info) == 0) block = books_find_file(node, info.st_dev, info.st_ino);
        reply->result = block ? books_keep(client, block) : ABI_ERROR_INVALID_VALUE;
        if (reply->result != ABI_SUCCESS) return;
        reply->arg[0] = block->id;
        reply->arg[1] = block->bytes;
        reply->arg[2] = block->gpu;
        return;
    case SIM_SHARE:
        block = books_find(node, request->arg[0]);
        reply->result = block ? books_share(client, block, passed_fd) : ABI_ERROR_INVALID_VALUE;
        return;
    case SIM_OPEN:
        block = books_find(node, request->arg[0]);
        reply->result = block ? books_open(client, block) : ABI_ERROR_INVALID_VALUE;
        if (reply->result != ABI_SUCCESS) return;
        reply->arg[0] = block->id;
        reply->arg[1] = block->bytes;
        reply->arg[2] = block->gpu;
        fds[(*fd_count)++] = block->shared_fd;
        return;
    case SIM_PROCESS: answer_process(node, client, request, reply); return;
    case SIM_MEMORY: {
        uint64_t hard, room = limits_room(node, client, gpu, &hard), usable = gpu_usable(node, gpu);
        reply->arg[0] = atomic_load(&node->facts->gpus[gpu].used_bytes);
        reply->arg[1] = usable - reply->arg[0] < room ? usable - reply->arg[0] : room;
        reply->arg[2] = usable < hard ? usable : hard;
        return;
    }
    default: reply->result = ABI_ERROR_NOT_SUPPORTED;
    }
}

/* One request a turn: a request that was sent after somebody's death must not be answered before that death is noticed,
 * and the loop notices all deaths before it answers anything that was sent by then. */
void client_readable(struct node *node, struct client *client) {
    static char payload[SIM_MAX_PAYLOAD];
    if (client->fd >= 0) {
        struct sim_request request = {0};
        struct iovec part = {&request, sizeof request};
        union {
            char bytes[CMSG_SPACE(4 * sizeof(int))];
            struct cmsghdr align;
        } control;
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t length = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (length <= 0) {
            client_gone(node, client);
            return;
        }
        int passed[4], passed_count = 0;
        for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
            if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
            for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) && passed_count < 4; i++) {
                memcpy(&passed[passed_count++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            }
        }
        struct sim_reply reply = {0};
        int fds[2], fd_count = 0;
        if ((size_t)length < sizeof request) {
            reply.result = ABI_ERROR_INVALID_VALUE;
        } else if (request.op == SIM_HELLO) {
            client->role = (uint32_t)request.arg[0];
            client->types = (uint32_t)request.arg[1] & (SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS | SIM_TYPE_MPS);
            client->encoder_percent = SIM_VIDEO_ENCODER(request.arg[1]);
            client->decoder_percent = SIM_VIDEO_DECODER(request.arg[1]);
            if (client->role == SIM_ROLE_CUDA) client->group = group_of(node, client->pid);
            reply.arg[0] = SIM_PROTOCOL;
            fds[fd_count++] = node->facts_fd;
            fds[fd_count++] = node->doorbell_fd;
        } else if (client->role == SIM_ROLE_CUDA) {
            answer_cuda(node, client, &request, passed_count ? passed[0] : -1, &reply, fds, &fd_count);
        } else if (client->role == SIM_ROLE_NVML) {
            answer_nvml(node, client, &request, &reply, payload);
        } else if (client->role == SIM_ROLE_CONTROL) {
            answer_control(node, &request, &reply, payload);
        } else {
            reply.result = ABI_ERROR_NOT_INITIALIZED;
        }
        for (int i = 0; i < passed_count; i++) close(passed[i]);
        reply_with(client, &reply, payload, fds, fd_count);
    }
}
