/* A program built for the shared CUDA runtime, linked with it by name: caches blocks as frameworks do, uses the stream-
 * ordered pool, captures a graph that allocates, launches a kernel of its own, frees, and replays it; then takes memory
 * in blocks until it is refused, goes on, says how it went on one line and holds the memory until its input ends. Knows
 * nothing of Cotenant. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#define BLOCK (64 * MIB)
#define MOST 4096

typedef struct {
    unsigned x, y, z;
} dim3;

int cudaGetDeviceCount(int *);
int cudaGetDeviceProperties_v2(void *, int);
int cudaSetDevice(int);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMallocAsync(void **, size_t, void *);
int cudaFreeAsync(void *, void *);
int cudaMemset(void *, int, size_t);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaDeviceGetDefaultMemPool(void **, int);
int cudaMemPoolSetAttribute(void *, int, void *);
int cudaMemPoolGetAttribute(void *, int, void *);
int cudaMemPoolTrimTo(void *, size_t);
int cudaDeviceSynchronize(void);
int cudaStreamCreate(void **);
int cudaStreamSynchronize(void *);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaGraphGetNodes(void *, void **, size_t *);
int cudaGraphNodeGetType(void *, int *);
int cudaGraphInstantiate(void **, void *, unsigned long long);
int cudaGraphLaunch(void *, void *);
int cudaGraphExecDestroy(void *);
int cudaGraphDestroy(void *);
int cudaGraphDebugDotPrint(void *, const char *, unsigned);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
const char *cudaGetErrorName(int);
int cudaGetDriverEntryPoint(const char *, void **, unsigned long long, int *);
/* What code that nvcc makes calls, under names that C keeps for itself. */
#define CALLED(name) __asm__("__cuda" name)
void **image_register(void *) CALLED("RegisterFatBinary");
void image_end(void **) CALLED("RegisterFatBinaryEnd");
void kernel_register(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *)
    CALLED("RegisterFunction");
void image_unregister(void **) CALLED("UnregisterFatBinary");
unsigned long cotenantStandInNotSupported(void);

/* What nvcc puts into a program: an image, what wraps it, a stub that names the kernel. */
static const uint32_t image[16] = {0xba55ed50u, 0x00100001u};
static const struct {
    uint32_t magic, version;
    const void *data, *more;
} wrapper = {0x466243b1u, 1, image, NULL};
static void stub(void) {}
static void **registered;
__attribute__((constructor)) static void register_kernels(void) {
    registered = image_register((void *)&wrapper);
    kernel_register(registered, (const char *)stub, (char *)stub, "scale", -1, NULL, NULL, NULL, NULL, NULL);
    image_end(registered);
}
static void unregister_kernels(void) {
    image_unregister(registered);
}

static void must(int result, const char *what) {
    if (result == 0) return;
    fprintf(stderr, "%s: %d %s\n", what, result, cudaGetErrorName(result));
    exit(1);
}
#define MUST(call) must(call, #call)

static size_t free_now(size_t *total) {
    size_t free_bytes, all;
    MUST(cudaMemGetInfo(&free_bytes, &all));
    if (total) *total = all;
    return free_bytes;
}

static int launch(const void *kernel, void *pointer, void *stream) {
    void *arguments[] = {&pointer};
    return cudaLaunchKernel(kernel, (dim3){8, 1, 1}, (dim3){128, 1, 1}, arguments, 0, stream);
}

/* Blocks that go back into a list and out of it; the runtime sees them when the list is emptied. 1 if bytes stay. */
static int cache_blocks(void) {
    void *cached[8];
    static unsigned char there[MIB], back[MIB];
    int same = 1;
    for (int i = 0; i < 8; i++) MUST(cudaMalloc(&cached[i], 20 * MIB));
    for (int round = 0; round < 100; round++) {
        void *block = cached[round * 5 % 8];
        memset(there, round, MIB);
        MUST(cudaMemset(block, 0, 20 * MIB));
        MUST(cudaMemcpy((char *)block + 7 * MIB, there, MIB, 1));
        MUST(launch(stub, block, NULL));
        MUST(cudaMemcpy(back, (char *)block + 7 * MIB, MIB, 2));
        same = same && !memcmp(there, back, MIB);
    }
    for (int i = 0; i < 8; i++) MUST(cudaFree(cached[i]));
    return same;
}

static uint64_t use_pool(void *stream) {
    void *pool, *block[3];
    uint64_t threshold = UINT64_MAX, reserved = 0;
    MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
    MUST(cudaMemPoolSetAttribute(pool, 4, &threshold));
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 3; i++) MUST(cudaMallocAsync(&block[i], 32 * MIB, stream));
        for (int i = 0; i < 3; i++) MUST(cudaMemsetAsync(block[i], round, 32 * MIB, stream));
        for (int i = 0; i < 3; i++) MUST(cudaFreeAsync(block[i], stream));
        MUST(cudaStreamSynchronize(stream));
    }
    MUST(cudaMemPoolGetAttribute(pool, 5, &reserved));
    threshold = 0;
    MUST(cudaMemPoolSetAttribute(pool, 4, &threshold));
    MUST(cudaMemPoolTrimTo(pool, 0));
    return reserved;
}

static void *capture(void *stream) {
    void *graph, *block;
    MUST(cudaStreamBeginCapture(stream, 0));
    MUST(cudaMallocAsync(&block, 96 * MIB, stream));
    MUST(cudaMemsetAsync(block, 7, 96 * MIB, stream));
    MUST(launch(stub, block, stream));
    MUST(launch(stub, block, stream));
    MUST(cudaFreeAsync(block, stream));
    MUST(cudaStreamEndCapture(stream, &graph));
    return graph;
}

/* The first result that is not 0, of making a graph ready and launching it `times`. */
static int replay(void *graph, void *stream, int times) {
    void *ready;
    int result = cudaGraphInstantiate(&ready, graph, 0);
    if (result) return result;
    for (int i = 0; i < times && !result; i++) result = cudaGraphLaunch(ready, stream);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaGraphExecDestroy(ready));
    return result;
}

int main(void) {
    char properties[1032];
    int devices, kinds[16] = {0};
    size_t total, nodes = 16, blocks = 0;
    void *stream, *graph, *list[16], *held[MOST], *one;
    int (*trim_graphs)(int);

    atexit(unregister_kernels);
    MUST(cudaGetDeviceCount(&devices));
    MUST(cudaGetDeviceProperties_v2(properties, 0));
    MUST(cudaSetDevice(0));
    size_t free_bytes = free_now(&total), property_total;
    memcpy(&property_total, properties + 288, sizeof property_total);
    MUST(cudaStreamCreate(&stream));

    int same = cache_blocks();
    uint64_t reserved = use_pool(stream);
    graph = capture(stream);
    MUST(cudaGraphGetNodes(graph, list, &nodes));
    for (size_t i = 0; i < nodes; i++) {
        int kind;
        MUST(cudaGraphNodeGetType(list[i], &kind));
        kinds[kind & 15]++;
    }
    MUST(replay(graph, stream, 5));
    MUST(cudaGetDriverEntryPoint("cuDeviceGraphMemTrim", (void **)&trim_graphs, 0, NULL));
    MUST(trim_graphs(0));
    MUST(cudaDeviceSynchronize());
    size_t idle = free_now(NULL);

    int strange = launch(main, NULL, NULL), strange_last = cudaGetLastError();
    int dot = cudaGraphDebugDotPrint(graph, "/dev/null", 0);
    cudaGetLastError();

    int refusal = 0;
    while (blocks < MOST && !(refusal = cudaMalloc(&held[blocks], BLOCK))) blocks++;
    int peeked = cudaPeekAtLastError(), last = cudaGetLastError(), after = cudaGetLastError();
    size_t full = free_now(NULL);
    int pool_refusal = cudaMallocAsync(&one, BLOCK, stream), graph_refusal = replay(graph, stream, 1);
    cudaGetLastError();
    MUST(cudaGraphDestroy(graph));
    if (blocks) MUST(cudaFree(held[--blocks]));
    int again = cudaMalloc(&held[blocks], BLOCK);
    if (again == 0) MUST(launch(stub, held[blocks++], NULL));
    MUST(cudaDeviceSynchronize());

    printf("{\"total\":%zu,\"free\":%zu,\"idle\":%zu,\"full\":%zu,\"blocks\":%zu,\"refusal\":%d,\"again\":%d,"
           "\"devices\":%d,\"name\":\"%s\",\"propertyTotal\":%zu,\"same\":%d,\"reserved\":%llu,"
           "\"nodes\":{\"all\":%zu,\"kernel\":%d,\"fill\":%d,\"allocation\":%d,\"free\":%d},\"strange\":[%d,%d],"
           "\"dot\":%d,"
           "\"errors\":[%d,%d,%d],\"poolRefusal\":%d,\"graphRefusal\":%d,\"notSupported\":%lu}\n",
           total, free_bytes, idle, full, blocks, refusal, again, devices, properties, property_total, same,
           (unsigned long long)reserved, nodes, kinds[0], kinds[2], kinds[10], kinds[11], strange, strange_last, dot,
           peeked, last, after, pool_refusal, graph_refusal, cotenantStandInNotSupported());
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
