/* The event loop of the simulated node: connections, requests, exits of clients, the time line. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "requests.h"

#define MAX_EVENTS 8192
#define TAG_CONNECTION 2u
#define TAG_DOORBELL 4u
#define TAG_SIGNAL 6u
#define TAG_LIMIT 4096u /* no client has a lower address */

static bool watch(const struct node *node, int fd, uint64_t tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = tag};
    return epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool event_loop_open(struct node *node) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
    node->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    node->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    return signal_fd >= 0 && node->doorbell_fd >= 0 && node->epoll_fd >= 0 &&
           watch(node, node->listen_fd, TAG_CONNECTION) && watch(node, node->doorbell_fd, TAG_DOORBELL) &&
           watch(node, signal_fd, TAG_SIGNAL);
}

static int timeout_ms(uint64_t until_ns) {
    uint64_t now = node_now_ns();
    if (until_ns == UINT64_MAX) return -1;
    if (until_ns <= now) return 0;
    uint64_t ms = (until_ns - now) / 1000000;
    return ms > 1000 ? 1000 : (int)ms;
}

/* Sleeps until `until_ns` or an event; finer than epoll's milliseconds where the kernel supports it. */
static int wait_events(struct node *node, struct epoll_event *events, uint64_t until_ns) {
    uint64_t now = node_now_ns();
    if (until_ns == UINT64_MAX || until_ns <= now)
        return epoll_wait(node->epoll_fd, events, MAX_EVENTS, timeout_ms(until_ns));
    uint64_t left = until_ns - now;
    struct timespec limit = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    int count = epoll_pwait2(node->epoll_fd, events, MAX_EVENTS, &limit, NULL);
    if (count < 0 && errno == ENOSYS) count = epoll_wait(node->epoll_fd, events, MAX_EVENTS, timeout_ms(until_ns));
    return count;
}

void event_loop_run(struct node *node) {
    static struct epoll_event events[MAX_EVENTS];
    while (!node->stopping) {
        uint64_t now = node_now_ns(), until = UINT64_MAX;
        /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer has gpu_add empty the node that it is handed */
        for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
            timeline_advance(node, &node->gpus[i], now);
            uint64_t wake = timeline_next_wake(node, &node->gpus[i]);
            if (wake < until) until = wake;
        }
        uint64_t expiry = memory_expire(node, now);
        if (expiry < until) until = expiry;
        int count = wait_events(node, events, until);
        /* Exits first: a process that saw another one die may request its memory in the same batch. */
        for (int i = 0; i < count; i++) {
            uintptr_t tag = (uintptr_t)events[i].data.u64;
            if (tag > TAG_LIMIT && (events[i].events & (EPOLLHUP | EPOLLERR))) client_end(node, (struct client *)tag);
        }
        for (int i = 0; i < count; i++) {
            uintptr_t tag = (uintptr_t)events[i].data.u64;
            uint64_t ignored;
            if (tag == TAG_CONNECTION) clients_accept(node);
            else if (tag == TAG_DOORBELL) (void)!read(node->doorbell_fd, &ignored, sizeof ignored);
            else if (tag == TAG_SIGNAL) node->stopping = true;
            else if (((struct client *)tag)->fd >= 0) client_readable(node, (struct client *)tag);
        }
    }
}
