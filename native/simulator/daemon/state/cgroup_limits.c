/* Memory limits of cgroups on a GPU, as drivers from 615 on have them, in the form that their manual calls misc: flat,
 * the nearest cgroup above a process that has a limit applies, and managed memory is not counted. A cgroup is
 * identified by its folder's inode, which no other cgroup gets while the machine runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../../abi/nvml.h"
#include "node.h"

/* Where the unified hierarchy is mounted; empty: nowhere. */
static const char *mounted(void) {
    static char place[4096];
    static bool looked;
    char line[8192];
    if (looked) return place;
    looked = true;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    while (file && !*place && fgets(line, sizeof line, file)) {
        if (!strstr(line, " - cgroup2 ") || sscanf(line, "%*s %*s %*s %*s %4095s", place) != 1) place[0] = 0;
    }
    if (file) fclose(file);
    return place;
}

/* The client's path in it; empty: unknown. */
static void path_of(const struct client *client, char *path, size_t size) {
    char name[64], line[4096];
    *path = 0;
    snprintf(name, sizeof name, "/proc/%d/cgroup", (int)client->pid);
    FILE *file = fopen(name, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::", 3) != 0) continue;
        line[strcspn(line, "\n")] = 0;
        if (snprintf(path, size, "%s%s", mounted(), line + 3) >= (int)size) *path = 0;
        break;
    }
    if (file) fclose(file);
}

static struct limit *find(struct node *node, uint32_t gpu, uint64_t group) {
    for (size_t i = 0; i < node->limit_count; i++) {
        if (node->limits[i].gpu == gpu && node->limits[i].group == group) return &node->limits[i];
    }
    return NULL;
}

/* Finds the cgroups whose limits apply to a client. For a client that has ended they stay as they were. */
static void find_limit_groups(struct node *node, struct client *client) {
    char path[8192];
    struct stat info;
    path_of(client, path, sizeof path);
    if (!*path) return;
    memset(client->limit_group, 0, sizeof client->limit_group);
    for (size_t root = strlen(mounted()); strlen(path) >= root;) {
        if (stat(path, &info) == 0) {
            for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
                if (!client->limit_group[gpu] && find(node, gpu, info.st_ino)) client->limit_group[gpu] = info.st_ino;
            }
        }
        char *slash = strrchr(path, '/');
        if (!slash) break;
        *slash = 0;
    }
}

static uint64_t used(const struct node *node, uint32_t gpu, uint64_t group) {
    uint64_t sum = 0;
    for (const struct client *client = node->clients; client; client = client->next) {
        if (client->role == SIM_ROLE_CUDA && client->limit_group[gpu] == group) sum += client_bytes(client, gpu, false);
    }
    return sum;
}

uint64_t limits_available(struct node *node, struct client *client, uint32_t gpu, uint64_t *hard) {
    *hard = UINT64_MAX;
    if (node->limit_count == 0 || node->ignore_limits) return UINT64_MAX;
    find_limit_groups(node, client);
    const struct limit *limit = client->limit_group[gpu] ? find(node, gpu, client->limit_group[gpu]) : NULL;
    if (!limit) return UINT64_MAX;
    *hard = limit->hard;
    uint64_t taken = used(node, gpu, limit->group);
    return taken < limit->hard ? limit->hard - taken : 0;
}

static int set(struct node *node, uint32_t gpu, uint64_t group, uint64_t soft, uint64_t hard) {
    struct limit *limit = find(node, gpu, group);
    bool none = soft == 0 && hard == NVML_ABI_MEMORY_LIMIT_MAX;
    if (soft > hard) return NVML_ABI_INVALID_ARGUMENT;
    if (none && limit) *limit = node->limits[--node->limit_count];
    if (none) return NVML_ABI_SUCCESS;
    if (!limit && node->limit_count == SIM_MAX_LIMITS) return NVML_ABI_MEMORY;
    if (!limit) limit = &node->limits[node->limit_count++];
    *limit = (struct limit){.gpu = gpu, .group = group, .soft = soft, .hard = hard};
    return NVML_ABI_SUCCESS;
}

void answer_limits(struct node *node, const struct client *caller, const struct sim_request *request,
                   struct sim_reply *reply) {
    uint64_t group = request->arg[0];
    if (request->op == SIM_LIMIT_SET) {
        reply->result =
            caller->root ? set(node, request->gpu, group, request->arg[1], request->arg[2]) : NVML_ABI_NO_PERMISSION;
    }
    atomic_store(&node->facts->limits, (uint32_t)node->limit_count);
    for (struct client *client = node->clients; client; client = client->next) find_limit_groups(node, client);
    const struct limit *limit = find(node, request->gpu, group);
    reply->arg[0] = limit ? limit->soft : 0;
    reply->arg[1] = limit ? limit->hard : NVML_ABI_MEMORY_LIMIT_MAX;
    reply->arg[2] = limit ? used(node, request->gpu, group) : 0;
}
