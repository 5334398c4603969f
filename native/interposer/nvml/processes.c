/* Process lists: the container's own processes, with their charge. The driver's whole list is read into our own
 * memory, so that neither entries nor counts of other tenants reach the caller; the caller gets the driver's layout
 * and protocol. Processes of the ledger that the driver does not show (it may not know their PIDs in this
 * namespace, or is too old) are added to the list of compute processes. */
#include <stdlib.h>
#include <string.h>

#include "answers.h"

#define LONGEST_ENTRY ((size_t)32)
static_assert(sizeof(struct nvml_abi_process_535) == LONGEST_ENTRY, "the longest layout");
#define FIRST_CAPACITY 256u

bool nvml_own_begin(struct nvml_own *own, uint32_t gpu) {
    *own = (struct nvml_own){.list = malloc((grant_max_processes() + 1) * sizeof *own->list)};
    if (own->list) own->count = grant_processes(gpu, own->list);
    return own->list != NULL;
}

void nvml_own_end(struct nvml_own *own) {
    free(own->list);
}

const struct grant_process *nvml_own_find(const struct nvml_own *own, uint32_t pid) {
    for (uint32_t i = 0; i < own->count; i++) {
        if (own->list[i].pid == pid) return &own->list[i];
    }
    return NULL;
}

/* A call that lists processes. */
struct process_query {
    void *real;
    nvml_abi_device device;
    size_t nominal;                              /* bytes of an entry by the symbol's name */
    struct nvml_abi_process_detail_list *detail; /* the caller's structure, for the one call that takes one */
};

static nvml_abi_return call_driver(const void *call, unsigned *count, void *entries) {
    const struct process_query *query = call;
    if (!query->detail) {
        nvml_abi_return (*real)(nvml_abi_device, unsigned *, void *) =
            (nvml_abi_return (*)(nvml_abi_device, unsigned *, void *))query->real;
        return real(query->device, count, entries);
    }
    nvml_abi_return (*real)(nvml_abi_device, struct nvml_abi_process_detail_list *) =
        (nvml_abi_return (*)(nvml_abi_device, struct nvml_abi_process_detail_list *))query->real;
    struct nvml_abi_process_detail_list whole = *query->detail;
    whole.count = *count;
    whole.entries = entries;
    nvml_abi_return result = real(query->device, &whole);
    *count = whole.count;
    return result;
}

/* Capacity for a list of which the driver reports so many entries; a larger count than this is not believed. */
#define MOST_ENTRIES 65536u
static unsigned capacity_for(unsigned reported) {
    return reported < MOST_ENTRIES / 2 ? reported * 2 + 8 : MOST_ENTRIES;
}

void *nvml_read_list(nvml_list_call *ask, const void *query, size_t row_bytes, unsigned *count,
                     nvml_abi_return *result) {
    void *rows = NULL;
    unsigned capacity = FIRST_CAPACITY;
    for (int tries = 0; tries < 4; tries++) {
        free(rows);
        rows = malloc(capacity * row_bytes);
        *result = NVML_ABI_MEMORY;
        if (!rows) return NULL;
        memset(rows, NVML_FILL, capacity * row_bytes);
        *count = capacity;
        *result = ask(query, count, rows);
        if (*result != NVML_ABI_INSUFFICIENT_SIZE || *count <= capacity) break;
        if (tries < 3) capacity = capacity_for(*count);
    }
    if (*count > capacity) *count = capacity; /* entries that are there, whatever the driver reports */
    return rows;
}

nvml_abi_return nvml_copy_list(const void *rows, size_t row_bytes, unsigned have, unsigned *count, void *out) {
    unsigned capacity = *count;
    *count = have;
    if (have == 0) return NVML_ABI_SUCCESS;
    if (have > capacity) return NVML_ABI_INSUFFICIENT_SIZE;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    memcpy(out, rows, have * row_bytes);
    return NVML_ABI_SUCCESS;
}

/* Drivers 530 and 535.43 to 535.86 write entries of 32 bytes through _v3. For empty lists, whose layout does not
 * show. */
static bool driver_writes_long_entries(void) {
    char text[NVML_ABI_VERSION_BYTES + 1] = {0}; /* terminated even if the driver does not */
    nvml_abi_return (*get)(char *, unsigned) = shim_real_by_name("nvmlSystemGetDriverVersion");
    if (!get || get(text, sizeof text - 1) != NVML_ABI_SUCCESS) return false;
    const char *dot = strchr(text, '.');
    uint64_t major = cot_digits(text), minor = dot ? cot_digits(dot + 1) : 0;
    return major == 530 || (major == 535 && minor >= 43 && minor <= 86);
}

/* The size of the driver's entries does not follow from the symbol's name: they end where the fill pattern begins. */
static size_t entry_size(const struct process_query *query, const unsigned char *entries, unsigned count) {
    if (query->nominal != sizeof(struct nvml_abi_process_v2)) return query->nominal;
    if (count == 0) return driver_writes_long_entries() ? LONGEST_ENTRY : query->nominal;
    size_t end = (size_t)count * LONGEST_ENTRY;
    while (end > 0 && entries[end - 1] == NVML_FILL) end--;
    return end > (size_t)count * query->nominal ? LONGEST_ENTRY : query->nominal;
}

static uint32_t pid_at(const unsigned char *entries, size_t size, unsigned index) {
    uint32_t pid;
    memcpy(&pid, entries + index * size, sizeof pid);
    return pid;
}

/* Is the process in that list of the driver? */
static bool is_listed(const struct process_query *query, uint32_t pid) {
    nvml_abi_return result;
    unsigned count = 0;
    bool found = false;
    if (!query->real) return false;
    unsigned char *entries = nvml_read_list(call_driver, query, LONGEST_ENTRY, &count, &result);
    if (result == NVML_ABI_SUCCESS) {
        size_t size = entry_size(query, entries, count);
        for (unsigned i = 0; i < count && !found; i++) found = pid_at(entries, size, i) == pid;
    }
    free(entries);
    return found;
}

/* `mps`: the query for MPS clients, if this is the list of compute processes; NULL for other lists. */
static nvml_abi_return write_list(const struct process_query *query, const struct process_query *mps, unsigned *count,
                                  void *out) {
    struct nvml_own own = {0};
    unsigned have = 0, kept = 0;
    uint32_t gpu = GRANT_NO_GPU;
    nvml_abi_return result;
    unsigned char *entries = nvml_read_list(call_driver, query, LONGEST_ENTRY, &have, &result);
    if (result != NVML_ABI_SUCCESS) {
        free(entries);
        return result;
    }
    bool granted = nvml_gpu_of(query->device, &gpu);
    unsigned char *answer = NULL;
    if (nvml_own_begin(&own, gpu)) answer = calloc((size_t)have + own.count + 1, LONGEST_ENTRY);
    if (answer) {
        size_t size = entry_size(query, entries, have);
        for (unsigned i = 0; i < have; i++) {
            const struct grant_process *process = nvml_own_find(&own, pid_at(entries, size, i));
            if (!process) continue;
            unsigned char *entry = answer + kept++ * size;
            memcpy(entry, entries + i * size, size);
            if (granted) memcpy(entry + offsetof(struct nvml_abi_process_v1, bytes), &process->bytes, 8);
        }
        unsigned from_driver = kept;
        for (uint32_t i = 0; granted && mps && i < own.count; i++) {
            struct nvml_abi_process_535 entry = {.pid = own.list[i].pid,
                                                 .bytes = own.list[i].bytes,
                                                 .gpu_instance = NVML_ABI_NO_INSTANCE,
                                                 .compute_instance = NVML_ABI_NO_INSTANCE};
            bool known = entry.bytes == 0;
            for (unsigned k = 0; k < from_driver && !known; k++) known = pid_at(answer, size, k) == entry.pid;
            if (!known && !is_listed(mps, entry.pid)) memcpy(answer + kept++ * size, &entry, size);
        }
        result = nvml_copy_list(answer, size, kept, count, out);
    } else {
        result = NVML_ABI_MEMORY;
    }
    nvml_own_end(&own);
    free(answer);
    free(entries);
    return result;
}

static nvml_abi_return list_processes(void *real, void *mps, nvml_abi_device device, unsigned *count, void *out,
                                      size_t nominal) {
    struct process_query query = {.real = real, .device = device, .nominal = nominal};
    struct process_query clients = {.real = mps, .device = device, .nominal = nominal};
    if (!real) return (nvml_abi_return)shim_missing();
    if (!count || !grant_is_readable()) return call_driver(&query, count, out);
    return write_list(&query, mps ? &clients : NULL, count, out);
}

#define PROCESS_LISTS(suffix, nominal)                                                                                \
    nvml_abi_return cot_nvmlDeviceGetComputeRunningProcesses##suffix(nvml_abi_device device, unsigned *count,         \
                                                                     void *out) {                                     \
        return list_processes(shim_real(COT_AT_nvmlDeviceGetComputeRunningProcesses##suffix),                         \
                              shim_real(COT_AT_nvmlDeviceGetMPSComputeRunningProcesses##suffix), device, count, out,  \
                              nominal);                                                                               \
    }                                                                                                                 \
    nvml_abi_return cot_nvmlDeviceGetGraphicsRunningProcesses##suffix(nvml_abi_device device, unsigned *count,        \
                                                                      void *out) {                                    \
        return list_processes(shim_real(COT_AT_nvmlDeviceGetGraphicsRunningProcesses##suffix), NULL, device, count,   \
                              out, nominal);                                                                          \
    }                                                                                                                 \
    nvml_abi_return cot_nvmlDeviceGetMPSComputeRunningProcesses##suffix(nvml_abi_device device, unsigned *count,      \
                                                                        void *out) {                                  \
        return list_processes(shim_real(COT_AT_nvmlDeviceGetMPSComputeRunningProcesses##suffix), NULL, device, count, \
                              out, nominal);                                                                          \
    }
PROCESS_LISTS(, sizeof(struct nvml_abi_process_v1))
PROCESS_LISTS(_v2, sizeof(struct nvml_abi_process_v2))
PROCESS_LISTS(_v3, sizeof(struct nvml_abi_process_v2))

enum { MODE_COMPUTE = 0, MODE_MPS = 2, MODE_ALL = 3 };

/* A structure of an unknown version would be filled beyond what we know, so it is refused; callers go on with an
 * older one. */
nvml_abi_return cot_nvmlDeviceGetRunningProcessDetailList(nvml_abi_device device,
                                                          struct nvml_abi_process_detail_list *out) {
    struct nvml_abi_process_detail_list of_clients;
    struct process_query query = {.real = shim_real(COT_AT_nvmlDeviceGetRunningProcessDetailList),
                                  .device = device,
                                  .nominal = sizeof(struct nvml_abi_process_535),
                                  .detail = out};
    struct process_query clients = query;
    if (!query.real) return (nvml_abi_return)shim_missing();
    if (!out || !grant_is_readable()) return CALL_REAL(nvmlDeviceGetRunningProcessDetailList, device, out);
    uint32_t known = NVML_ABI_STRUCT_VERSION(struct nvml_abi_process_detail_list, 1);
    if (out->version != known) {
        struct nvml_abi_process_detail_list first = {.version = known, .mode = MODE_COMPUTE};
        query.detail = &first;
        unsigned none = 0;
        nvml_abi_return result = call_driver(&query, &none, NULL);
        bool answered = result == NVML_ABI_SUCCESS || result == NVML_ABI_INSUFFICIENT_SIZE;
        return answered ? NVML_ABI_ARGUMENT_VERSION_MISMATCH : result;
    }
    of_clients = *out;
    of_clients.mode = MODE_MPS;
    clients.detail = &of_clients;
    bool lists_compute = out->mode == MODE_COMPUTE || out->mode == MODE_ALL;
    return write_list(&query, lists_compute ? &clients : NULL, &out->count, out->entries);
}
