/* Answers NVML requests about processes and GPUs, with the quirks of the real driver as documented or reported
 * (sources: its open kernel modules, issues of exporters): processes outside the caller's PID namespace are missing in
 * lists, but appear with their host PID in utilization; managed memory counts for no process; a utilization sample
 * names one process only. */
#include <string.h>
#include <unistd.h>

#include "../../../abi/cuda.h"
#include "../../../abi/nvml.h"
#include "requests.h"

static bool in_list(const struct client *client, uint32_t gpu, uint64_t type) {
    return client->role == SIM_ROLE_CUDA && (client->types & type) &&
           client->process_state != ABI_PROCESS_CHECKPOINTED &&
           (client->contexts[gpu] || client_bytes(client, gpu, false));
}

static void list_processes(struct node *node, struct client *caller, const struct sim_request *request,
                           struct sim_reply *reply, char *payload) {
    if (node->process_list_delay_us) usleep((useconds_t)node->process_list_delay_us);
    struct sim_process *entries = (struct sim_process *)payload;
    size_t count = 0;
    for (struct client *client = node->clients; client; client = client->next) {
        if (!in_list(client, request->gpu, request->arg[0])) continue;
        uint32_t pid = pid_seen_by(caller, client);
        size_t k = 0;
        while (k < count && entries[k].pid != pid) k++; /* a process may have loaded the driver twice (dlmopen) */
        if (pid == 0 || k == SIM_MAX_PAYLOAD / sizeof *entries) continue;
        if (k == count) entries[count++] = (struct sim_process){.pid = pid, .gpu = request->gpu};
        entries[k].bytes += client_bytes(client, request->gpu, false);
    }
    for (size_t k = 0; node->gpus[request->gpu].hides_process_memory && k < count; k++)
        entries[k].bytes = NVML_ABI_NOT_AVAILABLE_U64;
    reply->payload_bytes = (uint32_t)(count * sizeof *entries);
}

static struct client *find_pid(struct node *node, pid_t pid) {
    for (struct client *client = node->clients; client; client = client->next) {
        if (client->pid == pid && client->role == SIM_ROLE_CUDA) return client;
    }
    return NULL;
}

static struct sim_process_utilization *row_of(struct sim_process_utilization *rows, size_t *count, uint32_t pid) {
    size_t k = 0;
    while (k < *count && rows[k].pid != pid) k++;
    if (k == *count) rows[(*count)++] = (struct sim_process_utilization){.pid = pid};
    return &rows[k];
}

/* Use of the video engines is constant and independent of kernels and time slices. */
static void add_video(struct node *node, struct client *caller, uint32_t gpu, uint64_t at_us,
                      struct sim_process_utilization *rows, size_t *count) {
    for (struct client *client = node->clients; client; client = client->next) {
        if (client->fd < 0 || !client->contexts[gpu] || !(client->encoder_percent | client->decoder_percent)) continue;
        uint32_t pid = pid_seen_by(caller, client);
        if (pid == 0) pid = (uint32_t)client->pid;
        if (*count == SIM_SAMPLES_MAX) return;
        struct sim_process_utilization *row = row_of(rows, count, pid);
        row->encoder_percent = (uint16_t)client->encoder_percent;
        row->decoder_percent = (uint16_t)client->decoder_percent;
        row->timestamp_us = at_us;
    }
}

/* One row per process named by a sample after the time last seen; its value is the mean over all samples since then, up
 * to the newest with a process. */
static void list_utilization(struct node *node, struct client *caller, const struct sim_request *request,
                             struct sim_reply *reply, char *payload) {
    struct gpu *gpu = &node->gpus[request->gpu];
    struct sim_process_utilization *rows = (struct sim_process_utilization *)payload;
    uint64_t newest = 0;
    struct sample fresh[SIM_SAMPLES];
    size_t fresh_count = 0, row_count = 0;
    for (size_t i = 0; i < SIM_SAMPLES; i++) {
        struct sample sample = gpu->samples[(gpu->sample_next + i) % SIM_SAMPLES];
        if (sample.at_us == 0 || sample.at_us <= request->arg[0]) continue;
        fresh[fresh_count++] = sample;
        if (sample.pid) newest = sample.at_us;
    }
    size_t counted = 0;
    for (size_t i = 0; i < fresh_count; i++) {
        if (fresh[i].at_us <= newest) counted++;
    }
    for (size_t i = 0; i < counted; i++) {
        if (fresh[i].pid == 0) continue;
        struct client *client = find_pid(node, fresh[i].pid);
        uint32_t pid = client ? pid_seen_by(caller, client) : 0;
        if (pid == 0) pid = (uint32_t)fresh[i].pid;
        struct sim_process_utilization *row = row_of(rows, &row_count, pid);
        row->sm_percent += fresh[i].percent; /* a sum until the loop below */
        row->timestamp_us = newest;
    }
    for (size_t k = 0; k < row_count; k++) {
        rows[k].sm_percent = (uint32_t)((rows[k].sm_percent + counted / 2) / counted);
        rows[k].memory_percent = rows[k].sm_percent / 2;
    }
    if (newest == 0 && fresh_count) newest = fresh[fresh_count - 1].at_us;
    if (newest) add_video(node, caller, request->gpu, newest, rows, &row_count);
    reply->arg[0] = newest;
    reply->payload_bytes = (uint32_t)(row_count * sizeof *rows);
}

static void gpu_state(struct node *node, uint32_t index, struct sim_reply *reply, char *payload) {
    struct gpu *gpu = &node->gpus[index];
    const struct sim_gpu_facts *facts = &node->facts->gpus[index];
    struct sample last = gpu->samples[(gpu->sample_next + SIM_SAMPLES - 1) % SIM_SAMPLES];
    struct sim_gpu_state state = {
        .used_bytes = atomic_load(&facts->used_bytes),
        .sm_percent = last.percent,
        .memory_percent = last.percent / 2,
        .temperature_c = gpu->temperature_c,
        .power_mw = gpu->power_mw,
        .energy_mj = gpu->energy_mj,
        .sm_mhz = last.percent ? facts->sm_mhz : facts->sm_mhz / 6,
        .memory_mhz = facts->memory_mhz,
        .lost = gpu->lost,
    };
    reply_record(reply, payload, &state, sizeof state);
}

/* All samples of the ring, for power and utilization of the whole GPU. */
static void list_samples(const struct gpu *gpu, const struct sim_request *request, struct sim_reply *reply,
                         char *payload) {
    struct sim_ring_sample *rows = (struct sim_ring_sample *)payload;
    size_t count = 0;
    for (size_t i = 0; i < SIM_SAMPLES; i++) {
        struct sample sample = gpu->samples[(gpu->sample_next + i) % SIM_SAMPLES];
        if (sample.at_us == 0 || sample.at_us <= request->arg[0]) continue;
        rows[count++] = (struct sim_ring_sample){.timestamp_us = sample.at_us, .percent = sample.percent};
    }
    reply->payload_bytes = (uint32_t)(count * sizeof *rows);
}

/* Only running processes are known, by the caller's PIDs. */
static void accounting(struct node *node, struct client *caller, const struct sim_request *request,
                       struct sim_reply *reply, char *payload) {
    struct client *client = node->clients;
    while (client && (client->role != SIM_ROLE_CUDA || pid_seen_by(caller, client) != request->arg[0]))
        client = client->next;
    if (!client || request->arg[0] == 0) {
        reply->result = NVML_ABI_NOT_FOUND;
        return;
    }
    uint64_t lived_us = node_wall_us() - client->started_us;
    struct sim_accounting stats = {
        .max_bytes = client->peak[request->gpu],
        .start_us = client->started_us,
        .sm_percent = lived_us ? (uint32_t)(client->channel[request->gpu].sm_ns / 10 / lived_us) : 0,
        .running = 1,
    };
    reply_record(reply, payload, &stats, sizeof stats);
}

void answer_nvml(struct node *node, struct client *caller, const struct sim_request *request, struct sim_reply *reply,
                 char *payload) {
    if (request->gpu >= node->facts->gpu_count) {
        reply->result = NVML_ABI_INVALID_ARGUMENT;
        return;
    }
    if (request->op == SIM_EVENT) { /* also of a lost GPU */
        answer_health(node, request, reply, payload);
        return;
    }
    struct gpu *gpu = &node->gpus[request->gpu];
    timeline_advance(node, gpu, node_now_ns());
    if (gpu->lost) {
        reply->result = NVML_ABI_GPU_IS_LOST;
        return;
    }
    switch (request->op) {
    case SIM_PROCESSES: list_processes(node, caller, request, reply, payload); return;
    case SIM_UTILIZATION: list_utilization(node, caller, request, reply, payload); return;
    case SIM_GPU_STATE: gpu_state(node, request->gpu, reply, payload); return;
    case SIM_ACCOUNTING: accounting(node, caller, request, reply, payload); return;
    case SIM_RING: list_samples(gpu, request, reply, payload); return;
    case SIM_LIMIT_SET:
    case SIM_LIMIT_GET: answer_limits(node, caller, request, reply); return;
    case SIM_HEALTH: answer_health(node, request, reply, payload); return;
    case SIM_COUNTERS: reply_record(reply, payload, &gpu->counters, sizeof gpu->counters); return;
    default: reply->result = NVML_ABI_NOT_SUPPORTED;
    }
}
