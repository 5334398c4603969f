/* Initialization, shutdown, and facts about the system. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nvml.h"

const struct sim_facts *nvml_facts;
uint32_t nvml_gpus[SIM_MAX_GPUS], nvml_gpu_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int link_fd = -1, users;
static pid_t owner;
static char handles[SIM_MAX_GPUS];

static nvml_abi_return start(void) {
    int facts_fd, doorbell;
    link_fd = sim_link_open(&nvml_facts, SIM_ROLE_NVML, 0, &facts_fd, &doorbell);
    if (link_fd < 0) return NVML_ABI_DRIVER_NOT_LOADED;
    void *facts = mmap(NULL, sizeof(struct sim_facts), PROT_READ, MAP_SHARED, facts_fd, 0);
    close(facts_fd);
    close(doorbell);
    if (facts == MAP_FAILED) return NVML_ABI_MEMORY;
    /* A visible instance makes its GPU visible. */
    uint32_t visible[SIM_MAX_GPUS], count = sim_visible_gpus(&nvml_facts, facts, visible);
    nvml_gpu_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct sim_facts *all = facts;
        uint32_t gpu = all->gpus[visible[i]].parent ? all->gpus[visible[i]].parent - 1 : visible[i], known = 0;
        while (known < nvml_gpu_count && nvml_gpus[known] != gpu) known++;
        if (known == nvml_gpu_count) nvml_gpus[nvml_gpu_count++] = gpu;
    }
    nvml_facts = facts;
    owner = getpid();
    return NVML_ABI_SUCCESS;
}

static nvml_abi_return init(const char *name) {
    if (sim_faults_armed) NVML_TRY(sim_fault(name));
    pthread_mutex_lock(&lock);
    nvml_abi_return result = nvml_facts ? NVML_ABI_SUCCESS : start();
    if (result == NVML_ABI_SUCCESS) users++;
    pthread_mutex_unlock(&lock);
    return result;
}

NVML_EXPORT nvmlInit_v2(void) {
    return init(__func__);
}
NVML_EXPORT nvmlInit(void) {
    return init(__func__);
}
NVML_EXPORT nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return init(__func__);
}
NVML_EXPORT nvmlShutdown(void) {
    NVML_ENTER(true);
    pthread_mutex_lock(&lock);
    if (--users == 0) {
        close(link_fd);
        munmap((void *)nvml_facts, sizeof *nvml_facts);
        nvml_facts = NULL;
        link_fd = -1;
    }
    pthread_mutex_unlock(&lock);
    return NVML_ABI_SUCCESS;
}

static bool is_listed(uint32_t gpu) {
    return !atomic_load((_Atomic uint32_t *)&nvml_facts->gpus[gpu].hidden);
}

/* The GPUs that NVML counts now; NULL: only their number. */
static uint32_t listed(uint32_t index, uint32_t *gpu) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < nvml_gpu_count; i++) {
        if (!is_listed(nvml_gpus[i])) continue;
        if (gpu && count == index) *gpu = nvml_gpus[i];
        count++;
    }
    return count;
}

nvml_abi_return nvml_gpu(nvml_abi_device device, uint32_t *gpu) {
    for (uint32_t index = 0; index < nvml_gpu_count; index++) {
        if (device != nvml_handle(nvml_gpus[index])) continue;
        *gpu = nvml_gpus[index];
        return is_listed(*gpu) ? NVML_ABI_SUCCESS : NVML_ABI_GPU_IS_LOST;
    }
    return NVML_ABI_INVALID_ARGUMENT;
}

nvml_abi_return nvml_gpu_or_instance(nvml_abi_device device, uint32_t *gpu) {
    for (uint32_t index = 0; index < nvml_facts->gpu_count; index++) {
        uint32_t parent = nvml_facts->gpus[index].parent;
        if (!parent || device != nvml_handle(index)) continue;
        *gpu = index;
        return nvml_gpu(nvml_handle(parent - 1), &parent);
    }
    return nvml_gpu(device, gpu);
}

nvml_abi_device nvml_handle(uint32_t gpu) {
    return &handles[gpu];
}

nvml_abi_return nvml_ask_whole(const struct sim_request *request, struct sim_reply *reply, void *payload,
                               uint32_t payload_size) {
    int fds[2], count;
    pthread_mutex_lock(&lock);
    /* A forked child would read its parent's replies: the real driver too treats it as a process without a session. */
    int failed =
        getpid() != owner || sim_link_exchange(link_fd, request, -1, reply, payload, payload_size, fds, &count);
    pthread_mutex_unlock(&lock);
    return failed ? NVML_ABI_UNKNOWN : reply->result;
}

nvml_abi_return nvml_ask(uint32_t op, uint32_t gpu, uint64_t a, struct sim_reply *reply, void *payload,
                         uint32_t payload_size) {
    struct sim_request request = {.op = op, .gpu = gpu, .arg = {a}};
    return nvml_ask_whole(&request, reply, payload, payload_size);
}

nvml_abi_return nvml_text(char *to, unsigned length, const char *text) {
    NVML_REQUIRE(to, NVML_ABI_INVALID_ARGUMENT);
    size_t bytes = strlen(text) + 1;
    NVML_REQUIRE(length >= bytes, NVML_ABI_INSUFFICIENT_SIZE);
    memcpy(to, text, bytes);
    return NVML_ABI_SUCCESS;
}

nvml_abi_return nvml_list(unsigned *count, unsigned have, const void *out) {
    unsigned capacity = *count;
    *count = have;
    NVML_REQUIRE(capacity >= have, NVML_ABI_INSUFFICIENT_SIZE);
    return out || have == 0 ? NVML_ABI_SUCCESS : NVML_ABI_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlSystemGetDriverVersion(char *text, unsigned length) {
    NVML_ENTER(true);
    return nvml_text(text, length, nvml_facts->driver_version);
}
/* Known before nvmlInit, too: here from the node, to which that connects. */
NVML_EXPORT nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    char version[64];
    if (sim_faults_armed) NVML_TRY(sim_fault(__func__));
    NVML_TRY(init("nvmlInit_v2"));
    snprintf(version, sizeof version, "%u.%s", nvml_facts->cuda_version / 1000, nvml_facts->driver_version);
    nvmlShutdown();
    return nvml_text(text, length, version);
}
NVML_EXPORT nvmlSystemGetCudaDriverVersion(int *version) {
    NVML_ENTER(version);
    *version = (int)nvml_facts->cuda_version;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlSystemGetCudaDriverVersion_v2(int *version) {
    NVML_ENTER(version);
    *version = (int)nvml_facts->cuda_version;
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    NVML_ENTER(true);
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[got] = 0;
    if (got == 0) return NVML_ABI_NOT_FOUND;
    if (!name || length == 0) return NVML_ABI_INVALID_ARGUMENT;
    snprintf(name, length, "%s", text); /* cropped to the length */
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceGetCount_v2(unsigned *count) {
    NVML_ENTER(count);
    *count = listed(0, NULL);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetCount(unsigned *count) {
    return nvmlDeviceGetCount_v2(count);
}
NVML_EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_abi_device *device) {
    NVML_ENTER(true);
    uint32_t gpu = 0;
    if (!device || index >= listed(index, &gpu)) return NVML_ABI_INVALID_ARGUMENT;
    *device = nvml_handle(gpu);
    return NVML_ABI_SUCCESS;
}
NVML_EXPORT nvmlDeviceGetHandleByIndex(unsigned index, nvml_abi_device *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvml_abi_return code) {
    switch (code) {
    case NVML_ABI_SUCCESS: return "Success";
    case NVML_ABI_UNINITIALIZED: return "Uninitialized";
    case NVML_ABI_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ABI_NOT_SUPPORTED: return "Not Supported";
    case NVML_ABI_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ABI_NOT_FOUND: return "Not Found";
    case NVML_ABI_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ABI_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ABI_TIMEOUT: return "Timeout";
    case NVML_ABI_LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    case NVML_ABI_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ABI_GPU_IS_LOST: return "GPU is lost";
    case NVML_ABI_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ABI_MEMORY: return "Insufficient Memory";
    case NVML_ABI_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}
