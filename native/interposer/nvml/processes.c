/* Lists of processes: the container's own, with what they count for in its grant. The driver is asked for its whole
 * list into memory of our own, so that neither entries nor numbers of other tenants reach the caller; what the caller
 * gets is in the driver's layout and by the driver's protocol. Processes of the ledger that the driver does not show
 * (it cannot tell what they are called in here, or is too old to try) are added to the list of those that compute. */
#include <stdlib.h>
#include <string.h>

#include "answers.h"

#define FILLING 0xaa
#define LONGEST_ENTRY ((size_t)32)
static_assert(sizeof(struct nvml_abi_process_535) == LONGEST_ENTRY, "the longest layout");
#define FIRST_ROOM 256u

bool nvml_own_begin(struct nvml_own *own, uint32_t gpu) {
    *own = (struct nvml_own){.list = malloc((view_most_processes() + 1) * sizeof *own->list)};
    if (own->list) own->count = view_processes(gpu, own->list);
    return own->list != NULL;
}

void nvml_own_end(struct nvml_own *own) {
    free(own->list);
}

const struct view_process *nvml_own_find(const struct nvml_own *own, uint32_t pid) {
    for (uint32_t i = 0; i < own->count; i++) {
        if (own->list[i].pid == pid) return &own->list[i];
    }
    return NULL;
}

/* One of the calls that list processes. */
struct question {
    void *real;
    nvml_abi_device device;
    size_t nominal;                              /* bytes of an entry, as the symbol's name has them */
    struct nvml_abi_process_detail_list *detail; /* the caller's, for the one call that takes a structure */
};

static nvml_abi_return ask(const struct question *question, unsigned *count, void *entries) {
    if (!question->detail) {
        nvml_abi_return (*real)(nvml_abi_device, unsigned *, void *) =
            (nvml_abi_return (*)(nvml_abi_device, unsigned *, void *))question->real;
        return real(question->device, count, entries);
    }
    nvml_abi_return (*real)(nvml_abi_device, struct nvml_abi_process_detail_list *) =
        (nvml_abi_return (*)(nvml_abi_device, struct nvml_abi_process_detail_list *))question->real;
    struct nvml_abi_process_detail_list whole = *question->detail;
    whole.count = *count;
    whole.entries = entries;
    nvml_abi_return result = real(question->device, &whole);
    *count = whole.count;
    return result;
}

/* The driver's whole list, in memory of our own; *entries is the caller's to free, also after an error. */
static nvml_abi_return ask_whole(const struct question *question, unsigned *count, unsigned char **entries) {
    *entries = NULL;
    unsigned room = FIRST_ROOM;
    for (int tries = 0; tries < 4; tries++) {
        size_t size = (size_t)room * LONGEST_ENTRY;
        free(*entries);
        *entries = malloc(size);
        if (!*entries) return NVML_ABI_MEMORY;
        memset(*entries, FILLING, size);
        *count = room;
        nvml_abi_return result = ask(question, count, *entries);
        if (result != NVML_ABI_INSUFFICIENT_SIZE || *count <= room) {
            *count = nvml_entries(*count, room);
            return result;
        }
        room = nvml_room_for(*count);
    }
    return NVML_ABI_INSUFFICIENT_SIZE;
}

/* Drivers 530 and 535.43 to 535.86 write entries of 32 bytes through _v3. For lists with nobody in them. */
static bool is_known_for_long_entries(void) {
    char text[NVML_ABI_VERSION_BYTES + 1] = {0}; /* ends even where the driver ends it not */
    nvml_abi_return (*get)(char *, unsigned) = shim_real_named("nvmlSystemGetDriverVersion");
    if (!get || get(text, sizeof text - 1) != NVML_ABI_SUCCESS) return false;
    const char *dot = strchr(text, '.');
    uint64_t major = cot_digits(text), minor = dot ? cot_digits(dot + 1) : 0;
    return major == 530 || (major == 535 && minor >= 43 && minor <= 86);
}

/* How long the driver's entries are cannot be told from the symbol's name. They end where the filling begins. */
static size_t entry_size(const struct question *question, const unsigned char *entries, unsigned count) {
    if (question->nominal != sizeof(struct nvml_abi_process_v2)) return question->nominal;
    if (count == 0) return is_known_for_long_entries() ? LONGEST_ENTRY : question->nominal;
    size_t end = (size_t)count * LONGEST_ENTRY;
    while (end > 0 && entries[end - 1] == FILLING) end--;
    return end > (size_t)count * question->nominal ? LONGEST_ENTRY : question->nominal;
}

static uint32_t pid_at(const unsigned char *entries, size_t size, unsigned index) {
    uint32_t pid;
    memcpy(&pid, entries + index * size, sizeof pid);
    return pid;
}

/* Is this process in that list of the driver? */
static bool is_listed(const struct question *question, uint32_t pid) {
    unsigned char *entries;
    unsigned count = 0;
    bool found = false;
    if (question->real && ask_whole(question, &count, &entries) == NVML_ABI_SUCCESS) {
        size_t size = entry_size(question, entries, count);
        for (unsigned i = 0; i < count && !found; i++) found = pid_at(entries, size, i) == pid;
    }
    if (question->real) free(entries);
    return found;
}

/* By the driver's protocol: the count is always told, too little room is an error, nobody is a success. */
static nvml_abi_return hand_over(const unsigned char *entries, size_t size, unsigned have, unsigned *count, void *out) {
    unsigned room = *count;
    *count = have;
    if (have == 0) return NVML_ABI_SUCCESS;
    if (have > room) return NVML_ABI_INSUFFICIENT_SIZE;
    if (!out) return NVML_ABI_INVALID_ARGUMENT;
    memcpy(out, entries, have * size);
    return NVML_ABI_SUCCESS;
}

/* `mps`: the question for MPS clients, when this list is of processes that compute; NULL for other lists. */
static nvml_abi_return list(const struct question *question, const struct question *mps, unsigned *count, void *out) {
    unsigned char *entries;
    struct nvml_own own = {0};
    unsigned have = 0, kept = 0;
    uint32_t gpu = VIEW_NO_GPU;
    nvml_abi_return result = ask_whole(question, &have, &entries);
    if (result != NVML_ABI_SUCCESS) {
        free(entries);
        return result;
    }
    bool granted = nvml_gpu_of(question->device, &gpu);
    unsigned char *answer = NULL;
    if (nvml_own_begin(&own, gpu)) answer = calloc((size_t)have + own.count + 1, LONGEST_ENTRY);
    if (answer) {
        size_t size = entry_size(question, entries, have);
        for (unsigned i = 0; i < have; i++) {
            const struct view_process *process = nvml_own_find(&own, pid_at(entries, size, i));
            if (!process) continue;
            unsigned char *entry = answer + kept++ * size;
            memcpy(entry, entries + i * size, size);
            if (granted) memcpy(entry + offsetof(struct nvml_abi_process_v1, bytes), &process->bytes, 8);
        }
        unsigned told = kept;
        for (uint32_t i = 0; granted && mps && i < own.count; i++) {
            struct nvml_abi_process_535 entry = {.pid = own.list[i].pid,
                                                 .bytes = own.list[i].bytes,
                                                 .gpu_instance = NVML_ABI_NO_INSTANCE,
                                                 .compute_instance = NVML_ABI_NO_INSTANCE};
            bool known = entry.bytes == 0;
            for (unsigned k = 0; k < told && !known; k++) known = pid_at(answer, size, k) == entry.pid;
            if (!known && !is_listed(mps, entry.pid)) memcpy(answer + kept++ * size, &entry, size);
        }
        result = hand_over(answer, size, kept, count, out);
    } else {
        result = NVML_ABI_MEMORY;
    }
    nvml_own_end(&own);
    free(answer);
    free(entries);
    return result;
}

static nvml_abi_return plain_list(void *real, void *mps, nvml_abi_device device, unsigned *count, void *out,
                                  size_t nominal) {
    struct question question = {.real = real, .device = device, .nominal = nominal};
    struct question clients = {.real = mps, .device = device, .nominal = nominal};
    if (!real) return (nvml_abi_return)shim_missing();
    if (!count || !view_ready()) return ask(&question, count, out);
    return list(&question, mps ? &clients : NULL, count, out);
}

#define LISTS(suffix, nominal)                                                                                         \
    nvml_abi_return cot_nvmlDeviceGetComputeRunningProcesses##suffix(nvml_abi_device device, unsigned *count,          \
                                                                     void *out) {                                      \
        return plain_list(shim_real(COT_AT_nvmlDeviceGetComputeRunningProcesses##suffix),                              \
                          shim_real(COT_AT_nvmlDeviceGetMPSComputeRunningProcesses##suffix), device, count, out,       \
                          nominal);                                                                                    \
    }                                                                                                                  \
    nvml_abi_return cot_nvmlDeviceGetGraphicsRunningProcesses##suffix(nvml_abi_device device, unsigned *count,         \
                                                                      void *out) {                                     \
        return plain_list(shim_real(COT_AT_nvmlDeviceGetGraphicsRunningProcesses##suffix), NULL, device, count, out,   \
                          nominal);                                                                                    \
    }                                                                                                                  \
    nvml_abi_return cot_nvmlDeviceGetMPSComputeRunningProcesses##suffix(nvml_abi_device device, unsigned *count,       \
                                                                        void *out) {                                   \
        return plain_list(shim_real(COT_AT_nvmlDeviceGetMPSComputeRunningProcesses##suffix), NULL, device, count, out, \
                          nominal);                                                                                    \
    }
LISTS(, sizeof(struct nvml_abi_process_v1))
LISTS(_v2, sizeof(struct nvml_abi_process_v2))
LISTS(_v3, sizeof(struct nvml_abi_process_v2))

enum { MODE_COMPUTE = 0, MODE_MPS = 2, MODE_ALL = 3 };

/* A structure of a version that is not known here would be filled past our sight, so it is refused; its callers go on
 * with an older one. */
nvml_abi_return cot_nvmlDeviceGetRunningProcessDetailList(nvml_abi_device device,
                                                          struct nvml_abi_process_detail_list *out) {
    struct nvml_abi_process_detail_list of_clients;
    struct question question = {.real = shim_real(COT_AT_nvmlDeviceGetRunningProcessDetailList),
                                .device = device,
                                .nominal = sizeof(struct nvml_abi_process_535),
                                .detail = out};
    struct question clients = question;
    if (!question.real) return (nvml_abi_return)shim_missing();
    if (!out || !view_ready())
        return CALL_REAL(nvmlDeviceGetRunningProcessDetailList,
                         (nvml_abi_device, struct nvml_abi_process_detail_list *), device, out);
    uint32_t known = NVML_ABI_STRUCT_VERSION(struct nvml_abi_process_detail_list, 1);
    if (out->version != known) {
        struct nvml_abi_process_detail_list first = {.version = known, .mode = MODE_COMPUTE};
        question.detail = &first;
        unsigned none = 0;
        nvml_abi_return result = ask(&question, &none, NULL);
        bool answered = result == NVML_ABI_SUCCESS || result == NVML_ABI_INSUFFICIENT_SIZE;
        return answered ? NVML_ABI_ARGUMENT_VERSION_MISMATCH : result;
    }
    of_clients = *out;
    of_clients.mode = MODE_MPS;
    clients.detail = &of_clients;
    bool of_those_that_compute = out->mode == MODE_COMPUTE || out->mode == MODE_ALL;
    return list(&question, of_those_that_compute ? &clients : NULL, &out->count, out->entries);
}
