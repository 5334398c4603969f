/* NVML inside a grant, with a driver whose counts, versions, results and entries the fuzzer chooses; a ledger that
 * another process has written into; callers whose arrays are arbitrarily small. The driver's and the caller's
 * buffers have exactly the stated size, so that any write beyond them is found. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../native/interposer/nvml/answers.h"
#include "../../native/interposer/process_start.h"
#include "input.h"

#define GPUS 2u
#define SLOTS 4u
#define SANE_COUNT 64u /* of entries that are written at all */

static struct input in;
static char folder[] = "/tmp/fuzz-nvml-XXXXXX";
static struct cot_limits_page *page;
static char *ledger;

/* ---- the driver ---- */

static nvml_abi_return result(void) {
    static const nvml_abi_return OFTEN[] = {NVML_ABI_SUCCESS, NVML_ABI_SUCCESS, NVML_ABI_INSUFFICIENT_SIZE,
                                            NVML_ABI_NOT_FOUND};
    uint8_t choice = input_byte(&in);
    return choice < 250 ? OFTEN[choice % 4] : (nvml_abi_return)input_word(&in);
}

/* Fills the array, and returns any count. */
static nvml_abi_return fill(unsigned *count, void *entries, size_t size) {
    unsigned capacity = *count, reported = input_byte(&in);
    if (reported >= 250) reported = input_word(&in);
    unsigned written = reported < capacity ? reported : capacity;
    if (written > SANE_COUNT) written = SANE_COUNT;
    for (unsigned i = 0; entries && i < written; i++) {
        input_bytes(&in, (char *)entries + i * size, size);
        if (i % 3 == 0) memcpy((char *)entries + i * size, &(uint32_t){(uint32_t)getpid()}, 4);
    }
    *count = reported;
    return result();
}

static nvml_abi_return list_of(size_t size, unsigned *count, void *entries) {
    return fill(count, entries, size);
}
static nvml_abi_return list_v1(nvml_abi_device device, unsigned *count, void *entries) {
    return list_of(sizeof(struct nvml_abi_process_v1), count, entries);
}
static nvml_abi_return list_v2(nvml_abi_device device, unsigned *count, void *entries) {
    return list_of(sizeof(struct nvml_abi_process_v2), count, entries);
}
static nvml_abi_return list_v3(nvml_abi_device device, unsigned *count, void *entries) {
    return list_of(input_byte(&in) % 2 ? sizeof(struct nvml_abi_process_535) : sizeof(struct nvml_abi_process_v2),
                   count, entries);
}
static nvml_abi_return detail_list(nvml_abi_device device, struct nvml_abi_process_detail_list *list) {
    return fill(&list->count, list->entries, sizeof *list->entries);
}
static nvml_abi_return utilization(nvml_abi_device device, struct nvml_abi_process_utilization *rows, unsigned *count,
                                   unsigned long long last) {
    return fill(count, rows, sizeof *rows);
}
static nvml_abi_return utilizations(nvml_abi_device device, struct nvml_abi_processes_utilization *table) {
    return fill(&table->count, table->entries, sizeof *table->entries);
}
static nvml_abi_return accounting_pids(nvml_abi_device device, unsigned *count, unsigned *pids) {
    return fill(count, pids, sizeof *pids);
}
static nvml_abi_return samples(nvml_abi_device device, int type, unsigned long long last, int *value_type,
                               unsigned *count, struct nvml_abi_sample *out) {
    return fill(count, out, sizeof *out);
}
static nvml_abi_return uuid(nvml_abi_device device, char *text, unsigned length) {
    uint8_t choice = input_byte(&in);
    if (choice < 200) snprintf(text, length, "GPU-%s", choice % 3 ? "00000000-0000-0000-0000-000000000000" : "?");
    else input_bytes(&in, text, length);
    return choice < 220 ? NVML_ABI_SUCCESS : result();
}
static nvml_abi_return driver_version(char *text, unsigned length) {
    input_bytes(&in, text, length);
    if (input_byte(&in) % 2) text[length - 1] = 0;
    return result();
}
static nvml_abi_return gpu_count(unsigned *count) {
    *count = input_byte(&in);
    if (*count == 255) *count = input_word(&in) % 4096; /* a driver that reports more is called for each of them */
    return result();
}
static nvml_abi_return by_index(unsigned index, nvml_abi_device *device) {
    *device = (nvml_abi_device)(uintptr_t)(index + 1);
    return result();
}
static nvml_abi_return index_of(nvml_abi_device device, unsigned *index) {
    *index = input_word(&in);
    return result();
}
static nvml_abi_return memory_v1(nvml_abi_device device, struct nvml_abi_memory_v1 *out) {
    input_bytes(&in, out, sizeof *out);
    return result();
}
static nvml_abi_return memory_v2(nvml_abi_device device, struct nvml_abi_memory_v2 *out) {
    input_bytes(&in, out, sizeof *out);
    return result();
}
static nvml_abi_return rates(nvml_abi_device device, struct nvml_abi_utilization *out) {
    input_bytes(&in, out, sizeof *out);
    return result();
}
static nvml_abi_return stats_v1(nvml_abi_device device, unsigned pid, struct nvml_abi_accounting_v1 *out) {
    input_bytes(&in, out, sizeof *out);
    return result();
}
static nvml_abi_return stats_v2(nvml_abi_device device, struct nvml_abi_accounting_v2 *out) {
    input_bytes(&in, out, sizeof *out);
    return result();
}

static const struct {
    const char *name;
    void *function;
} DRIVER[] = {
    {"nvmlDeviceGetComputeRunningProcesses", (void *)list_v1},
    {"nvmlDeviceGetComputeRunningProcesses_v2", (void *)list_v2},
    {"nvmlDeviceGetComputeRunningProcesses_v3", (void *)list_v3},
    {"nvmlDeviceGetGraphicsRunningProcesses", (void *)list_v1},
    {"nvmlDeviceGetGraphicsRunningProcesses_v2", (void *)list_v2},
    {"nvmlDeviceGetGraphicsRunningProcesses_v3", (void *)list_v3},
    {"nvmlDeviceGetMPSComputeRunningProcesses", (void *)list_v1},
    {"nvmlDeviceGetMPSComputeRunningProcesses_v2", (void *)list_v2},
    {"nvmlDeviceGetMPSComputeRunningProcesses_v3", (void *)list_v3},
    {"nvmlDeviceGetRunningProcessDetailList", (void *)detail_list},
    {"nvmlDeviceGetProcessUtilization", (void *)utilization},
    {"nvmlDeviceGetProcessesUtilizationInfo", (void *)utilizations},
    {"nvmlDeviceGetAccountingPids", (void *)accounting_pids},
    {"nvmlDeviceGetAccountingStats", (void *)stats_v1},
    {"nvmlDeviceGetAccountingStats_v2", (void *)stats_v2},
    {"nvmlDeviceGetSamples", (void *)samples},
    {"nvmlDeviceGetUUID", (void *)uuid},
    {"nvmlSystemGetDriverVersion", (void *)driver_version},
    {"nvmlDeviceGetCount", (void *)gpu_count},
    {"nvmlDeviceGetCount_v2", (void *)gpu_count},
    {"nvmlDeviceGetHandleByIndex", (void *)by_index},
    {"nvmlDeviceGetHandleByIndex_v2", (void *)by_index},
    {"nvmlDeviceGetIndex", (void *)index_of},
    {"nvmlDeviceGetMemoryInfo", (void *)memory_v1},
    {"nvmlDeviceGetMemoryInfo_v2", (void *)memory_v2},
    {"nvmlDeviceGetUtilizationRates", (void *)rates},
};

/* ---- stubs for symbols/ ---- */

static const char *const NAMES[] = {
#define NAME(index, symbol, verb, group) #symbol,
    COT_NVML_ROWS(NAME)
#undef NAME
};

int shim_index_of(const char *name) {
    for (unsigned i = 0; i < COT_NVML_COUNT; i++) {
        if (!strcmp(NAMES[i], name)) return (int)i;
    }
    return -1;
}
void *shim_real(uint32_t index) {
    for (unsigned i = 0; i < sizeof DRIVER / sizeof *DRIVER; i++) {
        if (!strcmp(DRIVER[i].name, NAMES[index])) return DRIVER[i].function;
    }
    return NULL;
}
void *shim_real_by_name(const char *name) {
    int index = shim_index_of(name);
    return index < 0 ? NULL : shim_real((uint32_t)index);
}
int shim_missing(void) {
    return NVML_ABI_FUNCTION_NOT_FOUND;
}
bool shim_own_folder(char *path, size_t size) {
    return snprintf(path, size, "%s", folder) < (int)size;
}

/* ---- the container ---- */

static void begin(void) {
    if (page) return;
    if (!mkdtemp(folder)) abort();
    char path[64];
    const char *const files[] = {"limits", "ledger"};
    const uint64_t sizes[] = {cot_limits_page_bytes(SLOTS, GPUS), cot_ledger_bytes(SLOTS, GPUS)};
    void *maps[2];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        FILE *file = fopen(path, "w+");
        if (!file || ftruncate(fileno(file), (off_t)sizes[i]) != 0) abort();
        maps[i] = mmap(NULL, sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
        if (maps[i] == MAP_FAILED) abort();
        fclose(file);
    }
    page = maps[0];
    ledger = maps[1];
    page->header = (struct cot_limits_page_header){
        .magic = COT_LIMITS_PAGE_MAGIC, .version = COT_LIMITS_PAGE_VERSION, .gpu_count = GPUS, .slot_count = SLOTS};
    if (!grant_is_readable()) abort();
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* This process in the first slot; the rest is written by the fuzzer. */
static void write_files(void) {
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        struct cot_limits_page_gpu *entry = &page->gpus[gpu];
        entry->memory_bytes = input_long(&in);
        entry->flags = input_byte(&in);
        entry->uuid[15] = (uint8_t)gpu;
        entry->check = input_byte(&in) < 250 ? cot_check(entry, COT_GPU_WORDS) : input_long(&in);
    }
    page->header.flags = input_byte(&in);
    uint64_t *words = (uint64_t *)ledger;
    for (unsigned i = 0; i < input_byte(&in) % 32u; i++)
        words[input_word(&in) % (cot_ledger_bytes(SLOTS, GPUS) / 8)] = input_long(&in);
    for (unsigned i = 0; i < SLOTS * GPUS; i++) {
        struct cot_limits_page_feedback *entry = &page->feedback[i];
        if (input_byte(&in) % 4) continue;
        input_bytes(&in, entry, sizeof *entry);
        entry->check = cot_check(entry, COT_FEEDBACK_WORDS);
    }
    struct cot_slot *own = (struct cot_slot *)(ledger + cot_ledger_slots_offset(GPUS));
    if (input_byte(&in) % 2 == 0) return;
    struct stat info;
    *own = (struct cot_slot){.stamp = 1, .pid = (uint32_t)getpid(), .start_ticks = cot_start_ticks((uint32_t)getpid())};
    if (cot_stat("/proc/self/ns/pid", &info) == 0) own->pid_namespace = info.st_ino;
    ((struct cot_ledger_header *)ledger)->slots_used = SLOTS;
}

/* ---- the callers ---- */

extern nvml_abi_return cot_nvmlDeviceGetComputeRunningProcesses(nvml_abi_device, unsigned *, void *);
extern nvml_abi_return cot_nvmlDeviceGetComputeRunningProcesses_v2(nvml_abi_device, unsigned *, void *);
extern nvml_abi_return cot_nvmlDeviceGetComputeRunningProcesses_v3(nvml_abi_device, unsigned *, void *);
extern nvml_abi_return cot_nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_abi_device, unsigned *, void *);
extern nvml_abi_return cot_nvmlDeviceGetMPSComputeRunningProcesses(nvml_abi_device, unsigned *, void *);
extern nvml_abi_return cot_nvmlDeviceGetRunningProcessDetailList(nvml_abi_device,
                                                                 struct nvml_abi_process_detail_list *);
extern nvml_abi_return cot_nvmlDeviceGetProcessUtilization(nvml_abi_device, struct nvml_abi_process_utilization *,
                                                           unsigned *, unsigned long long);
extern nvml_abi_return cot_nvmlDeviceGetProcessesUtilizationInfo(nvml_abi_device,
                                                                 struct nvml_abi_processes_utilization *);
extern nvml_abi_return cot_nvmlDeviceGetAccountingPids(nvml_abi_device, unsigned *, unsigned *);
extern nvml_abi_return cot_nvmlDeviceGetAccountingStats(nvml_abi_device, unsigned, struct nvml_abi_accounting_v1 *);
extern nvml_abi_return cot_nvmlDeviceGetAccountingStats_v2(nvml_abi_device, struct nvml_abi_accounting_v2 *);
extern nvml_abi_return cot_nvmlDeviceGetSamples(nvml_abi_device, int, unsigned long long, int *, unsigned *,
                                                struct nvml_abi_sample *);
extern nvml_abi_return cot_nvmlDeviceGetMemoryInfo(nvml_abi_device, struct nvml_abi_memory_v1 *);
extern nvml_abi_return cot_nvmlDeviceGetMemoryInfo_v2(nvml_abi_device, struct nvml_abi_memory_v2 *);
extern nvml_abi_return cot_nvmlDeviceGetUtilizationRates(nvml_abi_device, struct nvml_abi_utilization *);
extern nvml_abi_return cot_nvmlDeviceGetCount_v2(unsigned *);
extern nvml_abi_return cot_nvmlDeviceGetHandleByIndex_v2(unsigned, nvml_abi_device *);
extern nvml_abi_return cot_nvmlDeviceGetIndex(nvml_abi_device, unsigned *);

typedef nvml_abi_return lists(nvml_abi_device, unsigned *, void *);

static void ask(void) {
    const nvml_abi_device device = (nvml_abi_device)1;
    unsigned what = input_byte(&in) % 18, capacity = input_byte(&in) % 8, count = capacity, number;
    size_t size = what == 0 || what == 4 ? sizeof(struct nvml_abi_process_v1) : sizeof(struct nvml_abi_process_535);
    /* Exactly as many bytes as the caller states. */
    void *out = capacity || input_byte(&in) % 2 ? malloc(capacity * size + !capacity) : NULL;
    struct nvml_abi_process_detail_list details = {
        .version = input_byte(&in) < 200 ? NVML_ABI_STRUCT_VERSION(details, 1) : input_word(&in),
        .mode = input_byte(&in) % 5,
        .count = capacity,
        .entries = out};
    struct nvml_abi_processes_utilization table = {
        .version = input_byte(&in) < 200 ? NVML_ABI_STRUCT_VERSION(table, 1) : input_word(&in), .count = capacity};
    struct nvml_abi_memory_v1 first;
    struct nvml_abi_memory_v2 second;
    struct nvml_abi_utilization own;
    struct nvml_abi_accounting_v1 stats;
    struct nvml_abi_accounting_v2 stats_of = {.pid = input_word(&in)};
    nvml_abi_device found;
    static lists *const LISTS[] = {
        cot_nvmlDeviceGetComputeRunningProcesses,    cot_nvmlDeviceGetComputeRunningProcesses_v2,
        cot_nvmlDeviceGetComputeRunningProcesses_v3, cot_nvmlDeviceGetGraphicsRunningProcesses_v3,
        cot_nvmlDeviceGetMPSComputeRunningProcesses,
    };
    if (what < 5) {
        if (LISTS[what](device, &count, out) == NVML_ABI_SUCCESS && count > capacity) abort();
    } else if (what == 5) {
        cot_nvmlDeviceGetRunningProcessDetailList(device, &details);
    } else if (what == 6) {
        cot_nvmlDeviceGetProcessUtilization(device, out, &count, input_long(&in));
    } else if (what == 7) {
        free(out);
        table.entries = out = malloc(capacity * sizeof *table.entries + !capacity);
        cot_nvmlDeviceGetProcessesUtilizationInfo(device, &table);
    } else if (what == 8) {
        cot_nvmlDeviceGetAccountingPids(device, &count, out);
    } else if (what == 9) {
        cot_nvmlDeviceGetAccountingStats(device, input_word(&in), &stats);
    } else if (what == 10) {
        cot_nvmlDeviceGetAccountingStats_v2(device, &stats_of);
    } else if (what == 11) {
        int type;
        cot_nvmlDeviceGetSamples(device, input_byte(&in) % 12, 0, &type, &count, out);
    } else if (what == 12) {
        cot_nvmlDeviceGetMemoryInfo(device, &first);
    } else if (what == 13) {
        cot_nvmlDeviceGetMemoryInfo_v2(device, &second);
    } else if (what == 14) {
        cot_nvmlDeviceGetUtilizationRates(device, &own);
    } else if (what == 15) {
        cot_nvmlDeviceGetCount_v2(&number);
    } else if (what == 16) {
        cot_nvmlDeviceGetHandleByIndex_v2(input_byte(&in), &found);
    } else {
        cot_nvmlDeviceGetIndex(device, &number);
    }
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    in = (struct input){data, size};
    begin();
    write_files();
    for (int i = 0; i < 8 && in.left > 0; i++) ask();
    return 0;
}
