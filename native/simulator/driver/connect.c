/* Requests to the node, and the slow path of every entry point. */
#include <string.h>
#include <unistd.h>

#include "sim.h"

static pthread_mutex_t socket_lock = PTHREAD_MUTEX_INITIALIZER;

int sim_enter_slow(const char *name) {
    if (sim_in_host_call) return ABI_ERROR_NOT_PERMITTED;
    sim_wait_for_unlock(name);
    int result = sim_faults_armed ? sim_fault(name) : ABI_SUCCESS;
    if (result) return result;
    if (!strcmp(name, "cuInit") || !strcmp(name, "cuDriverGetVersion")) return ABI_SUCCESS;
    if (!*sim_alive || !atomic_load(&sim.ready)) return ABI_ERROR_NOT_INITIALIZED;
    return ABI_SUCCESS;
}

int sim_request(struct sim_request *request, int passed_fd, struct sim_reply *reply, int *fd_out) {
    int fds[2], count = 0;
    memset(reply, 0, sizeof *reply);
    pthread_mutex_lock(&socket_lock);
    int failed = sim_link_exchange(sim.fd, request, passed_fd, reply, NULL, 0, fds, &count);
    pthread_mutex_unlock(&socket_lock);
    if (fd_out) *fd_out = count > 0 ? fds[0] : -1;
    for (int i = fd_out ? 1 : 0; i < count; i++) close(fds[i]);
    return failed ? ABI_ERROR_UNKNOWN : reply->result; /* a node that is gone looks like a lost GPU */
}

int sim_simple(uint32_t op, uint32_t gpu, uint64_t a, uint64_t b, uint64_t *out) {
    struct sim_request request = {.op = op, .gpu = gpu, .arg = {a, b}};
    struct sim_reply reply;
    int result = sim_request(&request, -1, &reply, NULL);
    if (out) *out = reply.arg[0];
    return result;
}
