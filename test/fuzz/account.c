/* The engine on limits pages and ledgers of arbitrary bytes: attaching, reading GPUs and feedback, reserving,
 * reaping, while the agent rewrites the limits page and another process writes into the ledger between calls. The
 * driver always has memory; time is the fuzzer's, so that nothing really waits. Whatever is written, no request may
 * read beyond the maps or hang; and while no other process writes this process's own row, what it holds stays
 * within its grant. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../native/programs/engine/linked_engine.h"
#include "input.h"

#define GRANULE (2ull << 20)
#define MOST_HELD 16
#define FIRST_PLACE (1ull << 40)

static struct input in;
static char folder[] = "/tmp/fuzz-account-XXXXXX";
static uint64_t now;

/* ---- time, by the names that the sources are compiled with ---- */

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): libc's header declares them */
int fuzz_clock_gettime(clockid_t clock, struct timespec *out) {
    now += 1000000;
    *out = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = (long)(now % 1000000000)};
    return 0;
}
int fuzz_nanosleep(const struct timespec *pause, struct timespec *rest) {
    now += (uint64_t)pause->tv_sec * 1000000000u + (uint64_t)pause->tv_nsec + 20000000;
    return 0;
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* ---- the driver ---- */

static struct {
    abi_devptr at;
    uint64_t bytes;
} held[MOST_HELD];
static uint64_t held_bytes;

static abi_result driver_alloc(abi_devptr *pointer, size_t bytes) {
    unsigned place = 0;
    while (place < MOST_HELD && held[place].bytes) place++;
    if (place == MOST_HELD || bytes > 1ull << 36) return ABI_ERROR_UNKNOWN;
    held[place].at = *pointer = FIRST_PLACE + place * (1ull << 37);
    held[place].bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    held_bytes += held[place].bytes;
    return ABI_SUCCESS;
}
static abi_result driver_free(abi_devptr pointer) {
    for (unsigned place = 0; place < MOST_HELD; place++) {
        if (held[place].at != pointer || !held[place].bytes) continue;
        held_bytes -= held[place].bytes;
        held[place].bytes = 0;
        return ABI_SUCCESS;
    }
    return ABI_ERROR_INVALID_VALUE;
}
static abi_result driver_count(int *count) {
    *count = (int)input_word(&in);
    return ABI_SUCCESS;
}
static abi_result driver_uuid(abi_uuid *uuid, abi_device device) {
    memset(uuid, 0, sizeof *uuid);
    uuid->bytes[15] = (uint8_t)device;
    return ABI_SUCCESS;
}

/* ---- stubs for the rest of the interposer ---- */

static uint32_t gpu_now;

static void *real(const char *name) {
    return !strcmp(name, "cuMemAlloc_v2")      ? (void *)driver_alloc
           : !strcmp(name, "cuMemFree_v2")     ? (void *)driver_free
           : !strcmp(name, "cuDeviceGetCount") ? (void *)driver_count
           : !strcmp(name, "cuDeviceGetUuid")  ? (void *)driver_uuid
                                               : NULL;
}
abi_result cot_current_context(uint32_t *gpu, void **context) {
    *gpu = gpu_now;
    *context = NULL;
    return ABI_SUCCESS;
}
void cot_block_recheck(const struct cot_block *block) {}
void cot_block_restore(const struct cot_block *block) {
    cot_blocks_add(block);
}
void cot_pools_read_back(void) {}
static void reclaim_nothing(uint32_t gpu) {}
const struct cot_hooks cot_hooks = {
    .attach = cot_lease_page_map, .detach = cot_lease_page_unmap, .reclaim = reclaim_nothing};

extern abi_result cot_cuMemAlloc_v2(abi_devptr *pointer, size_t bytes);
extern abi_result cot_cuMemFree_v2(abi_devptr pointer);

/* ---- the files ---- */

static int open_file(const char *name, uint64_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) abort();
    return fd;
}

static void begin(void) {
    static bool made;
    if (!made) {
        if (!mkdtemp(folder)) abort();
        made = true;
    }
    memset(&kept.state, 0, sizeof kept.state);
    memset(held, 0, sizeof held);
    held_bytes = 0;
    start_engine(real, folder);
}

static void end(void) {
    struct cot_attachment *at = &cot->at;
    for (unsigned i = 0; i < COT_SHARDS; i++) {
        if (cot->blocks[i].entries) munmap(cot->blocks[i].entries, cot->blocks[i].capacity * sizeof(struct cot_block));
        if (cot->granules[i].entries)
            munmap(cot->granules[i].entries, cot->granules[i].capacity * sizeof(struct cot_shared_granule));
    }
    if (!at->attached) return;
    munmap(at->ledger, cot_ledger_bytes(at->slot_count, at->gpu_count));
    munmap((void *)at->page, cot_limits_page_bytes(at->slot_count, at->gpu_count));
    munmap((void *)at->alive, 4096);
    close(at->ledger_fd);
}

static void write_gpu(struct cot_limits_page *page, uint32_t gpu) {
    struct cot_limits_page_gpu entry = {.granule_bytes = GRANULE, .memory_bytes = input_byte(&in) * GRANULE};
    uint8_t kind = input_byte(&in);
    entry.uuid[15] = (uint8_t)gpu;
    entry.flags = kind & 1 ? COT_GPU_RELEASES_LATE : 0;
    if (kind & 2) entry.memory_bytes = input_long(&in);
    if (kind & 4) entry.granule_bytes = input_long(&in);
    entry.check = cot_check(&entry, COT_GPU_WORDS);
    if ((kind & 24) == 24) entry.check = input_long(&in);
    page->gpus[gpu] = entry;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    in = (struct input){data, size};
    begin();
    uint8_t kind = input_byte(&in);
    struct cot_limits_page_header header = {.magic = COT_LIMITS_PAGE_MAGIC,
                                            .version = COT_LIMITS_PAGE_VERSION,
                                            .gpu_count = 1 + kind % 3u,
                                            .slot_count = 1 + kind / 4 % 16u,
                                            .flags = COT_LIMITS_PAGE_ISOLATE_MEMORY};
    const uint32_t gpus = header.gpu_count, slots = header.slot_count;
    uint64_t page_bytes = cot_limits_page_bytes(slots, gpus), ledger_bytes = cot_ledger_bytes(slots, gpus);
    /* One in four is not a limits page, or states a wrong size. */
    bool strange = kind >> 6 == 3;
    if (strange) {
        input_bytes(&in, &header, sizeof header);
        if (input_byte(&in) % 2) header.magic = COT_LIMITS_PAGE_MAGIC, header.version = COT_LIMITS_PAGE_VERSION;
    }
    int page_fd = open_file("limits", page_bytes), ledger_fd = open_file("ledger", ledger_bytes);
    struct cot_limits_page *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd, 0);
    char *ledger = mmap(NULL, ledger_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ledger_fd, 0);
    page->header = header;
    for (uint32_t gpu = 0; gpu < gpus; gpu++) write_gpu(page, gpu);
    for (unsigned i = input_byte(&in) % 16; i > 0; i--)
        ((uint64_t *)ledger)[input_word(&in) % (ledger_bytes / 8)] = input_long(&in);
    /* The grant is guaranteed only while no other process writes this row and the agent corrects nothing. */
    bool promised = !strange;
    uint64_t most = 0;
    for (int step = 0; step < 48 && in.left > 0; step++) {
        uint8_t what = input_byte(&in);
        gpu_now = what / 16 % gpus;
        if (what % 8 < 3) {
            abi_devptr at;
            uint64_t bytes = what % 8 == 0 ? input_byte(&in) * 65536ull : input_word(&in);
            if (what == 255) bytes = input_long(&in);
            if (promised && gpus == 1) {
                most = page->gpus[0].memory_bytes;
                uint64_t before = held_bytes;
                if (cot_cuMemAlloc_v2(&at, bytes) == ABI_SUCCESS && page->gpus[0].granule_bytes == GRANULE &&
                    held_bytes > before && held_bytes > most)
                    abort();
            } else {
                cot_cuMemAlloc_v2(&at, bytes);
            }
        } else if (what % 8 == 3) {
            cot_cuMemFree_v2(held[input_byte(&in) % MOST_HELD].at);
        } else if (what % 8 == 4) {
            if (cot_attached()) cot_reap();
        } else if (what % 8 == 5) {
            write_gpu(page, gpu_now);
            page->header.generation++;
        } else if (what % 8 == 6) {
            uint64_t word = input_word(&in) % (ledger_bytes / 8);
            if (!cot_attached() || word * 8 >= cot_ledger_slots_offset(gpus)) promised = false;
            ((uint64_t *)ledger)[word] = input_long(&in);
        } else {
            struct cot_limits_page_feedback *entry = &page->feedback[input_byte(&in) % (slots * gpus)];
            input_bytes(&in, entry, sizeof *entry);
            if (input_byte(&in) % 2) entry->check = cot_check(entry, COT_FEEDBACK_WORDS);
            page->header.flags = input_byte(&in);
            promised = false;
        }
    }
    end();
    munmap(page, page_bytes);
    munmap(ledger, ledger_bytes);
    close(page_fd);
    close(ledger_fd);
    return 0;
}
