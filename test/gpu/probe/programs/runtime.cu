// A program of the runtime API: runtime WITHIN ABOVE. Computes by a plain launch, by stream-ordered memory and by a
// graph, takes WITHIN bytes, then asks for ABOVE, and says in one line of JSON what it saw.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include <cuda_runtime.h>

static const int COUNT = 1 << 20;

__global__ void twice(float *at, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) at[i] = 2 * at[i] + 1;
}

static void must(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s answered %d (%s)\n", what, (int)code, cudaGetErrorString(code));
    exit(1);
}
#define MUST(call) must(call, #call)

static bool is(const std::vector<float> &numbers, float factor, float more) {
    for (int i = 0; i < COUNT; i++) {
        if (numbers[i] != factor * (float)(i % 1000) + more) return false;
    }
    return true;
}

static int attempt(size_t bytes, void **block) {
    cudaError_t code = cudaMalloc(block, bytes);
    if (code != cudaSuccess) {
        *block = nullptr;
        cudaGetLastError();
    }
    return (int)code;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    size_t within = strtoull(argv[1], nullptr, 10), above = strtoull(argv[2], nullptr, 10);
    size_t bytes = COUNT * sizeof(float);
    std::vector<float> numbers(COUNT), back(COUNT);
    for (int i = 0; i < COUNT; i++) numbers[i] = (float)(i % 1000);
    float *at;
    MUST(cudaMalloc(&at, bytes));
    MUST(cudaMemcpy(at, numbers.data(), bytes, cudaMemcpyHostToDevice));
    twice<<<COUNT / 256, 256>>>(at, COUNT);
    MUST(cudaGetLastError());
    MUST(cudaMemcpy(back.data(), at, bytes, cudaMemcpyDeviceToHost));
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    bool correct = is(back, 2, 1);

    cudaStream_t stream;
    float *ordered;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMallocAsync((void **)&ordered, bytes, stream));
    MUST(cudaMemcpyAsync(ordered, numbers.data(), bytes, cudaMemcpyHostToDevice, stream));
    MUST(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    twice<<<COUNT / 256, 256, 0, stream>>>(ordered, COUNT);
    twice<<<COUNT / 256, 256, 0, stream>>>(ordered, COUNT);
    MUST(cudaStreamEndCapture(stream, &graph));
    MUST(cudaGraphInstantiate(&ready, graph, 0));
    MUST(cudaGraphLaunch(ready, stream));
    MUST(cudaMemcpyAsync(back.data(), ordered, bytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaFreeAsync(ordered, stream));
    MUST(cudaStreamSynchronize(stream));
    bool graph_correct = is(back, 4, 3);

    cudaDeviceProp properties;
    size_t free_bytes, total_bytes;
    MUST(cudaGetDeviceProperties(&properties, 0));
    MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
    void *block, *large, *small;
    int first = attempt(within, &block), second = attempt(above, &large);
    MUST(cudaFree(large));
    MUST(cudaFree(block));
    int third = attempt(1 << 20, &small);
    printf("{\"startedNs\": %llu, \"correct\": %s, \"graphCorrect\": %s, \"totalBytes\": %zu, "
           "\"propertiesTotalBytes\": %zu, \"freeBytes\": %zu, \"withinResult\": %d, \"aboveResult\": %d, "
           "\"afterResult\": %d}\n",
           (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec, correct ? "true" : "false",
           graph_correct ? "true" : "false", total_bytes, properties.totalGlobalMem, free_bytes, first, second, third);
    return 0;
}
