/* Setting and copying memory: widths, pitches, bounds and kinds. */
#define SUBJECT "copies"
#include "../memory.h"

#include <stdlib.h>
#include <string.h>

/* N counts elements of 1, 2 and 4 bytes, and nothing behind them is set. */
RULE(memset_widths, .source = DRIVER_API "Memory Management, cuMemsetD8, cuMemsetD16, cuMemsetD32",
     .calls = "cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(64);
    unsigned char back[64];
    OK(cuMemsetD8_v2(p, 0, 64));
    OK(cuMemsetD8_v2(p, 0x11, 3));
    OK(cuMemsetD16_v2(p + 16, 0x2233, 3));
    OK(cuMemsetD32_v2(p + 32, 0x44556677, 3));
    OK(cuMemcpyDtoH_v2(back, p, 64));
    TRUE(back[2] == 0x11 && back[3] == 0);
    TRUE(back[20] == 0x33 && back[21] == 0x22 && back[22] == 0);
    TRUE(back[40] == 0x77 && back[43] == 0x44 && back[44] == 0);
}

/* 16-bit values need an even address. */
RULE(memset_alignment_16, .source = DRIVER_API "Memory Management, cuMemsetD16", .calls = "cuMemsetD16_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD16_v2(new_memory(64) + 1, 0, 4));
}

/* 32-bit values need an address that 4 divides. */
RULE(memset_alignment_32, .source = DRIVER_API "Memory Management, cuMemsetD32", .calls = "cuMemsetD32_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(new_memory(64) + 2, 0, 4));
}

/* Address and pitch of 32-bit rows must be multiples of 4. */
RULE(memset_alignment_2d, .source = DRIVER_API "Memory Management, cuMemsetD2D32", .calls = "cuMemsetD2D32_v2") {
    primary_context();
    CUdeviceptr p = new_memory(4096);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32_v2(p + 2, 64, 0, 4, 4));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32_v2(p, 62, 0, 4, 4));
}

/* The bytes between the rows of a 2D memset stay. */
RULE(memset_rows, .source = DRIVER_API "Memory Management, cuMemsetD2D8",
     .calls = "cuMemsetD8_v2 cuMemsetD2D8_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(1024);
    unsigned char back[1024];
    OK(cuMemsetD8_v2(p, 0, 1024));
    OK(cuMemsetD2D8_v2(p, 256, 9, 100, 3));
    OK(cuMemcpyDtoH_v2(back, p, 1024));
    TRUE(back[0] == 9 && back[99] == 9 && back[100] == 0 && back[255] == 0);
    TRUE(back[512] == 9 && back[611] == 9 && back[612] == 0 && back[768] == 0);
}

/* The pitch is not used where there is one row. */
RULE(memset_one_row_pitch, .source = DRIVER_API "Memory Management, cuMemsetD2D8", .calls = "cuMemsetD2D8_v2") {
    primary_context();
    CUdeviceptr p = new_memory(1024);
    OK(cuMemsetD2D8_v2(p, 0, 9, 100, 1));
}

/* Memory is set in a current context only. */
RULE(memset_without_context, .source = DRIVER_API "Memory Management, cuMemsetD8",
     .calls = "cuCtxSetCurrent cuMemsetD8_v2") {
    primary_context();
    CUdeviceptr p = new_memory(64);
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD8_v2(p, 0, 64));
}

/* An address that is no device memory is an invalid value. */
RULE(memset_unknown, .source = DRIVER_API "Memory Management, cuMemsetD8", .calls = "cuMemsetD8_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2((CUdeviceptr)(uintptr_t)malloc(64), 0, 64));
}

/* A range that ends behind the allocation is an invalid value. */
RULE(memset_past_end, .source = DRIVER_API "Memory Management, cuMemsetD8", .calls = "cuMemsetD8_v2") {
    primary_context();
    CUdeviceptr p = new_memory(32 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p, 0, (size_t)1 << 40));
}

/* Bytes go to the device, between two places of it and back. */
RULE(copy_directions, .source = DRIVER_API "Memory Management, cuMemcpyHtoD, cuMemcpyDtoD, cuMemcpyDtoH",
     .calls = "cuMemcpyHtoD_v2 cuMemcpyDtoD_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(4096), q = new_memory(4096);
    char out[4096], back[4096] = {0};
    for (int i = 0; i < 4096; i++) out[i] = (char)(i * 7);
    OK(cuMemcpyHtoD_v2(p, out, 4096));
    OK(cuMemcpyDtoD_v2(q, p, 4096));
    OK(cuMemcpyDtoH_v2(back, q, 4096));
    TRUE(!memcmp(out, back, 4096));
}

/* The direction follows from the addresses, between host and host too. */
RULE(copy_infers, .source = DRIVER_API "Memory Management, cuMemcpy", .calls = "cuMemcpy") {
    primary_context();
    CUdeviceptr p = new_memory(64);
    char a[64] = "from the program", b[64] = "", c[64] = "";
    OK(cuMemcpy(p, (CUdeviceptr)(uintptr_t)a, 64));
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)b, p, 64));
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)c, (CUdeviceptr)(uintptr_t)b, 64));
    TRUE(!strcmp(a, b) && !strcmp(a, c));
}

/* An address that is no device memory is an invalid value. */
RULE(copy_to_unknown, .source = DRIVER_API "Memory Management, cuMemcpyHtoD",
     .calls = "cuMemcpyHtoD_v2 cuMemcpyDtoH_v2") {
    primary_context();
    char bytes[64] = {0};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0x1000, bytes, 64));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(bytes, 0x1000, 64));
}

/* Memory that was freed is not copied from. */
RULE(copy_freed, .source = DRIVER_API "Memory Management, cuMemcpyDtoD", .calls = "cuMemFree_v2 cuMemcpyDtoD_v2") {
    primary_context();
    CUdeviceptr p = new_memory(32 * MIB), q = new_memory(32 * MIB);
    OK(cuMemFree_v2(p));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(q, p, 4096));
}

/* A range that ends behind the allocation is an invalid value. */
RULE(copy_past_end, .source = DRIVER_API "Memory Management, cuMemcpyDtoD", .calls = "cuMemcpyDtoD_v2") {
    primary_context();
    CUdeviceptr p = new_memory(2 * MIB), q = new_memory(4 * MIB);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(q, p, (size_t)1 << 40));
}

/* Bytes are copied in a current context only. */
RULE(copy_without_context, .source = DRIVER_API "Memory Management, cuMemcpyHtoD",
     .calls = "cuCtxSetCurrent cuMemcpyHtoD_v2") {
    primary_context();
    CUdeviceptr p = new_memory(64);
    char bytes[64] = {0};
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyHtoD_v2(p, bytes, 64));
}

static CUDA_MEMCPY2D rows_to(CUdeviceptr to, size_t pitch, const void *from) {
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = 100,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = pitch,
                           .WidthInBytes = 100,
                           .Height = 3};
}

/* Rows go to a pitch that cuMemAllocPitch gave, and nothing between them. */
RULE(copy_2d, .source = DRIVER_API "Memory Management, cuMemcpy2D",
     .calls = "cuMemAllocPitch_v2 cuMemsetD8_v2 cuMemcpy2D_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p;
    size_t pitch;
    char from[300], back[100];
    memset(from, 5, 300);
    from[250] = 6;
    OK(cuMemAllocPitch_v2(&p, &pitch, 100, 3, 4));
    OK(cuMemsetD8_v2(p, 1, pitch * 2 + 100));
    CUDA_MEMCPY2D copy = rows_to(p, pitch, from);
    OK(cuMemcpy2D_v2(&copy));
    OK(cuMemcpyDtoH_v2(back, p + pitch * 2, 100));
    TRUE(back[50] == 6 && back[51] == 5);
    OK(cuMemcpyDtoH_v2(back, p + 100, 1));
    TRUE(pitch == 100 || back[0] == 1);
}

/* A pitch below the width is refused. */
RULE(copy_2d_narrow_pitch, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    char from[300];
    CUDA_MEMCPY2D copy = rows_to(new_memory(4096), 99, from);
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
    copy = rows_to(new_memory(4096), 512, from);
    copy.srcPitch = 64;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
}

/* A pitch below width and offset together is refused. */
RULE(copy_2d_offset_in_pitch, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    char from[400];
    CUDA_MEMCPY2D copy = rows_to(new_memory(4096), 120, from);
    copy.dstXInBytes = 21;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
}

/* A pitch above the largest that the device reports is refused. */
RULE(copy_2d_wide_pitch, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    char from[300];
    CUDA_MEMCPY2D copy = rows_to(new_memory(4096), 512, from);
    int most = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    TRUE(most > 0);
    copy.dstPitch = (size_t)most + 512;
    FAILS(cuMemcpy2D_v2(&copy));
}

/* A null description is an invalid value. */
RULE(copy_2d_null, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(NULL));
}

/* A kind of memory that does not exist is an invalid value. */
RULE(copy_2d_unknown_kind, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2") {
    primary_context();
    char from[300];
    CUDA_MEMCPY2D copy = rows_to(new_memory(4096), 512, from);
    copy.srcMemoryType = 9;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
}

/* The unified kind takes addresses of the host and of the device. */
RULE(copy_2d_unified, .source = DRIVER_API "Memory Management, cuMemcpy2D", .calls = "cuMemcpy2D_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(4096);
    char from[300] = "unified", back[8] = "";
    CUDA_MEMCPY2D copy = rows_to(p, 512, from);
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = (CUdeviceptr)(uintptr_t)from;
    OK(cuMemcpy2D_v2(&copy));
    OK(cuMemcpyDtoH_v2(back, p, 8));
    TRUE(!strcmp(back, "unified"));
}

static CUDA_MEMCPY3D block_to(CUdeviceptr to, const void *from) {
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = 16,
                           .srcHeight = 4,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .dstPitch = 32,
                           .dstHeight = 8,
                           .WidthInBytes = 16,
                           .Height = 4,
                           .Depth = 2};
}

/* A slice begins after pitch times height bytes of the one before. */
RULE(copy_3d, .source = DRIVER_API "Memory Management, cuMemcpy3D", .calls = "cuMemcpy3D_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(4096);
    char from[128], back[16];
    for (int i = 0; i < 128; i++) from[i] = (char)i;
    CUDA_MEMCPY3D copy = block_to(p, from);
    OK(cuMemcpy3D_v2(&copy));
    OK(cuMemcpyDtoH_v2(back, p + 288, 16));
    TRUE(back[0] == 64 + 16 && back[15] == 64 + 31);
}

/* A height of slices below that of the block is refused. */
RULE(copy_3d_low_height, .source = DRIVER_API "Memory Management, cuMemcpy3D", .calls = "cuMemcpy3D_v2") {
    primary_context();
    char from[128];
    CUDA_MEMCPY3D copy = block_to(new_memory(4096), from);
    copy.dstHeight = 3;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&copy));
}

/* A copy between contexts may name the same one twice. */
RULE(copy_peer_same_context, .source = DRIVER_API "Memory Management, cuMemcpyPeer",
     .calls = "cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = new_memory(64), q = new_memory(64);
    char back[4] = "";
    OK(cuMemcpyHtoD_v2(p, "abc", 4));
    OK(cuMemcpyPeer(q, current_context(), p, current_context(), 64));
    OK(cuMemcpyDtoH_v2(back, q, 4));
    TRUE(!strcmp(back, "abc"));
}

static CUresult batch(size_t count, size_t attributes, size_t first, int order) {
    static CUdeviceptr to[4], from[4];
    static size_t sizes[4] = {16, 16, 16, 16};
    for (int i = 0; i < 4; i++) to[i] = new_memory(64), from[i] = new_memory(64);
    CUmemcpyAttributes attrs[4];
    size_t index[4] = {first, 1, 2, 3};
    memset(attrs, 0, sizeof attrs);
    for (int i = 0; i < 4; i++) attrs[i].srcAccessOrder = order;
    CUstream s;
    if (cuStreamCreate(&s, 0)) return CUDA_ERROR_UNKNOWN;
    CUresult result = cuMemcpyBatchAsync_v2(to, from, sizes, count, attrs, index, attributes, s);
    cuStreamSynchronize(s);
    return result;
}

/* One set of attributes may serve several copies. */
RULE(batch_of_copies, .source = DRIVER_API "Memory Management, cuMemcpyBatchAsync", .calls = "cuInit") {
    primary_context();
    OK(batch(4, 1, 0, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));
    OK(batch(4, 4, 0, CU_MEMCPY_SRC_ACCESS_ORDER_ANY));
}

/* The first set of attributes must begin with the first copy. */
RULE(batch_first_index, .source = DRIVER_API "Memory Management, cuMemcpyBatchAsync", .calls = "cuInit") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, batch(4, 1, 1, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));
}

/* There cannot be more sets of attributes than copies. */
RULE(batch_more_attributes, .source = DRIVER_API "Memory Management, cuMemcpyBatchAsync", .calls = "cuInit") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, batch(2, 4, 0, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));
}

/* A copy without a valid order of access is an invalid value. */
RULE(batch_order_missing, .source = DRIVER_API "Memory Management, cuMemcpyBatchAsync", .calls = "cuInit") {
    primary_context();
    EXPECT(CUDA_ERROR_INVALID_VALUE, batch(4, 1, 0, CU_MEMCPY_SRC_ACCESS_ORDER_INVALID));
}

/* The stream must not be the legacy default stream. */
RULE(batch_null_stream, .source = DRIVER_API "Memory Management, cuMemcpyBatchAsync",
     .calls = "cuMemcpyBatchAsync_v2") {
    primary_context();
    CUdeviceptr to = new_memory(64), from = new_memory(64);
    size_t size = 16, index = 0;
    CUmemcpyAttributes attrs = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_v2(&to, &from, &size, 1, &attrs, &index, 1, NULL));
}
