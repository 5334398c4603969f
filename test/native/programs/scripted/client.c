/* A scripted CUDA driver API program: executes one command at a time and prints one line for each: the driver's result,
 * then values. It finds the driver as most programs do: dlopen, then dlsym. client [[leaderless:]LOOKUP [COMMAND...]]:
 * the look-up as in driver_lookup.h; these commands first, then those of standard input, one a line. With `leaderless:`
 * its first thread ends, and another thread does everything. */
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/abi/cuda.h"
/* Where physical, node-alloc and pool-make make memory; of node-alloc on a device, the command names the device. */
static abi_location chosen = {ABI_LOCATION_DEVICE, 0};

#include "../symbols/driver_lookup.h"
#include "client_arrays.h"

static struct way way;

static void *find(const char *name) {
    void *function = find_by(&way, name);
    if (!function) {
        fprintf(stderr, "client: no %s: %s\n", name, dlerror());
        exit(3);
    }
    return function;
}
#define CALL(name, types, ...) ((abi_result(*) types)find(#name))(__VA_ARGS__)

static abi_module module;

/* A module with one kernel that runs for so many microseconds and then ends with a sticky error, or not. */
static abi_result kernel(abi_function *function, unsigned long us, unsigned long error) {
    char text[512];
    snprintf(text, sizeof text,
             ".version 8.0\n.target sm_80\n.address_size 64\n// cotenant-sim: duration_us=%lu error=%lu\n"
             ".visible .entry work()\n{\n ret;\n}\n",
             us, error);
    abi_result result = CALL(cuModuleLoadData, (abi_module *, const void *), &module, text);
    if (result) return result;
    return CALL(cuModuleGetFunction, (abi_function *, abi_module, const char *), function, module, "work");
}

static unsigned blocks = 1;

static abi_result launch(abi_function function, unsigned long count) {
    abi_result result = ABI_SUCCESS;
    abi_result (*entry)(abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream,
                        void **, void **) = find("cuLaunchKernel");
    for (unsigned long i = 0; i < count && !result; i++)
        result = entry(function, blocks, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result;
}

static abi_result vmm_take(uint64_t bytes, int types, abi_devptr *at, abi_vmm_handle *handle) {
    abi_device device = 0;
    CALL(cuCtxGetDevice, (abi_device *), &device);
    abi_vmm_prop prop = {
        .type = ABI_ALLOCATION_PINNED, .requested_handle_types = types, .location = {ABI_LOCATION_DEVICE, device}};
    abi_access_desc access = {.location = prop.location, .flags = ABI_ACCESS_READ_WRITE};
    abi_result result = CALL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), handle,
                             bytes, &prop, 0ull);
    if (result) return result;
    result = CALL(cuMemAddressReserve, (abi_devptr *, size_t, size_t, abi_devptr, unsigned long long), at, bytes,
                  (size_t)0, (abi_devptr)0, 0ull);
    if (!result)
        result = CALL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long), *at, bytes, (size_t)0,
                      *handle, 0ull);
    if (!result)
        result =
            CALL(cuMemSetAccess, (abi_devptr, size_t, const abi_access_desc *, size_t), *at, bytes, &access, (size_t)1);
    return result;
}

/* Bytes of a pattern that identifies their writer and their place. */
static abi_result check(abi_devptr at, uint64_t bytes, unsigned value, uint64_t *wrong) {
    unsigned char *copy = malloc(bytes);
    if (!copy) return ABI_ERROR_OUT_OF_MEMORY;
    abi_result result = CALL(cuMemcpyDtoH_v2, (void *, abi_devptr, size_t), copy, at, (size_t)bytes);
    *wrong = 0;
    for (uint64_t i = 0; !result && i < bytes; i++) *wrong += copy[i] != (unsigned char)value;
    free(copy);
    return result;
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

#include "client_contexts.h"
#include "client_graphs.h"
#include "client_load.h"

/* The next command: those of the command line first. */
static int next(char ***words, char *line, int size) {
    if (!**words) return fgets(line, size, stdin) != NULL;
    return snprintf(line, (size_t)size, "%s", *(*words)++) < size;
}

static int work(int argc, char **argv) {
    char line[4096];
    const char *name = argc > 1 ? argv[1] : "libcuda.so.1";
    char **words = argv + (argc > 2 ? 2 : argc);
    way = way_to(name);
    if (!way.driver) {
        fprintf(stderr, "client: %s\n", dlerror());
        return 3;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (next(&words, line, sizeof line)) {
        char command[32];
        uint64_t a = 0, b = 0, c = 0, value = 0;
        if (sscanf(line, "%31s %" SCNu64 " %" SCNu64 " %" SCNu64, command, &a, &b, &c) < 1) continue;
        abi_result result = ABI_SUCCESS;
        abi_context context;
        abi_function function;
        abi_vmm_handle handle;
        abi_devptr at = 0;
        size_t first = 0, second = 0;
        int number = 0;
        if (!strcmp(command, "init")) {
            result = CALL(cuInit, (unsigned), 0u);
        } else if (!strcmp(command, "context")) { /* context DEVICE: the primary one, made current */
            result = CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)a);
            if (!result) result = CALL(cuCtxSetCurrent, (abi_context), context);
        } else if (!strcmp(command, "create")) { /* create DEVICE: an explicit one */
            result = CALL(cuCtxCreate_v2, (abi_context *, unsigned, abi_device), &context, 0u, (abi_device)a);
            value = (uintptr_t)context;
        } else if (!strcmp(command, "destroy")) {
            result = CALL(cuCtxDestroy_v2, (abi_context), (abi_context)(uintptr_t)a);
        } else if (!strcmp(command, "release")) {
            result = CALL(cuDevicePrimaryCtxRelease_v2, (abi_device), (abi_device)a);
        } else if (!strcmp(command, "reset")) {
            result = CALL(cuDevicePrimaryCtxReset_v2, (abi_device), (abi_device)a);
        } else if (!strcmp(command, "count")) {
            result = CALL(cuDeviceGetCount, (int *), &number);
            value = (uint64_t)number;
        } else if (!strcmp(command, "version")) {
            result = CALL(cuDriverGetVersion, (int *), &number);
            value = (uint64_t)number;
        } else if (!strcmp(command, "through")) { /* through PLUGIN: the version, looked up out of that object */
            char object[4096];
            if (sscanf(line, "through %4095s", object) != 1) return 2;
            void *plugin = dlopen(object, RTLD_NOW | RTLD_LOCAL);
            void *(*look_up)(const char *) = plugin ? (void *(*)(const char *))dlsym(plugin, "plugin_find") : NULL;
            abi_result (*get)(int *) = look_up ? (abi_result (*)(int *))look_up("cuDriverGetVersion") : NULL;
            result = get ? get(&number) : ABI_ERROR_NOT_FOUND;
            value = (uint64_t)number;
        } else if (!strcmp(command, "heap")) { /* heap BYTES: by an entry point that only a newer driver has */
            result = CALL(cuTensorHeapCreate, (abi_devptr *, size_t), &at, (size_t)a);
            value = at;
        } else if (!strcmp(command, "newer")) { /* newer BYTES: by the newest form of cuMemAlloc that there is */
            abi_result (*form)(abi_devptr *, uint64_t, size_t) = NULL;
            result = CALL(cuDriverGetVersion, (int *), &number);
            if (!result)
                result = CALL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *), "cuMemAlloc",
                              (void **)&form, number, (uint64_t)0, (int *)NULL);
            if (!result) result = form(&at, 0, (size_t)a);
            value = at;
        } else if (!strcmp(command, "uuid")) { /* uuid DEVICE: as the driver's own tools write it */
            abi_uuid uuid = {0};
            result = CALL(cuDeviceGetUuid, (abi_uuid *, abi_device), &uuid, (abi_device)a);
            printf("%d GPU-", result);
            for (int i = 0; i < 16; i++)
                printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid.bytes[i]);
            printf("\n");
            continue;
        } else if (!strcmp(command, "visible")) { /* the number in CUDA_VISIBLE_DEVICES; -1: it is not set */
            const char *list = getenv("CUDA_VISIBLE_DEVICES");
            printf("0 %d\n", list ? atoi(list) : -1);
            continue;
        } else if (!strcmp(command, "total")) {
            result = CALL(cuDeviceTotalMem_v2, (size_t *, abi_device), &first, (abi_device)a);
            value = first;
        } else if (!strcmp(command, "info")) {
            result = CALL(cuMemGetInfo_v2, (size_t *, size_t *), &first, &second);
            printf("%d %zu %zu\n", result, first, second);
            continue;
        } else if (!strcmp(command, "info-free")) { /* one of the two alone */
            result = CALL(cuMemGetInfo_v2, (size_t *, size_t *), &first, (size_t *)NULL);
            value = first;
        } else if (!strcmp(command, "info-total")) {
            result = CALL(cuMemGetInfo_v2, (size_t *, size_t *), (size_t *)NULL, &second);
            value = second;
        } else if (!strcmp(command, "default-info")) { /* as the first object in the program's scope answers */
            abi_result (*get)(size_t *, size_t *) = dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2");
            result = get ? get(&first, &second) : ABI_ERROR_NOT_FOUND;
            value = second;
        } else if (!strcmp(command, "alloc")) {
            result = CALL(cuMemAlloc_v2, (abi_devptr *, size_t), &at, (size_t)a);
            value = at;
        } else if (!strcmp(command, "fill-all")) { /* fill-all BYTES: as many allocations of BYTES as there are */
            uint64_t count = 0;
            while ((result = CALL(cuMemAlloc_v2, (abi_devptr *, size_t), &at, (size_t)a)) == ABI_SUCCESS) count++;
            value = count;
        } else if (!strcmp(command, "fill-managed")) {
            uint64_t count = 0;
            while ((result = CALL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), &at, (size_t)a, 1u)) ==
                   ABI_SUCCESS)
                count++;
            value = count;
        } else if (!strcmp(command, "managed")) {
            result = CALL(cuMemAllocManaged, (abi_devptr *, size_t, unsigned), &at, (size_t)a, 1u);
            value = at;
        } else if (!strcmp(command, "pitch")) {
            result = CALL(cuMemAllocPitch_v2, (abi_devptr *, size_t *, size_t, size_t, unsigned), &at, &first,
                          (size_t)a, (size_t)b, 4u);
            printf("%d %" PRIu64 " %zu\n", result, (uint64_t)at, first);
            continue;
        } else if (!strcmp(command, "free")) {
            result = CALL(cuMemFree_v2, (abi_devptr), (abi_devptr)a);
        } else if (!strcmp(command, "pool-alloc")) { /* pool-alloc BYTES [STREAM] */
            result = CALL(cuMemAllocAsync, (abi_devptr *, size_t, abi_stream), &at, (size_t)a, (abi_stream)b);
            value = at;
        } else if (!strcmp(command, "pool-from")) { /* pool-from BYTES: the same by naming device 0's pool */
            abi_pool pool;
            result = CALL(cuDeviceGetDefaultMemPool, (abi_pool *, abi_device), &pool, (abi_device)0);
            if (!result)
                result = CALL(cuMemAllocFromPoolAsync, (abi_devptr *, size_t, abi_pool, abi_stream), &at, (size_t)a,
                              pool, (abi_stream)NULL);
            value = at;
        } else if (!strcmp(command, "pool-free")) { /* pool-free AT [STREAM] */
            result = CALL(cuMemFreeAsync, (abi_devptr, abi_stream), (abi_devptr)a, (abi_stream)b);
        } else if (!strcmp(command, "pool-keep")) { /* pool-keep BYTES: release threshold of device 0's pool */
            abi_pool pool;
            result = CALL(cuDeviceGetDefaultMemPool, (abi_pool *, abi_device), &pool, (abi_device)0);
            if (!result)
                result = CALL(cuMemPoolSetAttribute, (abi_pool, int, void *), pool, (int)ABI_POOL_RELEASE_THRESHOLD,
                              (void *)&a);
        } else if (!strcmp(command, "pool-trim")) {
            abi_pool pool;
            result = CALL(cuDeviceGetDefaultMemPool, (abi_pool *, abi_device), &pool, (abi_device)0);
            if (!result) result = CALL(cuMemPoolTrimTo, (abi_pool, size_t), pool, (size_t)a);
        } else if (!strcmp(command, "vmm")) { /* vmm BYTES [TYPES]: where it is mapped, and a handle */
            handle = 0;
            result = vmm_take(a, b ? (int)b : ABI_HANDLE_POSIX_FD, &at, &handle);
            printf("%d %" PRIu64 " %" PRIu64 "\n", result, (uint64_t)at, (uint64_t)handle);
            continue;
        } else if (!strcmp(command, "location")) { /* location TYPE ID: for the commands after it */
            chosen = (abi_location){(int)a, (int)b};
            result = ABI_SUCCESS;
        } else if (!strcmp(command, "physical")) { /* physical BYTES: a handle of memory, mapped nowhere */
            abi_vmm_prop prop = {.type = ABI_ALLOCATION_PINNED, .location = chosen};
            result = CALL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), &handle,
                          (size_t)a, &prop, 0ull);
            value = handle;
        } else if (!strcmp(command, "map")) { /* map AT BYTES HANDLE */
            result = CALL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long), (abi_devptr)a,
                          (size_t)b, (size_t)0, (abi_vmm_handle)c, 0ull);
        } else if (!strcmp(command, "unmap")) {
            result = CALL(cuMemUnmap, (abi_devptr, size_t), (abi_devptr)a, (size_t)b);
        } else if (!strcmp(command, "unhandle")) {
            result = CALL(cuMemRelease, (abi_vmm_handle), (abi_vmm_handle)a);
        } else if (!strcmp(command, "host")) {
            void *page = NULL;
            result = CALL(cuMemHostAlloc, (void **, size_t, unsigned), &page, (size_t)a, 0u);
            value = (uintptr_t)page;
        } else if (!strcmp(command, "set")) { /* set AT BYTES VALUE */
            result =
                CALL(cuMemsetD8_v2, (abi_devptr, unsigned char, size_t), (abi_devptr)a, (unsigned char)c, (size_t)b);
        } else if (!strcmp(command, "check")) { /* check AT BYTES VALUE: number of wrong bytes */
            result = check(a, b, (unsigned)c, &value);
        } else if (!strcmp(command, "grid")) { /* grid BLOCKS: of each kernel from now on */
            blocks = (unsigned)a;
        } else if (!strcmp(command, "launch")) { /* launch COUNT US [ERROR] */
            result = kernel(&function, b ? b : 100, c);
            if (!result) result = launch(function, a);
        } else if (!strcmp(command, "sync")) {
            double before = now_ms();
            result = CALL(cuCtxSynchronize, (void));
            printf("%d %.3f\n", result, now_ms() - before);
            continue;
        } else if (!strcmp(command, "timed")) { /* timed COUNT US: milliseconds between events around the launches */
            abi_event start, end;
            float ms = 0;
            result = kernel(&function, b, 0);
            if (!result) result = CALL(cuEventCreate, (abi_event *, unsigned), &start, 0u);
            if (!result) result = CALL(cuEventCreate, (abi_event *, unsigned), &end, 0u);
            if (!result) result = CALL(cuEventRecord, (abi_event, abi_stream), start, (abi_stream)NULL);
            if (!result) result = launch(function, a);
            if (!result) result = CALL(cuEventRecord, (abi_event, abi_stream), end, (abi_stream)NULL);
            if (!result) result = CALL(cuEventSynchronize, (abi_event), end);
            if (!result) result = CALL(cuEventElapsedTime, (float *, abi_event, abi_event), &ms, start, end);
            if (!result) result = CALL(cuEventDestroy_v2, (abi_event), start);
            if (!result) result = CALL(cuEventDestroy_v2, (abi_event), end);
            printf("%d %.3f\n", result, (double)ms);
            continue;
        } else if (!strcmp(command, "spin")) { /* spin MS US: launch kernels of US back to back for MS milliseconds */
            double until = now_ms() + (double)a;
            result = kernel(&function, b, 0);
            while (!result && now_ms() < until) {
                result = launch(function, 16);
                if (!result) result = CALL(cuCtxSynchronize, (void));
                value += 16;
            }
        } else if (!strcmp(command, "call")) { /* call NAME: an entry point that takes nothing we know */
            char entry[128];
            if (sscanf(line, "call %127s", entry) == 1)
                result = ((abi_result (*)(void *, void *))find(entry))(NULL, NULL);
        } else if (!strcmp(command,
                           "address")) { /* address NAME VERSION FLAGS SYMBOL: result, status, is it that symbol? */
            char base[128], symbol[128];
            int version, status = -1;
            uint64_t flags;
            void *address = NULL;
            if (sscanf(line, "address %127s %d %" SCNu64 " %127s", base, &version, &flags, symbol) != 4) return 2;
            result = CALL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *), base, &address, version,
                          flags, &status);
            printf("%d %d %d\n", result, status, address && address == dlsym(way.driver, symbol));
            continue;
        } else if (!strcmp(command, "fork") ||
                   !strcmp(command,
                           "clone")) { /* what a forked child is answered to an allocation; the child then waits */
            int answer[2];
            if (pipe(answer) != 0) return 3;
            pid_t child = *command == 'f' ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            if (child == 0) {
                abi_result seen = CALL(cuMemAlloc_v2, (abi_devptr *, size_t), &at, (size_t)512);
                if (write(answer[1], &seen, sizeof seen) != sizeof seen) _exit(1);
                pause();
                _exit(0);
            }
            if (read(answer[0], &result, sizeof result) != sizeof result) return 3;
            value = (uint64_t)child;
        } else if (arrays_command(line)) {
            continue;
        } else if (!strcmp(command,
                           "close-all")) { /* descriptors, as daemons do; their numbers are another file's then */
            for (int fd = 3; fd < 4096; fd++) close(fd);
            while ((value = (uint64_t)open("/dev/null", O_RDWR)) < 600) {
            }
        } else if (!strcmp(command, "exec")) { /* the same program again, in the same process */
            printf("0 0\n");
            execl(argv[0], argv[0], (char *)NULL);
            return 3;
        } else if (!strcmp(command, "abort")) {
            abort();
        } else if (!strcmp(command, "kill-self")) {
            kill(getpid(), SIGKILL);
        } else if (!strcmp(command,
                           "load")) { /* load FORM MS US: launches in that form for so long; how many were done */
            char form[32];
            if (sscanf(line, "load %31s %" SCNu64 " %" SCNu64, form, &a, &b) != 3) return 2;
            result = load(form, a, b, &value);
        } else if (!strcmp(command, "work")) { /* work MS BYTES US: how many rounds */
            result = work_on(a, b, c, &value);
        } else if (!strcmp(command,
                           "fork-load")) { /* fork-load MS US: forks while another thread is at it; child's exit */
            result = fork_amid_load(a, b, &value);
        } else if (!strcmp(command, "init-amid-release")) { /* what the thread that was in the driver was answered */
            result = init_amid_release(&value);
        } else if (!graph_command(command, a, b, c, &result, &value) &&
                   !context_command(command, a, b, &result, &value)) {
            fprintf(stderr, "client: no such command: %s\n", command);
            return 2;
        }
        printf("%d %" PRIu64 "\n", result, value);
    }
    return 0;
}

static struct {
    int argc;
    char **argv;
} given;

static void *go_on(void *nothing) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", getpid());
    /* Not before the first thread is gone for good: "PID (client) Z". */
    for (;;) {
        char text[256] = "";
        FILE *file = fopen(path, "re");
        if (file && fgets(text, sizeof text, file) && strstr(text, ") Z ")) break;
        if (file) fclose(file);
        usleep(1000);
    }
    exit(work(given.argc, given.argv));
    return nothing;
}

int main(int argc, char **argv) {
    static const char LEADERLESS[] = "leaderless:";
    if (argc < 2 || strncmp(argv[1], LEADERLESS, sizeof LEADERLESS - 1) != 0) return work(argc, argv);
    argv[1] += sizeof LEADERLESS - 1;
    given.argc = argc;
    given.argv = argv;
    pthread_t thread;
    if (pthread_create(&thread, NULL, go_on, NULL)) return 2;
    pthread_exit(NULL);
}
