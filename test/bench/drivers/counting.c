/* An NVML that counts: every exported name adds one to a counter in a shared file and jumps on to the real library, so
 * that calls of the driver are counted, whichever process makes them. COTENANT_BENCH_NVML names the real library,
 * COTENANT_BENCH_CALLS the file: a record of 64 bytes for each name, a counter of eight bytes and the name. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../native/interposer/generated/nvml_verbs.h"

#define NVML_FUNCTION_NOT_FOUND 13

struct record {
    uint64_t calls;
    char name[56];
};

uint64_t *counting_counter[COT_NVML_COUNT];
void *counting_target[COT_NVML_COUNT];

static int missing(void) {
    return NVML_FUNCTION_NOT_FOUND;
}

__attribute__((constructor)) static void find_targets(void) {
#define NAME(index, symbol, verb, group)                                              \
    _Static_assert(sizeof #symbol <= sizeof((struct record){0}.name), "a name fits"); \
    names[index] = #symbol;
    const char *names[COT_NVML_COUNT];
    COT_NVML_ROWS(NAME)
    const char *library = getenv("COTENANT_BENCH_NVML"), *file = getenv("COTENANT_BENCH_CALLS");
    int fd = file ? open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *handle = library ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : NULL;
    size_t bytes = COT_NVML_COUNT * sizeof(struct record);
    struct record *records = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
        records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (records == MAP_FAILED || !handle) {
        fputs("counting libnvidia-ml: COTENANT_BENCH_NVML or COTENANT_BENCH_CALLS cannot be used\n", stderr);
        abort();
    }
    close(fd);
    for (int i = 0; i < COT_NVML_COUNT; i++) {
        void *real = dlsym(handle, names[i]);
        memcpy(records[i].name, names[i], strlen(names[i]));
        counting_target[i] = real ? real : (void *)missing;
        counting_counter[i] = &records[i].calls;
    }
}

/* Arguments are not known here, so the way on is a jump; r11 carries none. */
#define TRAMPOLINE(index, symbol, verb, group)                                            \
    __asm__(".text\n.globl " #symbol "\n.type " #symbol ", @function\n" #symbol ":\n"     \
            "endbr64\nmovq counting_counter+8*" #index "(%rip), %r11\nlock incq (%r11)\n" \
            "jmp *counting_target+8*" #index "(%rip)\n.size " #symbol ", .-" #symbol "\n");
COT_NVML_ROWS(TRAMPOLINE)
