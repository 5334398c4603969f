/* Looking up entry points by name and version. */
#define SUBJECT "lookup"
#include "../memory.h"

/* A name leads to the form of the version that was asked for. */
RULE(versions, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress", .calls = "cuGetProcAddress_v2") {
    void *old = NULL, *new = NULL;
    int status = 9;
    OK(cuGetProcAddress_v2("cuMemAlloc", &old, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    TRUE(status == CU_GET_PROC_ADDRESS_SUCCESS && old);
    OK(cuGetProcAddress_v2("cuMemAlloc", &new, 3020, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    TRUE(status == CU_GET_PROC_ADDRESS_SUCCESS && new && new != old);
}

/* A version between two forms leads to the older of them. */
RULE(newer_version, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress",
     .calls = "cuGetProcAddress_v2") {
    void *a = NULL, *b = NULL;
    OK(cuGetProcAddress_v2("cuMemAlloc", &a, 3020, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    OK(cuGetProcAddress_v2("cuMemAlloc", &b, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    TRUE(a && a == b);
}

/* A name that is newer than the version asked for is reported as such, without a pointer. */
RULE(too_old, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress", .calls = "cuGetProcAddress_v2") {
    void *f = (void *)1;
    int status = 9;
    OK(cuGetProcAddress_v2("cuMemAllocAsync", &f, 11010, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    TRUE(!f && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

/* A name that does not exist is no error: not found, without a pointer. */
RULE(lookup_unknown, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress",
     .calls = "cuGetProcAddress_v2") {
    void *f = (void *)1;
    int status = 9;
    OK(cuGetProcAddress_v2("cuNoSuchFunction", &f, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    TRUE(!f && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

/* A version above the driver's is an invalid value. */
RULE(beyond_driver, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress",
     .calls = "cuDriverGetVersion cuGetProcAddress_v2") {
    void *f;
    int version;
    OK(cuDriverGetVersion(&version));
    EXPECT(CUDA_ERROR_INVALID_VALUE,
           cuGetProcAddress_v2("cuMemAlloc", &f, version + 1000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
}

/* A flag that does not exist is an invalid value. */
RULE(flags, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress", .calls = "cuGetProcAddress_v2") {
    void *f;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuMemAlloc", &f, 12000, 64, NULL));
}

/* For the per-thread default stream there is another form, or the one that there is. */
RULE(per_thread, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress", .calls = "cuGetProcAddress_v2") {
    void *legacy = NULL, *thread = NULL, *standard = NULL;
    OK(cuGetProcAddress_v2("cuStreamSynchronize", &legacy, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
    OK(cuGetProcAddress_v2("cuStreamSynchronize", &thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    OK(cuGetProcAddress_v2("cuStreamSynchronize", &standard, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    TRUE(legacy && thread && legacy != thread && standard == legacy);
    OK(cuGetProcAddress_v2("cuMemAlloc", &legacy, 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
    OK(cuGetProcAddress_v2("cuMemAlloc", &thread, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    TRUE(legacy && legacy == thread);
}

/* The look-up finds both forms of itself. */
RULE(itself, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress", .calls = "cuGetProcAddress_v2") {
    void *old = NULL, *new = NULL, *f = NULL;
    OK(cuGetProcAddress_v2("cuGetProcAddress", &old, 11030, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    OK(cuGetProcAddress_v2("cuGetProcAddress", &new, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    TRUE(old && new && old != new);
    OK(((CUresult (*)(const char *, void **, int, uint64_t, int *))new)("cuInit", &f, 12000, 0, NULL));
    TRUE(f);
}

/* The form of CUDA 11.3 says by its result that nothing was found. */
RULE(first_form, .source = "CUDA Driver API 11.7, Driver Entry Point Access, cuGetProcAddress",
     .calls = "cuGetProcAddress") {
    void *old = NULL, *new = NULL, *f = NULL;
    OK(cuGetProcAddress("cuMemAlloc", &old, 2000, CU_GET_PROC_ADDRESS_DEFAULT));
    OK(cuGetProcAddress("cuMemAlloc", &new, 3020, CU_GET_PROC_ADDRESS_DEFAULT));
    TRUE(old && new && old != new);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchFunction", &f, 11030, CU_GET_PROC_ADDRESS_DEFAULT));
    EXPECT(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuMemAllocAsync", &f, 11010, CU_GET_PROC_ADDRESS_DEFAULT));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemAlloc", NULL, 11030, CU_GET_PROC_ADDRESS_DEFAULT));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuMemAlloc", &f, 11030, 64));
}

/* A pointer that was looked up is the function. */
RULE(works, .source = DRIVER_API "Driver Entry Point Access, cuGetProcAddress",
     .calls = "cuGetProcAddress_v2 cuMemFree_v2") {
    primary_context();
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
    CUdeviceptr p = 0;
    OK(cuGetProcAddress_v2("cuMemAlloc", (void **)&allocate, 12000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    OK(allocate(&p, MIB));
    OK(cuMemFree_v2(p));
}
