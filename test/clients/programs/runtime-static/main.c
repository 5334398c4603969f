/* A program with NVIDIA's CUDA runtime linked into it, which is what nvcc does by default: says what the
 * runtime answers. Knows nothing of Cotenant. */
#include <stddef.h>
#include <stdio.h>

int cudaDriverGetVersion(int *);
int cudaRuntimeGetVersion(int *);
int cudaGetDeviceCount(int *);
int cudaMemGetInfo(size_t *, size_t *);
int cudaMalloc(void **, size_t);
const char *cudaGetErrorName(int);

int main(void) {
    int driver = 0, runtime = 0, devices = 0;
    size_t free_bytes, total;
    void *pointer;
    int version = cudaDriverGetVersion(&driver), own = cudaRuntimeGetVersion(&runtime);
    int count = cudaGetDeviceCount(&devices), memory = cudaMemGetInfo(&free_bytes, &total);
    int allocation = cudaMalloc(&pointer, 1 << 20);
    printf("{\"version\":[%d,%d],\"own\":[%d,%d],\"count\":[%d,%d],\"memory\":%d,\"allocation\":%d,\"name\":\"%s\"}\n",
           version, driver, own, runtime, count, devices, memory, allocation, cudaGetErrorName(allocation));
    return 0;
}
