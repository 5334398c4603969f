/* Modules, libraries, lazy loading, and errors that stay. */
#define SUBJECT "modules"
#include "../memory.h"

#include <stdlib.h>
#include <string.h>

#define HEAD ".version 6.0\n.target sm_50\n.address_size 64\n"
static const char CODE[] = HEAD ".visible .global .align 4 .u32 answer = 42;\n"
                                ".visible .global .align 16 .b8 table[4096];\n"
                                ".visible .entry first() { ret; }\n"
                                ".visible .entry second(.param .u64 pointer) { ret; }\n";
static CUmodule module(void) {
    CUmodule m = NULL;
    return cuModuleLoadData(&m, CODE) == CUDA_SUCCESS ? m : NULL;
}

static CUlibrary library(void) {
    CUlibrary l = NULL;
    return cuLibraryLoadData(&l, CODE, NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS ? l : NULL;
}

/* PTX text is loaded and its functions are found by name. */
RULE(ptx, .source = DRIVER_API "Module Management, cuModuleLoadData, cuModuleGetFunction",
     .calls = "cuModuleGetFunction cuModuleUnload") {
    primary_context();
    CUfunction f = NULL;
    CUmodule m = module();
    TRUE(m);
    OK(cuModuleGetFunction(&f, m, "second"));
    TRUE(f);
    OK(cuModuleUnload(m));
}

/* Bytes that are no code are not loaded. */
RULE(garbage, .source = DRIVER_API "Module Management, cuModuleLoadData", .calls = "cuModuleLoadData") {
    primary_context();
    CUmodule m;
    CUresult result = cuModuleLoadData(&m, "this is no code at all");
    TRUE(result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_INVALID_PTX ||
         result == CUDA_ERROR_NO_BINARY_FOR_GPU || result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
}

/* PTX that does not compile is invalid PTX. */
RULE(bad_ptx, .source = DRIVER_API "Module Management, cuModuleLoadData", .calls = "cuModuleLoadData") {
    primary_context();
    CUmodule m;
    EXPECT(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&m, HEAD ".visible .entry broken() { this is no instruction; }\n"));
}

/* PTX of a version that the driver does not know is reported as such. */
RULE(newer_ptx, .source = DRIVER_API "Module Management, cuModuleLoadData", .calls = "cuModuleLoadData") {
    primary_context();
    CUmodule m;
    EXPECT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
           cuModuleLoadData(&m, ".version 99.0\n.target sm_50\n.address_size 64\n.visible .entry f() { ret; }\n"));
}

/* Null arguments are invalid values. */
RULE(module_null, .source = DRIVER_API "Module Management, cuModuleLoadData", .calls = "cuModuleLoadData") {
    primary_context();
    CUmodule m;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&m, NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(NULL, CODE));
}

/* A module needs a current context. */
RULE(without_context, .source = DRIVER_API "Module Management, cuModuleLoadData",
     .calls = "cuCtxSetCurrent cuModuleLoadData") {
    primary_context();
    CUmodule m;
    OK(cuCtxSetCurrent(NULL));
    EXPECT(CUDA_ERROR_INVALID_CONTEXT, cuModuleLoadData(&m, CODE));
}

/* A file that does not exist is not found. */
RULE(no_file, .source = DRIVER_API "Module Management, cuModuleLoad", .calls = "cuModuleLoad") {
    primary_context();
    CUmodule m;
    EXPECT(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent/code.cubin"));
}

/* A function that the module lacks is not found. */
RULE(unknown_function, .source = DRIVER_API "Module Management, cuModuleGetFunction", .calls = "cuModuleGetFunction") {
    primary_context();
    CUfunction f;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, module(), "third"));
}

/* A null name, and a null place for the function, are invalid values. */
RULE(null_name, .source = DRIVER_API "Module Management, cuModuleGetFunction", .calls = "cuModuleGetFunction") {
    primary_context();
    CUfunction f;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&f, module(), NULL));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(NULL, module(), "first"));
}

/* A module reports its functions. */
RULE(function_count, .source = DRIVER_API "Module Management, cuModuleGetFunctionCount, cuModuleEnumerateFunctions",
     .calls = "cuModuleGetFunctionCount cuModuleEnumerateFunctions") {
    primary_context();
    unsigned count = 0;
    CUfunction f[4] = {0};
    CUmodule m = module();
    OK(cuModuleGetFunctionCount(&count, m));
    TRUE(count == 2);
    OK(cuModuleEnumerateFunctions(f, 2, m));
    TRUE(f[0] && f[1] && f[0] != f[1] && !f[2]);
}

/* A function reports its name and its module. */
RULE(function_name, .source = DRIVER_API "Execution Control, cuFuncGetName, cuFuncGetModule",
     .calls = "cuModuleGetFunction cuFuncGetName cuFuncGetModule") {
    primary_context();
    const char *name = NULL;
    CUfunction f;
    CUmodule m = module(), found = NULL;
    OK(cuModuleGetFunction(&f, m, "second"));
    OK(cuFuncGetName(&name, f));
    TRUE(name && !strcmp(name, "second"));
    OK(cuFuncGetModule(&found, f));
    TRUE(found == m);
}

/* A global has the size of its declaration and its first value. */
RULE(global, .source = DRIVER_API "Module Management, cuModuleGetGlobal",
     .calls = "cuModuleGetGlobal_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = 0;
    size_t bytes = 0;
    unsigned value = 0;
    OK(cuModuleGetGlobal_v2(&p, &bytes, module(), "answer"));
    TRUE(p && bytes == 4);
    OK(cuMemcpyDtoH_v2(&value, p, 4));
    TRUE(value == 42);
}

/* A global array is memory that can be set. */
RULE(global_array, .source = DRIVER_API "Module Management, cuModuleGetGlobal",
     .calls = "cuModuleGetGlobal_v2 cuMemsetD8_v2 cuMemcpyDtoH_v2") {
    primary_context();
    CUdeviceptr p = 0;
    size_t bytes = 0;
    unsigned char back = 0;
    OK(cuModuleGetGlobal_v2(&p, &bytes, module(), "table"));
    TRUE(bytes == 4096 && p % 16 == 0);
    OK(cuMemsetD8_v2(p, 5, 4096));
    OK(cuMemcpyDtoH_v2(&back, p + 4095, 1));
    TRUE(back == 5);
}

/* A global is not freed as an allocation. */
RULE(global_not_freed, .source = DRIVER_API "Memory Management, cuMemFree",
     .calls = "cuModuleGetGlobal_v2 cuMemFree_v2") {
    primary_context();
    CUdeviceptr p;
    OK(cuModuleGetGlobal_v2(&p, NULL, module(), "table"));
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

/* One of address and size may be null. */
RULE(global_one_null, .source = DRIVER_API "Module Management, cuModuleGetGlobal", .calls = "cuModuleGetGlobal_v2") {
    primary_context();
    CUdeviceptr p = 0;
    size_t bytes = 0;
    CUmodule m = module();
    OK(cuModuleGetGlobal_v2(&p, NULL, m, "table"));
    OK(cuModuleGetGlobal_v2(NULL, &bytes, m, "table"));
    TRUE(p && bytes == 4096);
}

/* A global that the module lacks is not found. */
RULE(global_unknown, .source = DRIVER_API "Module Management, cuModuleGetGlobal", .calls = "cuModuleGetGlobal_v2") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&p, NULL, module(), "nothing"));
}

/* A null module is refused. */
RULE(unload_null, .source = DRIVER_API "Module Management, cuModuleUnload", .calls = "cuModuleUnload") {
    primary_context();
    ONE_OF(cuModuleUnload(NULL), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE);
}

/* Two modules of the same code have globals of their own. */
RULE(two_of_the_same, .source = DRIVER_API "Module Management, cuModuleLoadData", .calls = "cuModuleGetGlobal_v2") {
    primary_context();
    CUdeviceptr p, q;
    OK(cuModuleGetGlobal_v2(&p, NULL, module(), "table"));
    OK(cuModuleGetGlobal_v2(&q, NULL, module(), "table"));
    TRUE(p >= q + 4096 || q >= p + 4096);
}

/* Modules are loaded lazily by default. */
RULE(loading_lazy, .source = GUIDE "Lazy Loading, Change of default", .calls = "cuInit cuModuleGetLoadingMode",
     .recalled = true) {
    int mode = 0;
    unsetenv("CUDA_MODULE_LOADING");
    OK(cuInit(0));
    OK(cuModuleGetLoadingMode(&mode));
    TRUE(mode == CU_MODULE_LAZY_LOADING);
}

/* CUDA_MODULE_LOADING=EAGER makes loading eager. */
RULE(loading_eager, .source = DRIVER_API "Module Management, cuModuleGetLoadingMode",
     .calls = "cuInit cuModuleGetLoadingMode") {
    int mode = 0;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    OK(cuInit(0));
    OK(cuModuleGetLoadingMode(&mode));
    TRUE(mode == CU_MODULE_EAGER_LOADING);
}

/* A function that was loaded is loaded, and loading it again changes nothing. */
RULE(function_loaded, .source = DRIVER_API "Execution Control, cuFuncLoad, cuFuncIsLoaded",
     .calls = "cuModuleGetFunction cuFuncLoad cuFuncIsLoaded") {
    primary_context();
    int state = 0;
    CUfunction f;
    OK(cuModuleGetFunction(&f, module(), "first"));
    OK(cuFuncLoad(f));
    OK(cuFuncIsLoaded(&state, f));
    TRUE(state == CU_FUNCTION_LOADING_STATE_LOADED);
    OK(cuFuncLoad(f));
}

/* A null function is refused. */
RULE(function_load_null, .source = DRIVER_API "Execution Control, cuFuncLoad", .calls = "cuFuncLoad") {
    primary_context();
    ONE_OF(cuFuncLoad(NULL), CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_HANDLE);
}

/* A library's kernel has a function in the current context. */
RULE(library_kernel, .source = DRIVER_API "Library Management, cuLibraryGetKernel, cuKernelGetFunction",
     .calls = "cuLibraryGetKernel cuKernelGetFunction cuLaunchKernel cuCtxSynchronize") {
    primary_context();
    CUkernel k = NULL;
    CUfunction f = NULL;
    CUlibrary l = library();
    TRUE(l);
    OK(cuLibraryGetKernel(&k, l, "first"));
    OK(cuKernelGetFunction(&f, k));
    TRUE(f);
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
}

/* A library needs no current context. */
RULE(library_without_context, .source = DRIVER_API "Library Management, cuLibraryLoadData",
     .calls = "cuCtxSetCurrent") {
    primary_context();
    OK(cuCtxSetCurrent(NULL));
    TRUE(library());
}

/* A kernel that the library lacks is not found. */
RULE(library_unknown_kernel, .source = DRIVER_API "Library Management, cuLibraryGetKernel",
     .calls = "cuLibraryGetKernel") {
    primary_context();
    CUkernel k;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&k, library(), "third"));
}

/* A library reports how many kernels it has. */
RULE(library_kernel_count, .source = DRIVER_API "Library Management, cuLibraryGetKernelCount",
     .calls = "cuLibraryGetKernelCount") {
    primary_context();
    unsigned count = 0;
    OK(cuLibraryGetKernelCount(&count, library()));
    TRUE(count == 2);
}

/* A kernel reports its name and its library. */
RULE(library_kernel_name, .source = DRIVER_API "Library Management, cuKernelGetName, cuKernelGetLibrary",
     .calls = "cuLibraryGetKernel cuKernelGetName cuKernelGetLibrary") {
    primary_context();
    const char *name = NULL;
    CUkernel k;
    CUlibrary l = library(), found = NULL;
    OK(cuLibraryGetKernel(&k, l, "second"));
    OK(cuKernelGetName(&name, k));
    TRUE(name && !strcmp(name, "second"));
    OK(cuKernelGetLibrary(&found, k));
    TRUE(found == l);
}

/* A library's global is found, and one that it lacks is not. */
RULE(library_global, .source = DRIVER_API "Library Management, cuLibraryGetGlobal", .calls = "cuLibraryGetGlobal") {
    primary_context();
    CUdeviceptr p = 0;
    size_t bytes = 0;
    CUlibrary l = library();
    OK(cuLibraryGetGlobal(&p, &bytes, l, "table"));
    TRUE(p && bytes == 4096);
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal(&p, &bytes, l, "nothing"));
}

/* Managed memory that the library lacks is not found. */
RULE(library_no_managed, .source = DRIVER_API "Library Management, cuLibraryGetManaged",
     .calls = "cuLibraryGetManaged") {
    primary_context();
    CUdeviceptr p;
    size_t bytes;
    EXPECT(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&p, &bytes, library(), "table"));
}

/* The module of a library is not unloaded as a module. */
RULE(library_module_not_unloaded, .source = DRIVER_API "Module Management, cuModuleUnload",
     .calls = "cuLibraryGetModule cuModuleUnload") {
    primary_context();
    CUmodule m = NULL;
    OK(cuLibraryGetModule(&m, library()));
    EXPECT(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(m));
}

/* A library is unloaded. */
RULE(library_unload, .source = DRIVER_API "Library Management, cuLibraryUnload", .calls = "cuLibraryUnload") {
    primary_context();
    CUlibrary l = library();
    TRUE(l);
    OK(cuLibraryUnload(l));
}

/* Null code is an invalid value. */
RULE(library_null, .source = DRIVER_API "Library Management, cuLibraryLoadData", .calls = "cuLibraryLoadData") {
    primary_context();
    CUlibrary l;
    EXPECT(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&l, NULL, NULL, NULL, 0, NULL, NULL, 0));
}

/* A file that does not exist is not found. */
RULE(library_no_file, .source = DRIVER_API "Library Management, cuLibraryLoadFromFile",
     .calls = "cuLibraryLoadFromFile") {
    primary_context();
    CUlibrary l;
    FAILS(cuLibraryLoadFromFile(&l, "/nonexistent/code.cubin", NULL, NULL, 0, NULL, NULL, 0));
}

static CUresult crash(void) {
    /* A comment to a GPU; a driver that does not execute kernels ends this one as its instructions would. */
    static const char BAD[] = HEAD
        "// cotenant-sim: error=700\n"
        ".visible .entry bad() { .reg .u64 a; .reg .u32 v; mov.u64 a, 16; mov.u32 v, 1; st.global.u32 [a], v; ret; }\n";
    CUmodule m;
    CUfunction f;
    CUresult result = cuModuleLoadData(&m, BAD);
    if (!result) result = cuModuleGetFunction(&f, m, "bad");
    if (!result) result = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return result ? result : cuCtxSynchronize();
}

/* A kernel that stores to an address that is not mapped ends with an illegal address. */
RULE(sticky_illegal_address, .source = DRIVER_API "Data types, CUDA_ERROR_ILLEGAL_ADDRESS", .calls = "cuInit") {
    primary_context();
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, crash());
}

/* After it, all further work of the process returns the same error. */
RULE(sticky_stays, .source = DRIVER_API "Data types, CUDA_ERROR_ILLEGAL_ADDRESS",
     .calls = "cuMemAlloc_v2 cuStreamSynchronize cuCtxSynchronize") {
    primary_context();
    CUdeviceptr p;
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, crash());
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, MIB));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(NULL));
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* Names of errors are reported after it. */
RULE(sticky_names, .source = DRIVER_API "Data types, CUDA_ERROR_ILLEGAL_ADDRESS", .calls = "cuGetErrorName") {
    primary_context();
    const char *name = NULL;
    EXPECT(CUDA_ERROR_ILLEGAL_ADDRESS, crash());
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &name));
}
