/* Answers requests of the control role: the state of the node as JSON, and changes of it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../abi/nvml.h"
#include "requests.h"

#define XID_OFF_THE_BUS 79

struct text {
    char *at;
    size_t left;
};

static void __attribute__((format(printf, 2, 3))) add(struct text *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    size_t taken = length < 0 ? 0 : (size_t)length < text->left ? (size_t)length : text->left - 1;
    text->at += taken;
    text->left -= taken;
}

static void add_client(struct text *text, const struct node *node, const struct client *client) {
    static const char *const KINDS[SIM_KIND_COUNT] = {"context", "linear", "pool",  "vmm",      "managed", "code",
                                                      "graph",   "limits", "array", "external", "green"};
    char command[64] = {0};
    for (size_t i = 0, k = 0; client->command[i] && i < sizeof client->command; i++) {
        unsigned char c = (unsigned char)client->command[i];
        k += (size_t)snprintf(command + k, sizeof command - k, c < 32 || c > 126 || c == '"' || c == '\\' ? "?" : "%c",
                              c);
    }
    add(text, "{\"pid\":%d,\"command\":\"%s\",\"types\":%u,\"alive\":%s,\"gpus\":[", (int)client->pid, command,
        client->types, client->fd >= 0 ? "true" : "false");
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        const struct channel *channel = &client->channel[gpu];
        add(text, "%s{\"contexts\":%u,\"bytes\":%llu,\"peak\":%llu,\"smNs\":%llu", gpu ? "," : "",
            client->contexts[gpu], (unsigned long long)client_bytes(client, gpu, true),
            (unsigned long long)client->peak[gpu], (unsigned long long)channel->sm_ns);
        for (int kind = 0; kind < SIM_KIND_COUNT; kind++)
            add(text, ",\"%s\":%llu", KINDS[kind], (unsigned long long)client->bytes[gpu][kind]);
        add(text, "}");
    }
    add(text, "]}");
}

static void write_usage(struct node *node, struct sim_reply *reply, char *payload) {
    struct text text = {payload, SIM_MAX_PAYLOAD};
    add(&text, "{\"gpus\":[");
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
        const struct sim_gpu_facts *facts = &node->facts->gpus[i];
        add(&text,
            "%s{\"name\":\"%s\",\"totalBytes\":%llu,\"reservedBytes\":%llu,\"usedBytes\":%llu,\"granuleBytes\":%llu,"
            "\"contextBytes\":%llu}",
            i ? "," : "", facts->name, (unsigned long long)facts->total_bytes,
            (unsigned long long)facts->reserved_bytes, (unsigned long long)atomic_load(&facts->used_bytes),
            (unsigned long long)facts->granule_bytes, (unsigned long long)node->gpus[i].context_bytes);
    }
    add(&text, "],\"clients\":[");
    bool first = true;
    for (struct client *client = node->clients; client; client = client->next) {
        if (client->role != SIM_ROLE_CUDA) continue;
        if (!first) add(&text, ",");
        first = false;
        add_client(&text, node, client);
    }
    add(&text, "],\"groups\":[");
    for (struct group *group = node->groups; group; group = group->next) {
        add(&text, "%s{\"root\":%d,\"gpus\":[", group == node->groups ? "" : ",", (int)group->root);
        for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
            add(&text, "%s{\"bytes\":%llu,\"peak\":%llu}", i ? "," : "", (unsigned long long)group->bytes[i],
                (unsigned long long)group->peak[i]);
        }
        add(&text, "]}");
    }
    add(&text, "]}");
    reply->payload_bytes = (uint32_t)(text.at - payload);
    if (text.left <= 1) reply->result = NVML_ABI_INSUFFICIENT_SIZE;
}

static void list_process_usage(struct node *node, const struct sim_request *request, struct sim_reply *reply,
                               char *payload) {
    struct sim_process_usage *rows = (struct sim_process_usage *)payload;
    size_t count = 0, most = SIM_MAX_PAYLOAD / sizeof *rows;
    for (const struct client *client = node->clients; client; client = client->next) {
        for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
            if (!client_bytes(client, gpu, true)) continue;
            if (count == most) {
                reply->result = NVML_ABI_INSUFFICIENT_SIZE;
                return;
            }
            struct sim_process_usage *row = &rows[count++];
            *row = (struct sim_process_usage){.pid = (uint32_t)client->pid, .gpu = gpu};
            memcpy(row->bytes, client->bytes[gpu], sizeof row->bytes);
            for (size_t i = 0; i < node->block_count; i++) {
                const struct block *block = &node->blocks[i];
                if (block->id && block->inherited && !block->checkpointed && block->owner == client &&
                    block->gpu == gpu)
                    row->inherited[block->kind] += block->bytes;
            }
        }
    }
    reply->payload_bytes = (uint32_t)(count * sizeof *rows);
    for (const struct group *group = node->groups; group; group = group->next) {
        if (group->root == (pid_t)request->arg[0]) memcpy(reply->arg, group->own_peak, sizeof reply->arg);
    }
}

static void watch_group(struct node *node, const struct sim_request *request, struct sim_reply *reply) {
    struct group *group = calloc(1, sizeof *group);
    if (!group) {
        reply->result = NVML_ABI_MEMORY;
        return;
    }
    group->root = (pid_t)request->arg[0];
    struct group **last = &node->groups;
    while (*last) last = &(*last)->next;
    *last = group;
}

static void set_state(struct node *node, const struct sim_request *request, struct sim_reply *reply) {
    if (request->gpu >= node->facts->gpu_count) {
        reply->result = NVML_ABI_INVALID_ARGUMENT;
        return;
    }
    struct gpu *gpu = &node->gpus[request->gpu];
    uint64_t value = request->arg[1];
    switch (request->arg[0]) {
    case SIM_STATE_TEMPERATURE: gpu->temperature_c = (uint32_t)value; return;
    case SIM_STATE_POWER_MW: gpu->power_mw = (uint32_t)value; return;
    case SIM_STATE_HIDE_PROCESS_MEMORY: gpu->hides_process_memory = value != 0; return;
    case SIM_STATE_HIDDEN:
        atomic_store((_Atomic uint32_t *)&node->facts->gpus[request->gpu].hidden, value != 0);
        return;
    case SIM_STATE_LOST:
        if (value && !gpu->lost) health_report_event(node, request->gpu, XID_OFF_THE_BUS);
        gpu->lost = value != 0;
        return;
    default:
        if (!health_set(gpu, request->arg[0], value) && !counters_set(gpu, request->arg[0], value))
            reply->result = NVML_ABI_INVALID_ARGUMENT;
    }
}

void answer_control(struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload) {
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) timeline_advance(node, &node->gpus[i], node_now_ns());
    switch (request->op) {
    case SIM_USAGE: write_usage(node, reply, payload); return;
    case SIM_WATCH: watch_group(node, request, reply); return;
    case SIM_SET_STATE: set_state(node, request, reply); return;
    case SIM_REPORT_XID:
        if (request->gpu < node->facts->gpu_count) health_report_event(node, request->gpu, request->arg[0]);
        else reply->result = NVML_ABI_INVALID_ARGUMENT;
        return;
    case SIM_PROCESS_USAGE: list_process_usage(node, request, reply, payload); return;
    case SIM_PROCESS_LIST_DELAY_US: node->process_list_delay_us = request->arg[0]; return;
    case SIM_IGNORE_LIMITS: node->ignore_limits = request->arg[0] != 0; return;
    default: reply->result = NVML_ABI_NOT_SUPPORTED;
    }
}
