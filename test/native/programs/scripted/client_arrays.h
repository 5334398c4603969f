/* Commands of client.c for arrays and shared memory: external memory, IPC, pool pointers. Handles of 64 bytes are
 * written as 16 numbers, files as the PID and descriptor of the process that has them open. */
#pragma once

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../../../native/abi/cuda_arrays.h"

static void *find(const char *name);
#define CALL_AS(name, types, ...) ((abi_result(*) types)find(name))(__VA_ARGS__)

/* array FORM WIDTH HEIGHT DEPTH FORMAT CHANNELS FLAGS LEVELS */
static abi_result array_create(const char *form, const uint64_t *n, uint64_t *handle) {
    abi_array3d_shape shape = {n[0], n[1], n[2], (int)n[3], (unsigned)n[4], (unsigned)n[5]};
    abi_array_shape flat = {n[0], n[1], (int)n[3], (unsigned)n[4]};
    abi_array3d_shape_v1 old = {(unsigned)n[0], (unsigned)n[1], (unsigned)n[2],
                                (int)n[3],      (unsigned)n[4], (unsigned)n[5]};
    abi_array_shape_v1 old_flat = {(unsigned)n[0], (unsigned)n[1], (int)n[3], (unsigned)n[4]};
    void *out = NULL;
    abi_result result = ABI_ERROR_INVALID_VALUE;
    if (!strcmp(form, "2d")) result = CALL_AS("cuArrayCreate_v2", (void **, void *), &out, &flat);
    if (!strcmp(form, "3d")) result = CALL_AS("cuArray3DCreate_v2", (void **, void *), &out, &shape);
    if (!strcmp(form, "old-2d")) result = CALL_AS("cuArrayCreate", (void **, void *), &out, &old_flat);
    if (!strcmp(form, "old-3d")) result = CALL_AS("cuArray3DCreate", (void **, void *), &out, &old);
    if (!strcmp(form, "chain"))
        result = CALL_AS("cuMipmappedArrayCreate", (void **, void *, unsigned), &out, &shape, (unsigned)n[6]);
    *handle = (uintptr_t)out;
    return result;
}

/* All four descriptions must agree; prints the largest. */
static void array_describe(uint64_t handle) {
    abi_array3d_shape shape = {0};
    abi_array3d_shape_v1 old = {0};
    abi_array_shape flat = {0};
    abi_array_shape_v1 old_flat = {0};
    void *array = (void *)(uintptr_t)handle;
    abi_result result = CALL_AS("cuArray3DGetDescriptor_v2", (void *, void *), &shape, array);
    if (!result) result = CALL_AS("cuArray3DGetDescriptor", (void *, void *), &old, array);
    if (!result) result = CALL_AS("cuArrayGetDescriptor_v2", (void *, void *), &flat, array);
    if (!result) result = CALL_AS("cuArrayGetDescriptor", (void *, void *), &old_flat, array);
    bool same = shape.width == old.width && shape.width == flat.width && shape.width == old_flat.width &&
                shape.height == old.height && shape.height == flat.height && shape.height == old_flat.height &&
                shape.depth == old.depth && shape.flags == old.flags && shape.format == old.format &&
                shape.format == flat.format && shape.format == old_flat.format && shape.channels == old.channels &&
                shape.channels == flat.channels && shape.channels == old_flat.channels;
    printf("%d %d %zu %zu %zu %d %u %u\n", result, same, shape.width, shape.height, shape.depth, shape.format,
           shape.channels, shape.flags);
}

/* Writes every byte of an array's rows from the host and reads it back; *wrong counts bytes that differ. */
static abi_result array_copy(uint64_t handle, size_t row_bytes, size_t rows, uint64_t *wrong) {
    unsigned char *sent = malloc(row_bytes * rows), *got = calloc(rows, row_bytes);
    if (!sent || !got) exit(3);
    for (size_t i = 0; i < row_bytes * rows; i++) sent[i] = (unsigned char)(i * 7 + i / row_bytes);
    abi_memcpy_2d in = {.src_type = ABI_MEMORY_HOST,
                        .src_host = sent,
                        .src_pitch = row_bytes,
                        .dst_type = ABI_MEMORY_ARRAY,
                        .dst_array = (void *)(uintptr_t)handle,
                        .width_bytes = row_bytes,
                        .height = rows};
    abi_memcpy_2d out = {.src_type = ABI_MEMORY_ARRAY,
                         .src_array = (void *)(uintptr_t)handle,
                         .dst_type = ABI_MEMORY_HOST,
                         .dst_host = got,
                         .dst_pitch = row_bytes,
                         .width_bytes = row_bytes,
                         .height = rows};
    abi_result result = CALL_AS("cuMemcpy2D_v2", (const abi_memcpy_2d *), &in);
    if (!result) result = CALL_AS("cuMemcpy2D_v2", (const abi_memcpy_2d *), &out);
    for (size_t i = 0; i < row_bytes * rows; i++) *wrong += sent[i] != got[i];
    free(sent);
    free(got);
    return result;
}

/* tiles OPERATION RESOURCE CHAIN HANDLE X WIDTH [OPERATION RESOURCE ...]: parts of one row of tiles, in one call */
static abi_result array_tiles(const uint64_t *n, int count) {
    abi_array_map list[4] = {0};
    int parts = count / 6;
    for (int i = 0; i < parts; i++, n += 6) {
        list[i].operation = (int)n[0];
        list[i].resource = (void *)(uintptr_t)n[1];
        list[i].resource_type = n[2] ? ABI_RESOURCE_MIPMAPPED : ABI_RESOURCE_ARRAY;
        list[i].handle = n[3];
        list[i].part.tiles.x = (unsigned)n[4];
        list[i].part.tiles.width = (unsigned)n[5];
        list[i].part.tiles.height = list[i].part.tiles.depth = 1;
        list[i].device_mask = 1;
    }
    return CALL_AS("cuMemMapArrayAsync", (abi_array_map *, unsigned, abi_stream), list, (unsigned)parts, NULL);
}

/* box OPERATION ARRAY HANDLE LEVEL X Y Z WIDTH HEIGHT DEPTH */
static abi_result array_box(const uint64_t *n) {
    abi_array_map entry = {.operation = (int)n[0],
                           .resource = (void *)(uintptr_t)n[1],
                           .handle = n[2],
                           .part.tiles = {.level = (unsigned)n[3],
                                          .x = (unsigned)n[4],
                                          .y = (unsigned)n[5],
                                          .z = (unsigned)n[6],
                                          .width = (unsigned)n[7],
                                          .height = (unsigned)n[8],
                                          .depth = (unsigned)n[9]},
                           .device_mask = 1};
    return CALL_AS("cuMemMapArrayAsync_ptsz", (abi_array_map *, unsigned, abi_stream), &entry, 1u, NULL);
}

static abi_result external_import(int type, int fd, uint64_t bytes, uint64_t *handle) {
    abi_external_handle from = {.type = type, .handle.fd = fd, .size = bytes};
    abi_external out = NULL;
    abi_result result = CALL_AS("cuImportExternalMemory", (abi_external *, void *), &out, &from);
    if (result) close(fd); /* it is the driver's only once imported */
    *handle = (uintptr_t)out;
    return result;
}

static int file_of(uint64_t pid, uint64_t fd) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/fd/%" PRIu64, pid, fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void print_numbers(const void *bytes) {
    uint32_t words[16];
    memcpy(words, bytes, sizeof words);
    for (int i = 0; i < 16; i++) printf(" %" PRIu32, words[i]);
}

static void print_words(const void *bytes) {
    print_numbers(bytes);
    printf("\n");
}

static void read_words(const uint64_t *n, void *bytes) {
    uint32_t words[16];
    for (int i = 0; i < 16; i++) words[i] = (uint32_t)n[i];
    memcpy(bytes, words, sizeof words);
}

static abi_result pool_make(abi_pool *pool, bool managed, int handle_types) {
    bool host = chosen.type == ABI_LOCATION_HOST || chosen.type == ABI_LOCATION_HOST_NUMA; /* not to be shared */
    abi_pool_props props = {.alloc_type = managed ? ABI_ALLOCATION_MANAGED : ABI_ALLOCATION_PINNED,
                            .handle_types = host || managed ? 0 : handle_types,
                            .location = chosen};
    return CALL_AS("cuMemPoolCreate", (abi_pool *, const abi_pool_props *), pool, &props);
}

/* True: the command was one of these, and its line is printed. */
static bool arrays_command(const char *line) {
    char command[32], form[32] = "";
    uint64_t n[32] = {0}, value = 0;
    int at = 0, count = 0, fd = -1;
    abi_result result;
    if (sscanf(line, "%31s%n", command, &at) != 1) return false;
    if (!strcmp(command, "array") || !strcmp(command, "ipc-open")) {
        int length = 0;
        if (sscanf(line + at, "%31s%n", form, &length) != 1) return false;
        at += length;
    }
    for (int length; count < 32 && sscanf(line + at, "%" SCNu64 "%n", &n[count], &length) == 1; count++) at += length;
    void *handle = (void *)(uintptr_t)n[0];

    if (!strcmp(command, "array")) {
        result = array_create(form, n, &value);
    } else if (!strcmp(command, "array-destroy")) {
        result = CALL_AS("cuArrayDestroy", (void *), handle);
    } else if (!strcmp(command, "chain-destroy")) {
        result = CALL_AS("cuMipmappedArrayDestroy", (void *), handle);
    } else if (!strcmp(command, "chain-level")) { /* chain-level CHAIN LEVEL: the array of it */
        void *level = NULL;
        result = CALL_AS("cuMipmappedArrayGetLevel", (void **, void *, unsigned), &level, handle, (unsigned)n[1]);
        value = (uintptr_t)level;
    } else if (!strcmp(command, "array-describe")) {
        array_describe(n[0]);
        return true;
    } else if (!strcmp(command, "array-needs")) { /* array-needs ARRAY CHAIN: bytes, for arrays of deferred mapping */
        abi_array_requirements needs = {0};
        result = CALL_AS(n[1] ? "cuMipmappedArrayGetMemoryRequirements" : "cuArrayGetMemoryRequirements",
                         (void *, void *, abi_device), &needs, handle, 0);
        value = needs.size;
    } else if (!strcmp(command, "array-copy")) { /* array-copy ARRAY ROW-BYTES ROWS: number of wrong bytes */
        result = array_copy(n[0], n[1], n[2], &value);
    } else if (!strcmp(command, "tiles")) {
        result = array_tiles(n, count);
    } else if (!strcmp(command, "box")) {
        result = array_box(n);
    } else if (!strcmp(command, "external")) { /* external BYTES: memory of another interface, as a new file */
        fd = memfd_create("foreign", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)n[0]) != 0) exit(3);
        result = external_import(ABI_EXTERNAL_OPAQUE_FD, fd, n[0], &value);
    } else if (!strcmp(command, "external-from")) { /* external-from PID FD BYTES TYPE */
        result = external_import((int)n[3], file_of(n[0], n[1]), n[2], &value);
    } else if (!strcmp(command, "external-buffer")) { /* external-buffer MEMORY BYTES: a pointer */
        abi_external_buffer buffer = {.size = n[1]};
        abi_devptr pointer = 0;
        result = CALL_AS("cuExternalMemoryGetMappedBuffer", (abi_devptr *, void *, void *), &pointer, handle, &buffer);
        value = pointer;
    } else if (!strcmp(command,
                       "external-chain")) { /* external-chain MEMORY WIDTH HEIGHT: a chain of one level of floats */
        abi_external_mipmapped chain = {.shape = {n[1], n[2], 0, ABI_FORMAT_FLOAT, 1, 0}, .levels = 1};
        void *out = NULL;
        result = CALL_AS("cuExternalMemoryGetMappedMipmappedArray", (void **, void *, void *), &out, handle, &chain);
        value = (uintptr_t)out;
    } else if (!strcmp(command, "external-destroy")) {
        result = CALL_AS("cuDestroyExternalMemory", (void *), handle);
    } else if (!strcmp(command, "export")) { /* export HANDLE: a descriptor */
        result = CALL_AS("cuMemExportToShareableHandle", (int *, abi_vmm_handle, int, unsigned long long), &fd, n[0],
                         ABI_HANDLE_POSIX_FD, 0ull);
        value = (uint64_t)fd;
    } else if (!strcmp(command, "export-fabric")) { /* export-fabric HANDLE: 16 numbers */
        abi_ipc_handle out = {0};
        result = CALL_AS("cuMemExportToShareableHandle", (void *, abi_vmm_handle, int, unsigned long long), &out, n[0],
                         ABI_HANDLE_FABRIC, 0ull);
        printf("%d", result);
        print_words(&out);
        return true;
    } else if (!strcmp(command, "import-fabric")) { /* import-fabric NUMBERS: a handle */
        abi_ipc_handle from;
        read_words(n, &from);
        result = CALL_AS("cuMemImportFromShareableHandle", (abi_vmm_handle *, void *, int), &value, (void *)&from,
                         ABI_HANDLE_FABRIC);
    } else if (!strcmp(command, "close")) { /* close DESCRIPTOR */
        result = close((int)n[0]) ? ABI_ERROR_INVALID_VALUE : ABI_SUCCESS;
    } else if (!strcmp(command, "import-from")) { /* import-from PID FD: a handle */
        abi_vmm_handle imported = 0;
        fd = file_of(n[0], n[1]);
        result = CALL_AS("cuMemImportFromShareableHandle", (abi_vmm_handle *, void *, int), &imported,
                         (void *)(intptr_t)fd, ABI_HANDLE_POSIX_FD);
        close(fd);
        value = imported;
    } else if (!strcmp(command, "ipc-get")) { /* ipc-get POINTER: 16 numbers */
        abi_ipc_handle out = {0};
        result = CALL_AS("cuIpcGetMemHandle", (abi_ipc_handle *, abi_devptr), &out, n[0]);
        printf("%d", result);
        print_words(&out);
        return true;
    } else if (!strcmp(command, "ipc-open")) { /* ipc-open new|old NUMBERS: a pointer */
        abi_ipc_handle from;
        abi_devptr pointer = 0;
        read_words(n, &from);
        result = CALL_AS(!strcmp(form, "old") ? "cuIpcOpenMemHandle" : "cuIpcOpenMemHandle_v2",
                         (abi_devptr *, abi_ipc_handle, unsigned), &pointer, from, 1u);
        value = pointer;
    } else if (!strcmp(command, "ipc-close")) {
        result = CALL_AS("cuIpcCloseMemHandle", (abi_devptr), n[0]);
    } else if (!strcmp(command, "pool-share")) { /* pool-share BYTES: pool, pointer, descriptor, 16 numbers */
        abi_pool pool = NULL;
        abi_devptr pointer = 0;
        abi_pool_pointer out = {0};
        result = pool_make(&pool, false, ABI_HANDLE_POSIX_FD);
        if (!result)
            result = CALL_AS("cuMemAllocFromPoolAsync", (abi_devptr *, size_t, abi_pool, abi_stream), &pointer,
                             (size_t)n[0], pool, (abi_stream)NULL);
        if (!result)
            result = CALL_AS("cuMemPoolExportToShareableHandle", (void *, abi_pool, int, unsigned long long), &fd, pool,
                             ABI_HANDLE_POSIX_FD, 0ull);
        if (!result) result = CALL_AS("cuMemPoolExportPointer", (abi_pool_pointer *, abi_devptr), &out, pointer);
        printf("%d %" PRIuPTR " %" PRIu64 " %d", result, (uintptr_t)pool, (uint64_t)pointer, fd);
        print_words(&out);
        return true;
    } else if (!strcmp(command, "pool-open")) { /* pool-open PID FD NUMBERS: a pointer, and the imported pool */
        abi_pool pool = NULL;
        abi_pool_pointer from;
        abi_devptr pointer = 0;
        fd = file_of(n[0], n[1]);
        read_words(n + 2, &from);
        result = CALL_AS("cuMemPoolImportFromShareableHandle", (abi_pool *, void *, int, unsigned long long), &pool,
                         (void *)(intptr_t)fd, ABI_HANDLE_POSIX_FD, 0ull);
        close(fd);
        if (!result)
            result =
                CALL_AS("cuMemPoolImportPointer", (abi_devptr *, abi_pool, abi_pool_pointer *), &pointer, pool, &from);
        printf("%d %" PRIu64 " %" PRIuPTR "\n", result, (uint64_t)pointer, (uintptr_t)pool);
        return true;
    } else if (!strcmp(command, "pool-share-fabric")) { /* BYTES: pool, pointer, 2 times 16 numbers */
        abi_pool pool = NULL;
        abi_devptr pointer = 0;
        abi_ipc_handle fabric = {0};
        abi_pool_pointer out = {0};
        result = pool_make(&pool, false, ABI_HANDLE_FABRIC);
        if (!result)
            result = CALL_AS("cuMemAllocFromPoolAsync", (abi_devptr *, size_t, abi_pool, abi_stream), &pointer,
                             (size_t)n[0], pool, (abi_stream)NULL);
        if (!result)
            result = CALL_AS("cuMemPoolExportToShareableHandle", (void *, abi_pool, int, unsigned long long), &fabric,
                             pool, ABI_HANDLE_FABRIC, 0ull);
        if (!result) result = CALL_AS("cuMemPoolExportPointer", (abi_pool_pointer *, abi_devptr), &out, pointer);
        printf("%d %" PRIuPTR " %" PRIu64, result, (uintptr_t)pool, (uint64_t)pointer);
        print_numbers(&fabric);
        print_words(&out);
        return true;
    } else if (!strcmp(command, "pool-open-fabric")) { /* 2 times 16 NUMBERS: a pointer, and the imported pool */
        abi_pool pool = NULL;
        abi_ipc_handle fabric;
        abi_pool_pointer from;
        abi_devptr pointer = 0;
        read_words(n, &fabric);
        read_words(n + 16, &from);
        result = CALL_AS("cuMemPoolImportFromShareableHandle", (abi_pool *, void *, int, unsigned long long), &pool,
                         (void *)&fabric, ABI_HANDLE_FABRIC, 0ull);
        if (!result)
            result =
                CALL_AS("cuMemPoolImportPointer", (abi_devptr *, abi_pool, abi_pool_pointer *), &pointer, pool, &from);
        printf("%d %" PRIu64 " %" PRIuPTR "\n", result, (uint64_t)pointer, (uintptr_t)pool);
        return true;
    } else if (!strcmp(command, "pool-destroy")) {
        result = CALL_AS("cuMemPoolDestroy", (void *), handle);
    } else if (!strcmp(command, "pool-make")) { /* pool-make [1: managed]: at the chosen location */
        abi_pool pool = NULL;
        result = pool_make(&pool, n[0], ABI_HANDLE_POSIX_FD);
        value = (uintptr_t)pool;
    } else if (!strcmp(command, "pool-of")) { /* pool-of: the default pool of the chosen location */
        abi_pool pool = NULL;
        result = CALL_AS("cuMemGetDefaultMemPool", (abi_pool *, const abi_location *, int), &pool, &chosen,
                         ABI_ALLOCATION_PINNED);
        value = (uintptr_t)pool;
    } else if (!strcmp(command, "pool-set")) { /* pool-set POOL ATTRIBUTE VALUE */
        result = CALL_AS("cuMemPoolSetAttribute", (abi_pool, int, void *), (abi_pool)handle, (int)n[1], &n[2]);
    } else if (!strcmp(command, "pool-take")) { /* pool-take POOL BYTES */
        abi_devptr pointer = 0;
        result = CALL_AS("cuMemAllocFromPoolAsync", (abi_devptr *, size_t, abi_pool, abi_stream), &pointer,
                         (size_t)n[1], (abi_pool)handle, (abi_stream)NULL);
        value = pointer;
    } else if (!strcmp(command, "pool-choose")) { /* pool-choose POOL: device 0's own from now on */
        result = CALL_AS("cuDeviceSetMemPool", (abi_device, abi_pool), 0, (abi_pool)handle);
    } else if (!strcmp(command, "pool-chosen") || !strcmp(command, "pool-default")) { /* of device 0 */
        abi_pool pool = NULL;
        result = CALL_AS(command[5] == 'c' ? "cuDeviceGetMemPool" : "cuDeviceGetDefaultMemPool",
                         (abi_pool *, abi_device), &pool, 0);
        value = (uintptr_t)pool;
    } else {
        return false;
    }
    printf("%d %" PRIu64 "\n", result, value);
    return true;
}
