/* The models of GPUs that a simulated node can have. Sizes and counts are public data-sheet figures; context and
 * reserved sizes are assumptions until they have been measured on real GPUs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../abi/nvml.h"
#include "node.h"

#define MIB (1024ull * 1024)
#define MIN_GRANULE (64ull * 1024)
#define DEFAULT_GRANULE (2 * MIB)
#define POOL_STEP (32 * MIB) /* test/gpu/observed/h100-580.159.04.json, step rounding.pools */
#define MIG_SLICES 7
#define MIG_RESERVED (64 * MIB)

struct model {
    const char *key, *name;
    uint32_t total_mib, reserved_mib, context_mib;
    uint32_t sm_count, cc_major, cc_minor, sm_mhz, memory_mhz, bus_bits, l2_kib, power_w, pci_id;
};

static const struct model MODELS[] = {
    {"h200", "NVIDIA H200", 143771, 601, 480, 132, 9, 0, 1980, 3201, 6144, 61440, 700, 0x233510de},
    {"h100", "NVIDIA H100 80GB HBM3", 81559, 601, 480, 132, 9, 0, 1980, 2619, 5120, 51200, 700, 0x233010de},
    {"a100", "NVIDIA A100-SXM4-80GB", 81920, 634, 420, 108, 8, 0, 1410, 1593, 5120, 40960, 400, 0x20b210de},
    {"l40s", "NVIDIA L40S", 46068, 484, 370, 142, 8, 9, 2520, 9001, 384, 98304, 350, 0x26b910de},
    {"l4", "NVIDIA L4", 23034, 434, 200, 58, 8, 9, 2040, 6251, 192, 49152, 72, 0x27b810de},
    {"a10", "NVIDIA A10", 23028, 428, 250, 72, 8, 6, 1695, 6251, 384, 6144, 150, 0x223610de},
    {"t4", "Tesla T4", 15360, 420, 104, 40, 7, 5, 1590, 5001, 256, 4096, 70, 0x1eb810de},
    {"v100", "Tesla V100-SXM2-16GB", 16384, 254, 304, 80, 7, 0, 1530, 877, 4096, 6144, 300, 0x1db110de},
};

static bool parse_mib(const char *text, uint64_t *bytes) {
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    uint64_t unit = !strcmp(end, "Gi") ? 1024 * MIB : !strcmp(end, "Mi") ? MIB : !strcmp(end, "Ki") ? 1024 : 0;
    if (unit == 0 || end == text || number == 0 || number > (1ull << 50) / unit) return false;
    *bytes = number * unit;
    return true;
}

static void print_error(const char *text, const char *what) {
    fprintf(stderr,
            "cotenant-simulator: --gpu %s: %s; want "
            "MODEL[,memory=24Gi][,reserved=400Mi][,context=200Mi][,granule=2Mi][,pool-step=32Mi][,mig=1g.10gb+...]"
            "[,numa=N][,pcie-switch=N][,nvswitch=LINKS][,nvlink=GPU:LINKS], "
            "MODEL one of",
            text, what);
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) fprintf(stderr, " %s", MODELS[i].key);
    fputc('\n', stderr);
}

/* Adds a MIG instance: "3g.40gb" is three of the GPU's seven compute slices and 40 GiB of its memory. */
static const char *instance_add(struct node *node, uint32_t parent, uint32_t number, const char *profile) {
    const struct sim_gpu_facts *gpu = &node->facts->gpus[parent];
    unsigned slices, gigabytes;
    int length = 0;
    if (sscanf(profile, "%1ug.%3ugb%n", &slices, &gigabytes, &length) != 2 || profile[length] || !slices || !gigabytes)
        return "an instance is written as 3g.40gb";
    uint32_t index = node->facts->gpu_count;
    if (index == SIM_MAX_GPUS) return "a node has at most 16 GPUs, instances included";
    uint64_t total = gigabytes * 1024ull * MIB, taken = 0, taken_slices = 0;
    for (uint32_t i = 0; i < index; i++) {
        if (node->facts->gpus[i].parent != parent + 1) continue;
        taken += node->facts->gpus[i].total_bytes;
        taken_slices += node->facts->gpus[i].slices;
    }
    if (taken_slices + slices > MIG_SLICES || taken + total > gpu->total_bytes)
        return "the GPU has too few slices or too little memory left";
    if (node->gpus[parent].context_bytes + MIG_RESERVED > total) return "no memory is left for clients";
    struct sim_gpu_facts *facts = &node->facts->gpus[index];
    *facts = *gpu;
    if (snprintf(facts->name, sizeof facts->name, "%s MIG %s", gpu->name, profile) >= (int)sizeof facts->name)
        return "its name is too long";
    facts->uuid[14] = (unsigned char)number;
    facts->total_bytes = total;
    facts->reserved_bytes = MIG_RESERVED;
    facts->sm_count = gpu->sm_count * slices / 8;
    facts->divided = 0;
    facts->parent = parent + 1;
    facts->gpu_instance = number;
    facts->compute_instance = 0;
    facts->slices = slices;
    node->gpus[index] = node->gpus[parent];
    node->gpus[index].index = index;
    node->gpus[index].profiles[0] = 0;
    node->facts->gpu_count++;
    return NULL;
}

static const char *divide(struct node *node, uint32_t parent, char *profiles) {
    uint32_t number = 0;
    if (node->facts->gpus[parent].cc_major < 8 || node->facts->gpus[parent].bus_bits < 4096)
        return "this model does not support MIG";
    node->facts->gpus[parent].divided = 1;
    for (char *profile; (profile = strsep(&profiles, "+"));) {
        const char *wrong = instance_add(node, parent, ++number, profile);
        if (wrong) return wrong;
    }
    return NULL;
}

/* A link has two ends. */
static bool link_both_ends(struct node *node) {
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        uint32_t links = node->facts->gpus[gpu].nvswitch_links;
        for (uint32_t other = 0; other < SIM_MAX_GPUS; other++) {
            uint32_t *own = &node->facts->gpus[gpu].nvlinks[other], *back = &node->facts->gpus[other].nvlinks[gpu];
            if (*own > 0 && other >= node->facts->gpu_count) return false;
            if (*own < *back) *own = *back;
            links += *own;
            *back = *own;
        }
        if (links > NVML_ABI_MAX_LINKS) return false;
    }
    return true;
}

bool gpus_finish(struct node *node) {
    if (!link_both_ends(node)) {
        fprintf(stderr, "cotenant-simulator: nvlink: no such GPU, or more than %d links of one GPU\n",
                NVML_ABI_MAX_LINKS);
        return false;
    }
    for (uint32_t gpu = 0, count = node->facts->gpu_count; gpu < count; gpu++) {
        char profiles[sizeof node->gpus[gpu].profiles];
        memcpy(profiles, node->gpus[gpu].profiles, sizeof profiles);
        const char *wrong = profiles[0] ? divide(node, gpu, profiles) : NULL;
        if (wrong) return print_error(node->gpus[gpu].profiles, wrong), false;
    }
    return true;
}

/* "numa=1", or "nvlink=3:4": four links to GPU 3. Returns false for another name or a wrong number. */
static bool place(struct sim_gpu_facts *facts, uint32_t own, const char *name, const char *value) {
    unsigned number, links;
    int length = 0;
    if (!strcmp(name, "nvlink")) {
        if (sscanf(value, "%2u:%2u%n", &number, &links, &length) != 2 || value[length]) return false;
        if (number >= SIM_MAX_GPUS || number == own) return false;
        facts->nvlinks[number] = links;
        return true;
    }
    uint32_t *field = !strcmp(name, "numa")          ? &facts->numa
                      : !strcmp(name, "pcie-switch") ? &facts->pcie_switch
                      : !strcmp(name, "nvswitch")    ? &facts->nvswitch_links
                                                     : NULL;
    if (!field || sscanf(value, "%2u%n", &number, &length) != 1 || value[length]) return false;
    *field = number;
    return true;
}

bool gpu_add(struct node *node, const char *text) {
    uint32_t index = node->facts->gpu_count;
    if (index == SIM_MAX_GPUS) return print_error(text, "a node has at most 16 GPUs"), false;
    char copy[256];
    if (snprintf(copy, sizeof copy, "%s", text) >= (int)sizeof copy) return print_error(text, "too long"), false;
    char *rest = copy, *word = strsep(&rest, ",");
    const struct model *model = NULL;
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        if (!strcmp(MODELS[i].key, word)) model = &MODELS[i];
    }
    if (!model) return print_error(text, "unknown model"), false;
    uint64_t total = model->total_mib * MIB, reserved = model->reserved_mib * MIB;
    uint64_t context = model->context_mib * MIB, granule = DEFAULT_GRANULE, step = 0;
    const char *profiles = "";
    struct sim_gpu_facts *facts = &node->facts->gpus[index];
    while ((word = strsep(&rest, ","))) {
        char *value = strchr(word, '=');
        if (!value) return print_error(text, "want NAME=SIZE"), false;
        *value++ = 0;
        if (!strcmp(word, "mig")) {
            profiles = value;
            continue;
        }
        uint64_t *field = !strcmp(word, "memory")      ? &total
                          : !strcmp(word, "reserved")  ? &reserved
                          : !strcmp(word, "context")   ? &context
                          : !strcmp(word, "granule")   ? &granule
                          : !strcmp(word, "pool-step") ? &step
                                                       : NULL;
        if (field ? !parse_mib(value, field) : !place(facts, index, word, value)) return print_error(text, word), false;
    }
    if (granule < MIN_GRANULE || granule > 64 * MIB || (granule & (granule - 1))) {
        return print_error(text, "granule must be a power of two from 64Ki to 64Mi"), false;
    }
    if (step % granule) return print_error(text, "pool-step must be a multiple of the granule"), false;
    if (reserved >= total || context > total - reserved)
        return print_error(text, "no memory is left for clients"), false;

    snprintf(facts->name, sizeof facts->name, "%s", model->name);
    /* "51a0" marks a simulated GPU in its UUID; the last byte is its index */
    static const unsigned char uuid[16] = {0x51, 0xa0, 0xc0, 0x7e, 0x4a, 0x27, 0x45, 0x51,
                                           0x8d, 0x21, 0x6e, 0x10, 0,    0,    0,    0};
    memcpy(facts->uuid, uuid, sizeof uuid);
    facts->uuid[12] = (unsigned char)(model - MODELS);
    facts->uuid[15] = (unsigned char)index;
    facts->total_bytes = total;
    facts->reserved_bytes = reserved;
    facts->granule_bytes = granule;
    facts->pool_step_bytes = step ? step : granule > POOL_STEP ? granule : POOL_STEP;
    facts->sm_count = model->sm_count;
    facts->cc_major = model->cc_major;
    facts->cc_minor = model->cc_minor;
    facts->sm_mhz = model->sm_mhz;
    facts->memory_mhz = model->memory_mhz;
    facts->bus_bits = model->bus_bits;
    facts->l2_kib = model->l2_kib;
    facts->power_limit_mw = model->power_w * 1000;
    facts->pci_bus = 0x10 + index;
    facts->pci_id = model->pci_id;
    struct gpu *gpu = &node->gpus[index];
    gpu->index = index;
    gpu->context_bytes = (context + granule - 1) / granule * granule;
    gpu->temperature_c = 34;
    gpu->power_mw = model->power_w * 1000 / 8;
    gpu->now_ns = node_now_ns();
    gpu->next_sample_ns = gpu->now_ns + SIM_SAMPLE_NS;
    snprintf(gpu->profiles, sizeof gpu->profiles, "%s", profiles);
    node->facts->gpu_count++;
    return true;
}

/* Makes formulas wrong: the granule is larger than usual, contexts and arrays cost more, pools grow in larger steps,
 * code costs from the first byte, rows of pitched memory are longer, and memory is released late. All of it can be
 * measured. */
void gpus_perturb(struct node *node) {
    for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
        struct sim_gpu_facts *facts = &node->facts->gpus[i];
        facts->granule_bytes <<= node_random(node) % 3;
        uint64_t granule = facts->granule_bytes;
        uint64_t extra = (1 + node_random(node) % 16) * granule;
        node->gpus[i].context_bytes = (node->gpus[i].context_bytes + extra + granule - 1) / granule * granule;
        facts->pool_step_bytes = granule << node_random(node) % 5;
    }
    node->facts->code_free_bytes = 0;
    node->facts->pitch_bytes *= 4;
    node->padded_arrays = true;
    node->max_release_delay_ns = 50000000;
}

uint64_t gpu_usable(const struct node *node, uint32_t gpu) {
    return node->facts->gpus[gpu].total_bytes - node->facts->gpus[gpu].reserved_bytes;
}
