/* Compares the usage ledger's file with what is in use on the simulated GPUs, process by process and kind by kind.
 * Memory that another process made and gave up, or left at its end, is in no row of the ledger unless its owner's row
 * has it as shared; all else is equal to the byte. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../../native/shared-memory/ledger.h"
#include "../../../native/simulator/protocol.h"
#include "random_programs.h"

#define MOST_ROWS 512

static int node_socket = -1;
static pid_t group_root;
static const char *ledger;
static uint64_t grants[GPUS], peaks[4];
static struct sim_process_usage rows[MOST_ROWS];
static unsigned row_count;
static struct {
    uint32_t pid;
    struct cot_slot_gpu gpu[GPUS];
} slots[64];
static unsigned slot_count;

static bool ask(uint32_t op, uint64_t argument, struct sim_reply *reply, void *payload, size_t capacity) {
    struct sim_request request = {.op = op, .arg = {argument}};
    struct iovec parts[2] = {{reply, sizeof *reply}, {payload, capacity}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = capacity ? 2 : 1};
    ssize_t length;
    if (send(node_socket, &request, sizeof request, MSG_NOSIGNAL) != (ssize_t)sizeof request) return false;
    do length = recvmsg(node_socket, &message, MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    return length >= (ssize_t)sizeof *reply && !(message.msg_flags & MSG_TRUNC) && reply->result == 0;
}

bool check_open(const char *node, const char *grant, pid_t root, const uint64_t limits[GPUS]) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct sim_reply reply;
    struct stat info;
    char path[4096];
    snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, node);
    node_socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (node_socket < 0 || connect(node_socket, (struct sockaddr *)&address, sizeof address) != 0) return false;
    struct sim_request hello = {.op = SIM_HELLO, .arg = {SIM_ROLE_CONTROL}};
    if (send(node_socket, &hello, sizeof hello, 0) < 0 || recv(node_socket, &reply, sizeof reply, 0) < 0) return false;
    if (!ask(SIM_WATCH, (uint64_t)root, &reply, NULL, 0)) return false;
    group_root = root;
    memcpy(grants, limits, sizeof grants);
    snprintf(path, sizeof path, "%s/ledger", grant);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) return false;
    ledger = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return ledger != MAP_FAILED;
}

bool check_read(void) {
    struct sim_reply reply;
    const struct cot_ledger_header *header = (const void *)ledger;
    if (!ask(SIM_PROCESS_USAGE, (uint64_t)group_root, &reply, rows, sizeof rows)) return false;
    row_count = reply.payload_bytes / sizeof *rows;
    memcpy(peaks, reply.arg, sizeof peaks);
    slot_count = 0;
    for (uint32_t i = 0; i < header->slots_used && i < header->slot_count; i++) {
        const char *at = ledger + cot_ledger_slots_offset(GPUS) + i * cot_slot_bytes(GPUS);
        const struct cot_slot *slot = (const void *)at;
        if (slot->stamp == 0) continue;
        slots[slot_count].pid = slot->pid;
        memcpy(slots[slot_count].gpu, slot + 1, sizeof slots[slot_count].gpu);
        slot_count++;
    }
    return true;
}

struct parts {
    uint64_t held, context, managed, pool;
};

static struct parts parts_of(uint32_t gpu, pid_t pid) {
    struct parts sum = {0};
    for (unsigned i = 0; i < row_count; i++) {
        if (rows[i].gpu != gpu || (pid && rows[i].pid != (uint32_t)pid)) continue;
        uint64_t own[SIM_KIND_COUNT];
        for (int kind = 0; kind < SIM_KIND_COUNT; kind++) {
            own[kind] = rows[i].bytes[kind] - rows[i].inherited[kind];
            sum.held += own[kind];
        }
        sum.context += own[SIM_KIND_CONTEXT] + own[SIM_KIND_LIMITS];
        sum.managed += own[SIM_KIND_MANAGED];
        sum.pool += own[SIM_KIND_POOL] + own[SIM_KIND_GRAPH];
    }
    return sum;
}

uint64_t check_charged(uint32_t gpu, pid_t pid) {
    return parts_of(gpu, pid).held;
}

uint64_t check_exported(uint32_t gpu) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < slot_count; i++) bytes += slots[i].gpu[gpu].shared;
    return bytes;
}

static const char *compare(const struct subject *subject, uint32_t gpu) {
    static char text[512];
    struct parts actual = parts_of(gpu, subject->pid);
    const struct cot_slot_gpu none = {0}, *row = &none;
    for (unsigned i = 0; i < slot_count; i++) {
        if (slots[i].pid == (uint32_t)subject->pid) row = &slots[i].gpu[gpu];
    }
    /* What was exported may stay charged after its owner has given it up. */
    uint64_t own = row->held - row->pool, most = actual.held - actual.pool + row->shared;
    bool same = own + row->shared >= most && (subject->stale || own <= most) && row->context == actual.context &&
                row->managed == actual.managed && row->pending == 0 &&
                (subject->stale ? row->pool >= actual.pool : row->pool == actual.pool);
    bool covered = row->held + row->pending >= actual.held;
    if (subject->unsure ? covered : same) return NULL;
    snprintf(
        text, sizeof text,
        "pid %d on GPU %u: ledger held %lld (pending %lld) of it context %lld managed %lld pool %lld; on the GPU %lld "
        "of it context %lld managed %lld pool %lld%s",
        (int)subject->pid, gpu, (long long)row->held, (long long)row->pending, (long long)row->context,
        (long long)row->managed, (long long)row->pool, (long long)actual.held, (long long)actual.context,
        (long long)actual.managed, (long long)actual.pool, subject->unsure ? "; it may be more" : "");
    return text;
}

const char *check_all(const struct subject *subjects, unsigned count) {
    static char text[128];
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        for (unsigned i = 0; i < count; i++) {
            const char *wrong = subjects[i].pid ? compare(&subjects[i], gpu) : NULL;
            if (wrong) return wrong;
        }
        if (peaks[gpu] > grants[gpu]) {
            snprintf(text, sizeof text, "GPU %u held %llu of a grant of %llu", gpu, (unsigned long long)peaks[gpu],
                     (unsigned long long)grants[gpu]);
            return text;
        }
    }
    return NULL;
}
