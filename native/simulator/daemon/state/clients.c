/* The table of clients: processes with an open connection, identified by peer credentials and /proc, and their
 * channels. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../../abi/cuda.h"
#include "queues.h"

static uint64_t pid_namespace_of(pid_t pid) {
    char path[64];
    struct stat info;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)pid);
    return stat(path, &info) == 0 ? info.st_ino : 0;
}

/* The last number of "NSpid:", the PID in the process's own namespace; 0 = unknown. */
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
    char *end = strrchr(text, ')'); /* the command may contain any character, including brackets */
    int parent = 0;
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1) return 0;
    return parent;
}

struct group *group_of(struct node *node, pid_t pid) {
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
        client->pid_namespace = pid_namespace_of(peer.pid);
        client->started_us = node_wall_us();
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
        /* New clients are appended, so that turns on a GPU follow the order of arrival. */
        struct client **last = &node->clients;
        while (*last) last = &(*last)->next;
        *last = client;
        /* It ends when no process has the socket: a forked child keeps its dead parent's memory, under its PID. */
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = client};
        epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

void channel_close(struct channel *channel) {
    if (channel->shared) munmap(channel->shared, sizeof *channel->shared);
    if (channel->memfd >= 0) close(channel->memfd);
    free(channel->queues);
    *channel = (struct channel){.memfd = -1};
}

void client_free(struct node *node, struct client *client) {
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) timeline_remove(&node->gpus[i], client);
    free(client);
}

int channel_open(struct channel *channel) {
    if (channel->shared) return -1;
    int fd = memfd_create("simulated-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    /* Sealed against shrinking: a client that truncated it would kill the daemon by SIGBUS. */
    if (ftruncate(fd, sizeof(struct sim_channel)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        close(fd);
        return -1;
    }
    void *map = mmap(NULL, sizeof(struct sim_channel), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct queues *queues = calloc(1, sizeof *queues);
    if (map == MAP_FAILED || !queues) {
        free(queues);
        if (map != MAP_FAILED) munmap(map, sizeof(struct sim_channel));
        close(fd);
        return -1;
    }
    *channel = (struct channel){.shared = map, .memfd = fd, .queues = queues};
    return fd;
}

uint64_t client_bytes(const struct client *client, uint32_t gpu, bool with_managed) {
    uint64_t sum = 0;
    for (int kind = 0; kind < SIM_KIND_COUNT; kind++) {
        if (kind != SIM_KIND_MANAGED || with_managed) sum += client->bytes[gpu][kind];
    }
    return sum;
}
