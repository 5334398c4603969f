#include <dlfcn.h>
#include <errno.h>
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

int sim_link_open(const void *own_symbol, uint64_t role, uint64_t types, int *facts_fd, int *doorbell_fd) {
    Dl_info own;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[4096];
    if (!dladdr(own_symbol, &own) || !own.dli_fname) return -1;
    if (snprintf(path, sizeof path, "%s", own.dli_fname) >= (int)sizeof path) return -1;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (!slash) return -1;
        *slash = 0;
    }
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, path) >=
        (int)sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    struct sim_request hello = {.op = SIM_HELLO, .arg = {role, types}};
    struct sim_reply reply;
    int fds[2] = {-1, -1}, count = 0;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        sim_link_exchange(fd, &hello, -1, &reply, NULL, 0, fds, &count) == 0 && reply.arg[0] == SIM_PROTOCOL &&
        count == 2) {
        *facts_fd = fds[0];
        *doorbell_fd = fds[1];
        return fd;
    }
    if (fds[0] >= 0) close(fds[0]);
    if (fds[1] >= 0) close(fds[1]);
    close(fd);
    return -1;
}
