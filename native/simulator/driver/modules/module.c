/* Modules and libraries: which kernels an image contains. Kernels are not executed; each has a duration, may end in a
 * sticky error, and may set a flag or wait for one. In PTX text a comment before an entry says so:
 *     // cotenant-sim: duration_us=250 error=700
 *     // cotenant-sim: duration_us=20 signal=1 await=1
 * The kernels of a cubin (ELF) are found by its section names; in a fat binary, whose parts are compressed, every name
 * is assumed to exist. Code and data beyond what a context contains anyway take memory of the GPU. */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "modules.h"

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define ELF_MACHINE_CUDA 190

static struct sim_function *add_function(struct sim_module *module, const char *name, size_t length) {
    struct sim_function *function = calloc(1, sizeof *function);
    char *copy = strndup(name, length);
    if (!function || !copy) {
        free(function);
        free(copy);
        return NULL;
    }
    *function = (struct sim_function){.magic = SIM_FUNCTION_MAGIC,
                                      .module = module,
                                      .name = copy,
                                      .duration_ns = sim.facts->kernel_ns,
                                      .dynamic_shared = 49152,
                                      .next = module->functions};
    module->functions = function;
    return function;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

/* Of the newest toolkit, and some after it. */
#define NEWEST_PTX 15
#define UNSUPPORTED_PTX_VERSION 222

/* By system calls in the text of a kernel, which ends where the next one begins. */
static unsigned limits_fixed_by(const char *body) {
    const char *next = strstr(body, ".entry");
    size_t length = next ? (size_t)(next - body) : strlen(body);
    unsigned limits = 0;
    if (memmem(body, length, "malloc", strlen("malloc"))) limits |= 1u << ABI_LIMIT_MALLOC_HEAP_SIZE;
    if (memmem(body, length, "vprintf", strlen("vprintf"))) limits |= 1u << ABI_LIMIT_PRINTF_FIFO_SIZE;
    return limits;
}

static int parse_ptx(struct sim_module *module, const char *text) {
    if (strtoul(strstr(text, ".version") + strlen(".version"), NULL, 10) > NEWEST_PTX) return UNSUPPORTED_PTX_VERSION;
    const char *at = text, *previous_end = text;
    while ((at = strstr(at, ".entry"))) {
        const char *name = at + 6;
        while (*name == ' ' || *name == '\t' || *name == '\n') name++;
        size_t length = 0;
        while (is_name(name[length])) length++;
        if (length == 0) return ABI_ERROR_INVALID_PTX;
        struct sim_function *function = add_function(module, name, length);
        if (!function) return ABI_ERROR_OUT_OF_MEMORY;
        const char *note = NULL, *next = previous_end;
        while ((next = strstr(next, "cotenant-sim:")) && next < at) note = next++;
        for (const char *word = note; word && *word && *word != '\n'; word++) {
            unsigned long long number;
            if (sscanf(word, "duration_us=%llu", &number) == 1 && number <= 3600000000ull)
                function->duration_ns = number * 1000;
            if (sscanf(word, "error=%llu", &number) == 1 && number < 1000) function->error = (int)number;
            if (sscanf(word, "signal=%llu", &number) == 1) function->adds = (uint32_t)number;
            if (sscanf(word, "await=%llu", &number) == 1) function->awaits = number != 0;
        }
        const char *body = strchr(name, '{'), *end = body ? body : name + length;
        for (const char *parameter = name; (parameter = strstr(parameter, ".param")) && parameter < end; parameter++)
            function->parameters++;
        function->fixed_limits = limits_fixed_by(end);
        at = previous_end = end;
    }
    return ABI_SUCCESS;
}

/* Sizes come from the image itself: the driver's interface passes none. Reads nothing outside what the header spans. */
static int parse_elf(struct sim_module *module, const unsigned char *image, uint64_t *size) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_machine != ELF_MACHINE_CUDA || header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 ||
        header.e_shstrndx >= header.e_shnum)
        return ABI_ERROR_INVALID_IMAGE;
    *size = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
    Elf64_Shdr names;
    memcpy(&names, image + header.e_shoff + header.e_shstrndx * sizeof(Elf64_Shdr), sizeof names);
    for (unsigned i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, image + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type == SHT_NULL || section.sh_name >= names.sh_size) continue;
        const char *name = (const char *)image + names.sh_offset + section.sh_name;
        if (strncmp(name, ".text.", 6) != 0) continue;
        if (!add_function(module, name + 6, strlen(name + 6))) return ABI_ERROR_OUT_OF_MEMORY;
    }
    return ABI_SUCCESS;
}

static void module_free(struct sim_module *module) {
    for (struct sim_function *function = module->functions, *next; function; function = next) {
        next = function->next;
        function->magic = 0;
        free(function->name);
        free(function);
    }
    for (struct sim_global *global = module->globals, *next; global; global = next) {
        next = global->next;
        free(global->name);
        free(global->first);
        free(global);
    }
    module->magic = 0;
    free(module);
}

static int module_new(struct sim_context *context, const void *image, struct sim_module **out) {
    struct sim_module *module = calloc(1, sizeof *module);
    if (!module) return ABI_ERROR_OUT_OF_MEMORY;
    module->magic = SIM_MODULE_MAGIC;
    module->context = context;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    int result;
    if (magic == FATBIN_MAGIC || magic == FATBIN_WRAPPER_MAGIC) {
        module->any_name = true;
        result = ABI_SUCCESS;
    } else if (!memcmp(image, ELFMAG, SELFMAG)) {
        result = parse_elf(module, image, &module->code_bytes);
    } else if (strstr(image, ".version")) {
        module->code_bytes = strlen(image);
        result = parse_ptx(module, image);
        if (result == ABI_SUCCESS) result = sim_globals_read(module, image);
        if (result == ABI_SUCCESS && context)
            result = sim_limits_use(context, strstr(image, "malloc"), strstr(image, "vprintf"));
    } else {
        result = ABI_ERROR_INVALID_IMAGE;
    }
    struct sim_loaded *loaded;
    pthread_mutex_lock(&sim.lock);
    if (result == ABI_SUCCESS && context) result = sim_load(module, context, &loaded);
    if (result == ABI_SUCCESS) {
        module->next = sim.modules;
        sim.modules = module;
    }
    pthread_mutex_unlock(&sim.lock);
    if (result == ABI_SUCCESS) *out = module;
    else module_free(module);
    return result;
}

static int module_end(void *handle) {
    struct sim_module *module = sim_module_of(handle);
    if (!module) return ABI_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&sim.lock);
    for (struct sim_module **place = &sim.modules; *place; place = &(*place)->next) {
        if (*place == module) {
            *place = module->next;
            break;
        }
    }
    sim_unload_all(module);
    pthread_mutex_unlock(&sim.lock);
    module_free(module);
    return ABI_SUCCESS;
}

static int find_function(void *handle, const char *name, struct sim_function **out) {
    struct sim_module *module = sim_module_of(handle);
    if (!module) return ABI_ERROR_INVALID_HANDLE;
    if (!name || !out) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    struct sim_function *function = module->functions;
    while (function && strcmp(function->name, name) != 0) function = function->next;
    if (!function && module->any_name) function = add_function(module, name, strlen(name));
    pthread_mutex_unlock(&sim.lock);
    *out = function;
    return function ? ABI_SUCCESS : ABI_ERROR_NOT_FOUND;
}

static int load_into_current(struct sim_module **out, const void *image) {
    SIM_CURRENT(context);
    if (!out || !image) return ABI_ERROR_INVALID_VALUE;
    return module_new(context, image, out);
}

static int read_file(const char *path, char **text) {
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct stat info;
    if (fd < 0) return ABI_ERROR_FILE_NOT_FOUND;
    *text = NULL;
    if (fstat(fd, &info) == 0 && info.st_size > 64 && info.st_size < 1 << 30)
        *text = calloc(1, (size_t)info.st_size + 1);
    bool whole = *text && read(fd, *text, (size_t)info.st_size) == info.st_size;
    close(fd);
    if (whole) return ABI_SUCCESS;
    free(*text);
    return ABI_ERROR_INVALID_IMAGE;
}

SIM_ROW(cuModuleLoadData, (struct sim_module * *module, const void *image), load_into_current(module, image))
SIM_ROW(cuModuleLoadDataEx,
        (struct sim_module * *module, const void *image, unsigned count, int *options, void **values),
        load_into_current(module, image))
SIM_ROW(cuModuleLoadFatBinary, (struct sim_module * *module, const void *image), load_into_current(module, image))
SIM_EXPORT abi_result cuModuleLoad(struct sim_module **module, const char *path) {
    SIM_ENTER("cuModuleLoad");
    char *text;
    SIM_TRY(read_file(path, &text));
    int result = load_into_current(module, text);
    free(text);
    return result;
}
SIM_ROW(cuModuleUnload, (struct sim_module * module),
        sim_module_of(module) && !module->context ? ABI_ERROR_NOT_PERMITTED : module_end(module))
SIM_ROW(cuModuleGetFunction, (struct sim_function * *function, struct sim_module *module, const char *name),
        find_function(module, name, function))
SIM_EXPORT abi_result cuModuleGetLoadingMode(int *mode) {
    SIM_ENTER("cuModuleGetLoadingMode");
    if (!mode) return ABI_ERROR_INVALID_VALUE;
    const char *asked = getenv("CUDA_MODULE_LOADING");
    *mode = asked && !strcmp(asked, "EAGER") ? 1 : 2; /* lazy: what a real driver does, unless set otherwise */
    return ABI_SUCCESS;
}

/* Libraries are modules without a context; any context can launch their kernels. */
SIM_EXPORT abi_result cuLibraryLoadData(struct sim_module **library, const void *code, int *options, void **values,
                                        unsigned count, int *library_options, void **library_values,
                                        unsigned library_count) {
    SIM_ENTER("cuLibraryLoadData");
    (void)options;
    (void)values;
    (void)count;
    (void)library_options;
    (void)library_values;
    (void)library_count;
    if (!library || !code) return ABI_ERROR_INVALID_VALUE;
    return module_new(NULL, code, library);
}
SIM_EXPORT abi_result cuLibraryLoadFromFile(struct sim_module **library, const char *path, int *options, void **values,
                                            unsigned count, int *library_options, void **library_values,
                                            unsigned library_count) {
    SIM_ENTER("cuLibraryLoadFromFile");
    char *text;
    SIM_TRY(read_file(path, &text));
    int result =
        cuLibraryLoadData(library, text, options, values, count, library_options, library_values, library_count);
    free(text);
    return result;
}
SIM_ROW(cuLibraryUnload, (struct sim_module * library), module_end(library))
SIM_ROW(cuLibraryGetKernel, (struct sim_function * *kernel, struct sim_module *library, const char *name),
        find_function(library, name, kernel))
SIM_EXPORT abi_result cuLibraryGetModule(struct sim_module **module, struct sim_module *library) {
    SIM_ENTER("cuLibraryGetModule");
    if (!module || !sim_module_of(library)) return ABI_ERROR_INVALID_HANDLE;
    *module = library;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuKernelGetFunction(struct sim_function **function, struct sim_function *kernel) {
    SIM_ENTER("cuKernelGetFunction");
    if (!function || !kernel || kernel->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    SIM_CURRENT(context);
    struct sim_loaded *loaded;
    SIM_TRY(SIM_LOCKED(sim_load(kernel->module, context, &loaded)));
    *function = kernel;
    return ABI_SUCCESS;
}

/* Of all simulated devices; CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES. */
enum { THREADS_OF_SM = 2048, THREADS_OF_BLOCK = 1024, BLOCKS_OF_SM = 24, DYNAMIC_SHARED = 8 };
static int function_attribute(int *value, int attribute, const struct sim_function *function) {
    if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (!value || attribute < 0 || attribute > 15) return ABI_ERROR_INVALID_VALUE;
    static const int VALUES[16] = {[0] = 1024, [4] = 32, [5] = 80, [6] = 80, [9] = -1};
    *value = attribute == DYNAMIC_SHARED ? (int)function->dynamic_shared : VALUES[attribute];
    return ABI_SUCCESS;
}
SIM_ROW(cuFuncGetAttribute, (int *value, int attribute, struct sim_function *function),
        function_attribute(value, attribute, function))
SIM_ROW(cuKernelGetAttribute, (int *value, int attribute, struct sim_function *kernel, abi_device device),
        function_attribute(value, attribute, kernel))
SIM_EXPORT abi_result cuFuncSetAttribute(struct sim_function *function, int attribute, int value) {
    SIM_ENTER("cuFuncSetAttribute");
    if (!function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    if (attribute < DYNAMIC_SHARED || attribute == 10 || attribute > 15 || value < -1) return ABI_ERROR_INVALID_VALUE;
    if (attribute == DYNAMIC_SHARED) function->dynamic_shared = value < 0 ? 0 : (unsigned)value;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuFuncSetCacheConfig(struct sim_function *function, int config) {
    SIM_ENTER("cuFuncSetCacheConfig");
    (void)config;
    return function && function->magic == SIM_FUNCTION_MAGIC ? ABI_SUCCESS : ABI_ERROR_INVALID_HANDLE;
}
SIM_EXPORT abi_result cuFuncGetModule(struct sim_module **module, struct sim_function *function) {
    SIM_ENTER("cuFuncGetModule");
    if (!module || !function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    *module = function->module;
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuFuncGetName(const char **name, struct sim_function *function) {
    SIM_ENTER("cuFuncGetName");
    if (!name || !function || function->magic != SIM_FUNCTION_MAGIC) return ABI_ERROR_INVALID_HANDLE;
    *name = function->name;
    return ABI_SUCCESS;
}
unsigned sim_occupancy(unsigned threads) {
    unsigned blocks = threads ? THREADS_OF_SM / threads : 0;
    return threads > THREADS_OF_BLOCK ? 0 : blocks < BLOCKS_OF_SM ? blocks : BLOCKS_OF_SM;
}
static int occupancy(int *blocks, const struct sim_function *function, int threads, unsigned flags) {
    if (!blocks || !function || function->magic != SIM_FUNCTION_MAGIC || threads <= 0 || flags > 1)
        return ABI_ERROR_INVALID_VALUE;
    *blocks = (int)sim_occupancy((unsigned)threads);
    return ABI_SUCCESS;
}
SIM_EXPORT abi_result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct sim_function *function,
                                                                  int threads, size_t shared) {
    SIM_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
    (void)shared;
    return occupancy(blocks, function, threads, 0);
}
SIM_EXPORT abi_result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, struct sim_function *function,
                                                                           int threads, size_t shared, unsigned flags) {
    SIM_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
    (void)shared;
    return occupancy(blocks, function, threads, flags);
}
SIM_EXPORT abi_result cuOccupancyMaxPotentialBlockSize(int *grid, int *block, struct sim_function *function,
                                                       size_t (*shared_of)(int), size_t shared, int limit) {
    SIM_ENTER("cuOccupancyMaxPotentialBlockSize");
    (void)shared_of;
    (void)shared;
    struct sim_context *context;
    SIM_TRY(sim_current(&context));
    if (!grid || !block || !function || function->magic != SIM_FUNCTION_MAGIC || limit < 0)
        return ABI_ERROR_INVALID_VALUE;
    *block = limit && limit < THREADS_OF_BLOCK ? limit : THREADS_OF_BLOCK;
    *grid = (int)(sim_occupancy((unsigned)*block) * sim.facts->gpus[context->gpu].sm_count);
    return ABI_SUCCESS;
}

int sim_kernel(const struct sim_function *function, uint64_t blocks, void *const *parameters, struct sim_item *item) {
    *item = (struct sim_item){.kind = SIM_ITEM_KERNEL,
                              .duration_ns = function->duration_ns,
                              .error = function->error,
                              .blocks = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks,
                              .adds = function->adds,
                              .awaits = function->awaits};
    if (!function->adds && !function->awaits) return ABI_SUCCESS;
    if (!parameters) return ABI_ERROR_INVALID_VALUE;
    memcpy(&item->flag, parameters[0], sizeof item->flag);
    memcpy(&item->value, parameters[1], sizeof item->value);
    return item->flag < SIM_FLAGS ? ABI_SUCCESS : ABI_ERROR_INVALID_VALUE;
}
