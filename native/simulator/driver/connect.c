/* Joining the node: finds the socket from this library's own path, maps what the daemon shares, and starts the tables.
 * Also faults per symbol: COTENANT_SIM_FAULTS="cuMemAlloc_v2=2@3x1,cuMemFree_v2=999" makes the 3rd call of the first
 * answer 2, once, and every call of the second answer 999, without reaching the card. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "sim.h"

struct sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1, .doorbell = -1};
static const volatile uint32_t always = 1;
const volatile uint32_t *sim_alive = &always;
static pthread_mutex_t socket_lock = PTHREAD_MUTEX_INITIALIZER;

struct fault {
    char symbol[64];
    int result;
    unsigned long first, count; /* calls first .. first+count-1; count 0 = all from first */
    _Atomic unsigned long calls;
};
static struct fault faults[32];
static int fault_count;
int sim_faults_armed = 1; /* until the environment has been read */

static void read_faults(void) {
    const char *text = getenv("COTENANT_SIM_FAULTS");
    fault_count = 0;
    while (text && *text && fault_count < (int)(sizeof faults / sizeof *faults)) {
        struct fault *fault = &faults[fault_count];
        int length = 0;
        *fault = (struct fault){.first = 1};
        if (sscanf(text, "%63[A-Za-z0-9_]=%d%n", fault->symbol, &fault->result, &length) != 2) {
            fprintf(stderr, "simulated libcuda: COTENANT_SIM_FAULTS: want SYMBOL=RESULT[@FIRST][xCOUNT],...; ignored from: %s\n", text);
            break;
        }
        text += length;
        if (*text == '@') fault->first = strtoul(text + 1, (char **)&text, 10);
        if (*text == 'x') fault->count = strtoul(text + 1, (char **)&text, 10);
        if (*text == ',') text++;
        fault_count++;
    }
    sim_faults_armed = fault_count > 0;
}

static int injected(const char *name) {
    for (int i = 0; i < fault_count; i++) {
        struct fault *fault = &faults[i];
        if (strcmp(fault->symbol, name)) continue;
        unsigned long call = atomic_fetch_add(&fault->calls, 1) + 1;
        if (call >= fault->first && (fault->count == 0 || call < fault->first + fault->count)) return fault->result;
    }
    return ABI_SUCCESS;
}

int sim_enter_slow(const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_faults);
    int result = sim_faults_armed ? injected(name) : ABI_SUCCESS;
    if (result) return result;
    if (!strcmp(name, "cuInit") || !strcmp(name, "cuDriverGetVersion")) return ABI_SUCCESS;
    if (!*sim_alive || !atomic_load(&sim.ready)) return ABI_ERROR_NOT_INITIALIZED;
    return ABI_SUCCESS;
}

static int exchange(const struct sim_request *request, int passed_fd, struct sim_reply *reply, int *fds, int *fd_count) {
    union {
        char bytes[CMSG_SPACE(2 * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec part = {(void *)request, sizeof *request};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
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
    do length = sendmsg(sim.fd, &message, MSG_NOSIGNAL);
    while (length < 0 && errno == EINTR);
    if (length != (ssize_t)sizeof *request) return ABI_ERROR_UNKNOWN;
    part = (struct iovec){reply, sizeof *reply};
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    do length = recvmsg(sim.fd, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < (ssize_t)sizeof *reply) return ABI_ERROR_UNKNOWN; /* the node is gone: as after a lost card */
    int count = 0;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int) && count < 2; i++) {
            memcpy(&fds[count++], CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        }
    }
    *fd_count = count;
    return reply->result;
}

int sim_request(struct sim_request *request, int passed_fd, struct sim_reply *reply, int *fd_out) {
    int fds[2], count = 0;
    memset(reply, 0, sizeof *reply);
    pthread_mutex_lock(&socket_lock);
    int result = exchange(request, passed_fd, reply, fds, &count);
    pthread_mutex_unlock(&socket_lock);
    if (fd_out) *fd_out = count > 0 ? fds[0] : -1;
    for (int i = fd_out ? 1 : 0; i < count; i++) close(fds[i]);
    return result;
}

int sim_simple(uint32_t op, uint32_t card, uint64_t a, uint64_t b, uint64_t *out) {
    struct sim_request request = {.op = op, .card = card, .arg = {a, b}};
    struct sim_reply reply;
    int result = sim_request(&request, -1, &reply, NULL);
    if (out) *out = reply.arg[0];
    return result;
}

static int uuid_text(const unsigned char *uuid, char *text, size_t size) {
    return snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8], uuid[9], uuid[10], uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
}

/* CUDA_VISIBLE_DEVICES as the real driver reads it: indices or UUID prefixes, in the order given; the first word that
 * names no card ends the list. */
static void choose_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    sim.device_count = 0;
    if (!text) {
        for (uint32_t i = 0; i < sim.facts->card_count; i++) sim.card_of[sim.device_count++] = i;
        return;
    }
    while (*text && sim.device_count < SIM_MAX_CARDS) {
        size_t length = strcspn(text, ",");
        int found = -1;
        char *end;
        if (!strncmp(text, "GPU-", 4)) {
            for (uint32_t i = 0; i < sim.facts->card_count; i++) {
                char uuid[48];
                uuid_text(sim.facts->cards[i].uuid, uuid, sizeof uuid);
                if (length <= strlen(uuid) && !strncmp(uuid, text, length)) found = (int)i;
            }
        } else {
            long index = strtol(text, &end, 10);
            if (end == text + length && length > 0 && index >= 0 && index < (long)sim.facts->card_count) found = (int)index;
        }
        if (found < 0) return;
        for (int i = 0; i < sim.device_count; i++) {
            if (sim.card_of[i] == (uint32_t)found) {
                sim.device_count = 0; /* the same card twice: none at all */
                return;
            }
        }
        sim.card_of[sim.device_count++] = (uint32_t)found;
        text += length + (text[length] == ',');
    }
}

static int join_node(void) {
    Dl_info own;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!dladdr((void *)&sim, &own) || !own.dli_fname) return ABI_ERROR_NO_DEVICE;
    char path[4096];
    if (snprintf(path, sizeof path, "%s", own.dli_fname) >= (int)sizeof path) return ABI_ERROR_NO_DEVICE;
    for (int up = 0; up < 2; up++) { /* DIR/lib/libcuda.so.1 -> DIR */
        char *slash = strrchr(path, '/');
        if (!slash) return ABI_ERROR_NO_DEVICE;
        *slash = 0;
    }
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, path) >= (int)sizeof address.sun_path) return ABI_ERROR_NO_DEVICE;
    sim.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sim.fd < 0) return ABI_ERROR_NO_DEVICE;
    if (connect(sim.fd, (struct sockaddr *)&address, sizeof address) != 0) return ABI_ERROR_NO_DEVICE;

    /* What kind of process this is, for programs that stand in for a renderer or an MPS client. */
    const char *kind = getenv("COTENANT_SIM_PROCESS_TYPE");
    uint64_t types = SIM_TYPE_COMPUTE;
    if (kind && !strcmp(kind, "graphics")) types = SIM_TYPE_GRAPHICS;
    if (kind && !strcmp(kind, "compute+graphics")) types = SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS;
    if (kind && !strcmp(kind, "mps")) types = SIM_TYPE_MPS;
    struct sim_request hello = {.op = SIM_HELLO, .arg = {SIM_ROLE_CUDA, types}};
    struct sim_reply reply;
    int fds[2], count = 0;
    int result = exchange(&hello, -1, &reply, fds, &count);
    if (result != ABI_SUCCESS || reply.arg[0] != SIM_PROTOCOL || count != 2) {
        for (int i = 0; i < count; i++) close(fds[i]);
        return ABI_ERROR_NO_DEVICE;
    }
    void *facts = mmap(NULL, sizeof(struct sim_facts), PROT_READ, MAP_SHARED, fds[0], 0);
    close(fds[0]);
    sim.doorbell = fds[1];
    if (facts == MAP_FAILED) return ABI_ERROR_NO_DEVICE;
    sim.facts = facts;
    choose_devices();
    return sim.device_count > 0 ? ABI_SUCCESS : ABI_ERROR_NO_DEVICE;
}

static int start_process(void) {
    if (atomic_load(&sim.ready)) return ABI_SUCCESS;
    int result = join_node();
    if (result != ABI_SUCCESS) {
        if (sim.fd >= 0) close(sim.fd);
        if (sim.doorbell >= 0) close(sim.doorbell);
        sim.fd = sim.doorbell = -1;
        return result;
    }
    uint32_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK) != 0) return ABI_ERROR_OUT_OF_MEMORY;
    *page = 1;
    sim_alive = page;
    uint64_t bytes = 64ull << 30;
    for (uint32_t i = 0; i < sim.facts->card_count; i++) bytes += 4 * sim.facts->cards[i].total_bytes;
    result = sim_arena_start(bytes);
    if (result != ABI_SUCCESS) return result;
    for (int i = 0; i < SIM_MAX_CARDS; i++) pthread_mutex_init(&sim.queue_lock[i], NULL);
    atomic_store(&sim.ready, 1);
    return ABI_SUCCESS;
}

int sim_start(void) {
    if (!*sim_alive) return ABI_ERROR_NOT_INITIALIZED; /* forked after the parent's cuInit */
    pthread_mutex_lock(&sim.lock);
    int result = start_process();
    pthread_mutex_unlock(&sim.lock);
    return result;
}
