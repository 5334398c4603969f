/* What a module or library says of its functions. */
#include "../sim.h"

static bool is_module(const struct sim_module *module) {
    return module && module->magic == SIM_MODULE_MAGIC;
}
static bool is_function(const struct sim_function *function) {
    return function && function->magic == SIM_FUNCTION_MAGIC;
}

static int count_of(unsigned *count, const struct sim_module *module) {
    if (!is_module(module)) return ABI_ERROR_INVALID_HANDLE;
    if (!count) return ABI_ERROR_INVALID_VALUE;
    *count = 0;
    pthread_mutex_lock(&sim.lock);
    for (const struct sim_function *function = module->functions; function; function = function->next) ++*count;
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}
static int list(struct sim_function **functions, unsigned most, const struct sim_module *module) {
    if (!is_module(module)) return ABI_ERROR_INVALID_HANDLE;
    if (!functions) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (struct sim_function *function = module->functions; function && most > 0; function = function->next, most--)
        *functions++ = function;
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}

SIM_ROW(cuModuleGetFunctionCount, (unsigned *count, struct sim_module *module), count_of(count, module))
SIM_ROW(cuModuleEnumerateFunctions, (struct sim_function * *functions, unsigned most, struct sim_module *module),
        list(functions, most, module))
SIM_ROW(cuLibraryGetKernelCount, (unsigned *count, struct sim_module *library), count_of(count, library))
SIM_ROW(cuLibraryEnumerateKernels, (struct sim_function * *kernels, unsigned most, struct sim_module *library),
        list(kernels, most, library))
SIM_EXPORT abi_result cuKernelGetName(const char **name, struct sim_function *kernel) {
    SIM_ENTER("cuKernelGetName");
    if (!is_function(kernel)) return ABI_ERROR_INVALID_HANDLE;
    if (!name) return ABI_ERROR_INVALID_VALUE;
    *name = kernel->name;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuKernelGetLibrary(struct sim_module **library, struct sim_function *kernel) {
    SIM_ENTER("cuKernelGetLibrary");
    if (!library || !is_function(kernel)) return ABI_ERROR_INVALID_HANDLE;
    *library = kernel->module;
    return ABI_SUCCESS;
}

/* Functions are loaded with their module, whatever the mode of loading. */
SIM_EXPORT abi_result cuFuncLoad(struct sim_function *function) {
    SIM_ENTER("cuFuncLoad");
    return is_function(function) ? ABI_SUCCESS : ABI_ERROR_INVALID_HANDLE;
}
SIM_EXPORT abi_result cuFuncIsLoaded(int *state, struct sim_function *function) {
    SIM_ENTER("cuFuncIsLoaded");
    if (!is_function(function)) return ABI_ERROR_INVALID_HANDLE;
    if (!state) return ABI_ERROR_INVALID_VALUE;
    *state = 1;
    return ABI_SUCCESS;
}
