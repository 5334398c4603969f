#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client.h"

int sim_link_exchange(int fd, const struct sim_request *request, int passed_fd, struct sim_reply *reply, char *payload,
                      size_t payload_size, int *fds, int *fd_count) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec parts[2] = {{(void *)request, sizeof *request}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    *fd_count = 0;
    if (passed_fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed_fd, sizeof(int));
    }
    ssize_t length;
    do length = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (length < 0 && errno == EINTR);
    if (length != (ssize_t)sizeof *request) return -1;
    parts[0] = (struct iovec){reply, sizeof *reply};
    parts[1] = (struct iovec){payload, payload_size};
    message = (struct msghdr){.msg_iov = parts,
                              .msg_iovlen = payload ? 2 : 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof control.bytes};
    do length = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < (ssize_t)sizeof *reply || (message.msg_flags & MSG_TRUNC)) return -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) && *fd_count < 2; i++) {
            memcpy(&fds[(*fd_count)++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        }
    }
    return 0;
}

static bool join(char *path, size_t size, const char *folder, const char *name) {
    return snprintf(path, size, "%s/%s", folder, name) < (int)size;
}

/* The node's DIR, found by the library's own path. */
static bool find_folder(const void *own_symbol, char *folder, size_t size) {
    Dl_info own;
    char path[4096];
    if (!dladdr(own_symbol, &own) || !own.dli_fname) return false;
    if (snprintf(folder, size, "%s", own.dli_fname) >= (int)size) return false;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(folder, '/');
        if (!slash) return false;
        *slash = 0;
    }
    if (join(path, sizeof path, folder, SIM_SOCKET_NAME) && access(path, F_OK) == 0) return true;
    return snprintf(folder, size, "%s", SIM_DEFAULT_DIR) < (int)size;
}

void sim_uuid_text(const struct sim_gpu_facts *gpu, char text[SIM_UUID_TEXT]) {
    const unsigned char *uuid = gpu->uuid;
    snprintf(text, SIM_UUID_TEXT, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             gpu->parent ? "MIG" : "GPU", uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7],
             uuid[8], uuid[9], uuid[10], uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
}

uint32_t sim_visible_gpus(const void *own_symbol, const struct sim_facts *facts, uint32_t gpus[SIM_MAX_GPUS]) {
    char folder[4096], nodes[4096], path[4200], uuid[SIM_UUID_TEXT];
    uint32_t count = 0;
    if (!find_folder(own_symbol, folder, sizeof folder) || !join(nodes, sizeof nodes, folder, SIM_GPUS_NAME)) return 0;
    bool all = access(nodes, F_OK) != 0 && errno == ENOENT;
    for (uint32_t gpu = 0; gpu < facts->gpu_count; gpu++) {
        sim_uuid_text(&facts->gpus[gpu], uuid);
        if (all || (join(path, sizeof path, nodes, uuid) && access(path, F_OK) == 0)) gpus[count++] = gpu;
    }
    return count;
}

int sim_imex_channel(const void *own_symbol, int channel) {
    char folder[4096], path[4200];
    if (!find_folder(own_symbol, folder, sizeof folder)) return -1;
    for (int i = channel < 0 ? 0 : channel; i < (channel < 0 ? SIM_IMEX_CHANNELS : channel + 1); i++) {
        if (snprintf(path, sizeof path, "%s/" SIM_IMEX_NAME "/channel%d", folder, i) < (int)sizeof path &&
            access(path, R_OK | W_OK) == 0)
            return i;
    }
    return -1;
}

int sim_link_connect(const char *folder, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!join(address.sun_path, sizeof address.sun_path, folder, SIM_SOCKET_NAME)) return errno = ENAMETOOLONG, -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    struct sim_request hello = {.op = SIM_HELLO, .arg = {role, types}};
    struct sim_reply reply;
    int fds[2] = {-1, -1}, count = 0, failed = connect(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    if (!failed && (sim_link_exchange(fd, &hello, -1, &reply, NULL, 0, fds, &count) != 0 ||
                    reply.arg[0] != SIM_PROTOCOL || count != 2))
        failed = EPROTO;
    if (!failed) {
        *facts_fd = fds[0];
        *doorbell_fd = fds[1];
        return fd;
    }
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    close(fd);
    errno = failed;
    return -1;
}

int sim_link_open(const void *own_symbol, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd) {
    char folder[4096];
    return find_folder(own_symbol, folder, sizeof folder) ? sim_link_connect(folder, role, types, facts_fd, doorbell_fd)
                                                          : -1;
}
