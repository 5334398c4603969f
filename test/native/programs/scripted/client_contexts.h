/* Commands of client.c for contexts: limits, green contexts, code, checkpoints. */
#include <elf.h>
#include <stddef.h>

/* Handles are known to the test alone; kept here too, they are no leaks when the program ends. */
static uint64_t kept[4096];
static void keep(uint64_t handle) {
    static unsigned count;
    kept[count++ % (sizeof kept / sizeof *kept)] = handle;
}

static abi_result green(abi_device device, unsigned sms, abi_green_context *made) {
    abi_resource all, group;
    abi_resource_desc desc;
    unsigned count = 1;
    abi_result result =
        CALL(cuDeviceGetDevResource, (abi_device, abi_resource *, int), device, &all, (int)ABI_RESOURCE_SM);
    if (!result)
        result = CALL(cuDevSmResourceSplitByCount,
                      (abi_resource *, unsigned *, const abi_resource *, abi_resource *, unsigned, unsigned), &group,
                      &count, &all, NULL, 0u, sms);
    if (!result)
        result = CALL(cuDevResourceGenerateDesc, (abi_resource_desc *, abi_resource *, unsigned), &desc, &group, 1u);
    if (!result)
        result = CALL(cuGreenCtxCreate, (abi_green_context *, abi_resource_desc, abi_device, unsigned), made, desc,
                      device, (unsigned)ABI_GREEN_DEFAULT_STREAM);
    return result;
}

/* A module of so many bytes, with so many options, or none; with one it uses the device's heap. */
static abi_result load_module(uint64_t bytes, unsigned options, uint64_t *value) {
    enum { LOG_VERBOSE = 12, MOST_OPTIONS = 128 };
    int names[MOST_OPTIONS];
    void *values[MOST_OPTIONS] = {0};
    bool heap = options == 1;
    static const char HEAD[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work()\n{\n ret;\n}\n";
    static const char HEAP[] = ".extern .func (.param .b64 at) malloc (.param .b64 bytes);\n";
    if (heap) bytes += sizeof HEAP - 1;
    char *text = malloc(bytes + sizeof HEAD);
    abi_module loaded = NULL;
    if (!text) return ABI_ERROR_OUT_OF_MEMORY;
    memset(text, '\n', bytes);
    memcpy(text, HEAD, sizeof HEAD - 1);
    text[bytes > sizeof HEAD ? bytes : sizeof HEAD] = 0;
    if (heap) memcpy(text + sizeof HEAD - 1, HEAP, sizeof HEAP - 1);
    for (int i = 0; i < MOST_OPTIONS; i++) names[i] = LOG_VERBOSE;
    abi_result result = options > 1 ? CALL(cuModuleLoadDataEx, (abi_module *, const void *, unsigned, int *, void **),
                                           &loaded, text, options, names, values)
                                    : CALL(cuModuleLoadData, (abi_module *, const void *), &loaded, text);
    free(text);
    *value = (uintptr_t)loaded;
    return result;
}

/* A cubin with the kernel "work"; *value: the result of a look-up of another name. */
static abi_result load_cubin(uint64_t *value) {
    struct cubin {
        Elf64_Ehdr header;
        Elf64_Shdr sections[3];
        char names[32];
    } image = {.header = {.e_machine = 190, .e_shentsize = sizeof(Elf64_Shdr), .e_shnum = 3, .e_shstrndx = 1}};
    static const char NAMES[] = "\0.shstrtab\0.text.work";
    abi_module loaded;
    abi_function function;
    memcpy(image.header.e_ident, ELFMAG, SELFMAG);
    memcpy(image.names, NAMES, sizeof NAMES);
    image.header.e_shoff = offsetof(struct cubin, sections);
    image.sections[1] = (Elf64_Shdr){
        .sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = offsetof(struct cubin, names), .sh_size = sizeof NAMES};
    image.sections[2] = (Elf64_Shdr){.sh_name = 11, .sh_type = SHT_PROGBITS};
    abi_result result = CALL(cuModuleLoadData, (abi_module *, const void *), &loaded, &image);
    if (!result)
        result = CALL(cuModuleGetFunction, (abi_function *, abi_module, const char *), &function, loaded, "work");
    if (!result)
        *value =
            (uint64_t)CALL(cuModuleGetFunction, (abi_function *, abi_module, const char *), &function, loaded, "other");
    return result;
}

/* checkpoint-STEP [PID]: of this process where none is named */
static abi_result checkpoint(const char *command, int pid, uint64_t *value) {
    int state = 0;
    if (!strcmp(command, "lock")) return CALL(cuCheckpointProcessLock, (int, void *), pid, NULL);
    if (!strcmp(command, "take")) return CALL(cuCheckpointProcessCheckpoint, (int, void *), pid, NULL);
    if (!strcmp(command, "restore")) return CALL(cuCheckpointProcessRestore, (int, void *), pid, NULL);
    if (!strcmp(command, "unlock")) return CALL(cuCheckpointProcessUnlock, (int, void *), pid, NULL);
    abi_result result = CALL(cuCheckpointProcessGetState, (int, int *), pid, &state);
    *value = (uint64_t)state;
    return result;
}

/* False: no such command. */
static int context_command(const char *command, uint64_t a, uint64_t b, abi_result *result, uint64_t *value) {
    abi_green_context made = (abi_green_context)(uintptr_t)a;
    abi_context view;
    size_t size = 0;
    if (!strcmp(command, "limit")) { /* limit WHICH: its value */
        *result = CALL(cuCtxGetLimit, (size_t *, int), &size, (int)a);
        *value = size;
    } else if (!strcmp(command, "set-limit")) { /* set-limit WHICH VALUE */
        *result = CALL(cuCtxSetLimit, (int, size_t), (int)a, (size_t)b);
    } else if (!strcmp(command, "attribute")) { /* attribute WHICH: of device 0 */
        int number = 0;
        *result = CALL(cuDeviceGetAttribute, (int *, int, abi_device), &number, (int)a, (abi_device)0);
        *value = (uint64_t)number;
    } else if (!strcmp(command, "green")) { /* green DEVICE SMS */
        *result = green((abi_device)a, (unsigned)b, &made);
        *value = (uintptr_t)made;
    } else if (!strcmp(command, "push-again")) { /* push-again 1|2: the current context, by that form of the call */
        *result = CALL(cuCtxGetCurrent, (abi_context *), &view);
        if (*result) return 1;
        *result = a == 1 ? CALL(cuCtxPushCurrent, (abi_context), view) : CALL(cuCtxPushCurrent_v2, (abi_context), view);
    } else if (!strcmp(command, "green-enter")) { /* green-enter GREEN: its context, made current */
        *result = CALL(cuCtxFromGreenCtx, (abi_context *, abi_green_context), &view, made);
        if (!*result) *result = CALL(cuCtxSetCurrent, (abi_context), view);
        if (!*result) *value = (uintptr_t)view;
    } else if (!strcmp(command, "green-stream")) { /* green-stream GREEN: the context of a stream of it, made current */
        abi_stream stream;
        *result = CALL(cuGreenCtxStreamCreate, (abi_stream *, abi_green_context, unsigned, int), &stream, made,
                       (unsigned)ABI_STREAM_NON_BLOCKING, 0);
        if (!*result) *result = CALL(cuStreamGetCtx, (abi_stream, abi_context *), stream, &view);
        if (!*result) *result = CALL(cuCtxSetCurrent, (abi_context), view);
        *value = (uintptr_t)stream;
    } else if (!strcmp(command, "green-end")) {
        *result = CALL(cuGreenCtxDestroy, (abi_green_context), made);
    } else if (!strcmp(command, "enter")) { /* enter CONTEXT; 0: none */
        *result = CALL(cuCtxSetCurrent, (abi_context), (abi_context)(uintptr_t)a);
    } else if (!strcmp(command, "create-first")) { /* create-first DEVICE: by the first form of the call */
        *result = CALL(cuCtxCreate, (abi_context *, unsigned, abi_device), &view, 0u, (abi_device)a);
        if (!*result) *value = (uintptr_t)view;
    } else if (!strcmp(command, "attach")) {
        *result = CALL(cuCtxAttach, (abi_context *, unsigned), &view, 0u);
    } else if (!strcmp(command, "detach")) {
        *result = CALL(cuCtxDetach, (abi_context), (abi_context)(uintptr_t)a);
    } else if (!strcmp(command, "module")) { /* module BYTES [1: uses the heap; else: with so many options] */
        *result = load_module(a, b < 128 ? (unsigned)b : 0, value);
    } else if (!strcmp(command, "cubin")) {
        *result = load_cubin(value);
    } else if (!strcmp(command, "unload")) {
        *result = CALL(cuModuleUnload, (abi_module), (abi_module)(uintptr_t)a);
    } else if (!strncmp(command, "checkpoint-", 11)) {
        *result = checkpoint(command + 11, a ? (int)a : getpid(), value);
    } else {
        return 0;
    }
    keep(*value);
    return 1;
}
