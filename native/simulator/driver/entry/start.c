/* Starts the driver in a process: connects to the node, maps what the daemon shares, selects the visible devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../sim.h"

/* The GPU whose UUID begins with this text; -1: none, or several. */
static int gpu_of_prefix(const char *text, size_t length, const uint32_t *gpus, uint32_t count) {
    int found = -1;
    for (uint32_t i = 0; i < count; i++) {
        char uuid[SIM_UUID_TEXT];
        sim_uuid_text(&sim.facts->gpus[gpus[i]], uuid);
        if (length > strlen(uuid) || strncmp(uuid, text, length) != 0) continue;
        if (found >= 0) return -1;
        found = (int)gpus[i];
    }
    return found;
}

/* GPUs that programs can use: those without MIG, and one instance in all. */
static uint32_t usable_gpus(const uint32_t *visible, uint32_t count, uint32_t gpus[SIM_MAX_GPUS]) {
    uint32_t usable = 0, instances = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct sim_gpu_facts *facts = &sim.facts->gpus[visible[i]];
        if (!facts->divided && (!facts->parent || instances++ == 0)) gpus[usable++] = visible[i];
    }
    return usable;
}

/* CUDA_VISIBLE_DEVICES as the real driver reads it: indices or UUID prefixes, in the order given; the first entry that
 * names no GPU ends the list. It selects among the GPUs that the process may see. A MIG instance is named by its UUID
 * and is then the only device. */
static void choose_devices(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t visible[SIM_MAX_GPUS], seen = sim_visible_gpus(&sim, sim.facts, visible);
    uint32_t gpus[SIM_MAX_GPUS], count = usable_gpus(visible, seen, gpus);
    sim.device_count = 0;
    if (!text) {
        for (uint32_t i = 0; i < count; i++) sim.gpu_of[sim.device_count++] = gpus[i];
        return;
    }
    if (!strncmp(text, "MIG-", 4)) {
        int found = gpu_of_prefix(text, strcspn(text, ","), visible, seen);
        if (found >= 0) sim.gpu_of[sim.device_count++] = (uint32_t)found;
        return;
    }
    while (*text && sim.device_count < SIM_MAX_GPUS) {
        size_t length = strcspn(text, ",");
        int found = -1;
        char *end;
        if (!strncmp(text, "GPU-", 4)) {
            found = gpu_of_prefix(text, length, gpus, count);
        } else {
            long index = strtol(text, &end, 10);
            if (end == text + length && length > 0 && index >= 0 && index < (long)count) found = (int)gpus[index];
        }
        if (found < 0) return;
        for (int i = 0; i < sim.device_count; i++) {
            if (sim.gpu_of[i] == (uint32_t)found) {
                sim.device_count = 0; /* the same GPU twice: no devices at all */
                return;
            }
        }
        sim.gpu_of[sim.device_count++] = (uint32_t)found;
        text += length + (text[length] == ',');
    }
}

static int join_node(void) {
    /* Type of this process, for programs that stand in for a renderer or an MPS client. */
    const char *kind = getenv("COTENANT_SIM_PROCESS_TYPE");
    uint64_t types = SIM_TYPE_COMPUTE;
    if (kind && !strcmp(kind, "graphics")) types = SIM_TYPE_GRAPHICS;
    if (kind && !strcmp(kind, "compute+graphics")) types = SIM_TYPE_COMPUTE | SIM_TYPE_GRAPHICS;
    /* In both lists, as with 580.159.04 on an H100: test/gpu/observed/h100-580.159.04.json, step mps. */
    if (kind && !strcmp(kind, "mps")) types = SIM_TYPE_COMPUTE | SIM_TYPE_MPS;
    /* Its use of the video engines: "ENCODER,DECODER", in percent. */
    unsigned encoder, decoder;
    const char *video = getenv("COTENANT_SIM_VIDEO");
    if (video && sscanf(video, "%3u,%3u", &encoder, &decoder) == 2 && encoder <= 100 && decoder <= 100)
        types |= SIM_VIDEO(encoder, decoder);
    int facts_fd;
    sim.fd = sim_link_open(&sim, SIM_ROLE_CUDA, types, &facts_fd, &sim.doorbell);
    if (sim.fd < 0) return ABI_ERROR_NO_DEVICE;
    void *facts = mmap(NULL, sizeof(struct sim_facts), PROT_READ, MAP_SHARED, facts_fd, 0);
    close(facts_fd);
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
    for (uint32_t i = 0; i < sim.facts->gpu_count; i++) bytes += 4 * sim.facts->gpus[i].total_bytes;
    result = sim_arena_start(bytes);
    if (result != ABI_SUCCESS) return result;
    for (int i = 0; i < SIM_MAX_GPUS; i++) pthread_mutex_init(&sim.queue_lock[i], NULL);
    atomic_store(&sim.ready, 1);
    return ABI_SUCCESS;
}

int sim_start(void) {
    if (!*sim_alive) return ABI_ERROR_NOT_INITIALIZED; /* forked after the parent's cuInit */
    return SIM_LOCKED(start_process());
}
