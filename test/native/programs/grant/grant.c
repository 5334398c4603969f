/* Writes a container's files as the agent would, for tests that need a grant without an agent:
 *   grant DIR SLOTS FLAGS UUID-HEX:MEMORY:CONTEXT:GRANULE[:GPUFLAGS[:CORES]]...
 * DIR gets `limits` and `ledger`; of an existing page of the same shape only the GPU entries are rewritten. CORES, a
 * percentage, adds a lease page: launches are leased then. 0 means no limit on that GPU. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/shared-memory/lease_page.h"

static bool write_compute(int fd, const struct cot_limits_page_header *header, const uint32_t *rate_ppm) {
    static uint64_t half[COT_LEASE_REPORTS_OFFSET / sizeof(uint64_t)];
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint64_t bytes = header->lease_page_offset + cot_lease_page_bytes(header->slot_count, header->gpu_count);
    cot_lease_page_init(half, header->slot_count, header->gpu_count, rate_ppm, now_ns);
    return ftruncate(fd, (off_t)bytes) == 0 &&
           pwrite(fd, half, sizeof half, (off_t)header->lease_page_offset) == (ssize_t)sizeof half;
}

int main(int argc, char **argv) {
    static struct cot_limits_page page;
    char path[4096];
    struct stat info;
    uint32_t rate_ppm[COT_MAX_GPUS] = {0};
    if (argc < 5) {
        fprintf(stderr, "usage: grant DIR SLOTS FLAGS UUID-HEX:MEMORY:CONTEXT:GRANULE[:CARDFLAGS[:CORES]]...\n");
        return 2;
    }
    page.header = (struct cot_limits_page_header){
        .magic = COT_LIMITS_PAGE_MAGIC,
        .version = COT_LIMITS_PAGE_VERSION,
        .gpu_count = (uint32_t)(argc - 4),
        .slot_count = (uint32_t)atoi(argv[2]),
        .flags = (uint32_t)atoi(argv[3]),
        .generation = 1,
    };
    uint64_t bytes = cot_limits_page_bytes(page.header.slot_count, page.header.gpu_count);
    page.header.bytes = (uint32_t)bytes;
    for (int i = 4; i < argc; i++) {
        struct cot_limits_page_gpu *gpu = &page.gpus[i - 4];
        unsigned long long memory, context, granule;
        char hex[33] = {0};
        unsigned flags = 0, cores = 0;
        int given =
            sscanf(argv[i], "%32[0-9a-f]:%llu:%llu:%llu:%u:%u", hex, &memory, &context, &granule, &flags, &cores);
        if (given < 4) return 2;
        if (given == 6) {
            page.header.gate = COT_GATE_LEASED;
            page.header.lease_page_offset = cot_lease_page_offset_for(page.header.slot_count, page.header.gpu_count);
            rate_ppm[i - 4] = cores * (COT_PPM / 100);
        }
        for (int k = 0; k < 16; k++) {
            unsigned byte;
            if (sscanf(&hex[2 * (size_t)k], "%2x", &byte) != 1) return 2;
            gpu->uuid[k] = (uint8_t)byte;
        }
        gpu->memory_bytes = memory;
        gpu->context_bytes = context;
        gpu->granule_bytes = granule;
        gpu->flags = flags;
        gpu->cores_percent = cores;
        gpu->check = cot_check(gpu, COT_GPU_WORDS);
    }
    snprintf(path, sizeof path, "%s/limits", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || fstat(fd, &info) != 0) return perror(path), 1;
    if ((uint64_t)info.st_size == bytes) {
        struct cot_limits_page_header before;
        if (pread(fd, &before, sizeof before, 0) == sizeof before) page.header.generation = before.generation + 1;
    } else if (ftruncate(fd, (off_t)bytes) != 0) {
        return perror(path), 1;
    }
    if (pwrite(fd, page.gpus, sizeof page.gpus, sizeof page.header) != sizeof page.gpus) return 1;
    if (pwrite(fd, &page.header, sizeof page.header, 0) != sizeof page.header) return 1;
    close(fd);
    snprintf(path, sizeof path, "%s/ledger", argv[1]);
    fd = open(path, O_RDWR | O_CREAT, 0666);
    if (fd < 0 || fstat(fd, &info) != 0) return perror(path), 1;
    uint64_t ledger = cot_ledger_bytes(page.header.slot_count, page.header.gpu_count);
    struct cot_ledger_header header = {.magic = COT_LEDGER_MAGIC,
                                       .version = COT_LEDGER_VERSION,
                                       .gpu_count = page.header.gpu_count,
                                       .slot_count = page.header.slot_count};
    bool made = (uint64_t)info.st_size >= ledger;
    if (!made) {
        made = ftruncate(fd, (off_t)ledger) == 0 && pwrite(fd, &header, sizeof header, 0) == sizeof header &&
               (!page.header.lease_page_offset || write_compute(fd, &page.header, rate_ppm));
    }
    if (!made) return perror(path), 1;
    close(fd);
    return 0;
}
