/* Random sequences of calls, for a comparison of the driver with and without a grant (differential.test.ts).
 *
 *   differential FIRST COUNT STEPS bare|granted
 *
 * does COUNT sequences of so many steps from the seed FIRST on, and prints a line for each step: its number, the call,
 * the result, and a hash of what was answered. The same seed is the same sequence as long as the same calls succeed. So
 * the program that has a grant goes first: before each sequence the other one reads which of its steps were answered
 * out of memory. It does them as well, and undoes them. After each sequence everything is destroyed, and a line says
 * how many bytes are free. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../../../native/abi/cuda.h"
#include "../../../../native/abi/cuda_arrays.h"
#include "differential_calls.h"

#define CALL_COUNT (sizeof CALLS / sizeof *CALLS)
#define MOST_HANDLES 24
#define MOST_STEPS 1000
#define MIB (1ull << 20)
#define ADDRESSES (64 * MIB)

static void *driver;
static char *host; /* not page-locked for any context; as large as any copy */

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (function) return function;
    fprintf(stderr, "differential: no %s\n", name);
    exit(3);
}
#define CALL(name, types, ...) ((abi_result(*) types)find(#name))(__VA_ARGS__)

/* ---- chance ---- */

static uint64_t state;
static uint64_t chance(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- handles ---- */

struct handle {
    uint64_t value;
    void *owner; /* the context that it ends with; NULL: none */
};
static struct kind {
    const char *end; /* entry point that takes it and nothing else */
    struct handle list[MOST_HANDLES];
    unsigned count;
    char letter;
    bool owned;
} kinds[] = {
    /* in the order in which they are destroyed */
    {.letter = 'x', .owned = false, .end = "cuGraphExecDestroy"},
    {.letter = 'n', .owned = false, .end = NULL},
    {.letter = 'g', .owned = false, .end = "cuGraphDestroy"},
    {.letter = 'q', .owned = true, .end = "cuMemFree_v2"},
    {.letter = 'p', .owned = true, .end = "cuMemFree_v2"},
    {.letter = 'h', .owned = true, .end = "cuMemFreeHost"},
    {.letter = 'a', .owned = true, .end = "cuArrayDestroy"},
    {.letter = 'M', .owned = true, .end = "cuMipmappedArrayDestroy"},
    {.letter = 'f', .owned = true, .end = NULL},
    {.letter = 'k', .owned = false, .end = NULL},
    {.letter = 'm', .owned = true, .end = "cuModuleUnload"},
    {.letter = 'l', .owned = false, .end = "cuLibraryUnload"},
    {.letter = 'e', .owned = true, .end = "cuEventDestroy_v2"},
    {.letter = 's', .owned = true, .end = "cuStreamDestroy_v2"},
    {.letter = 'r', .owned = false, .end = NULL},
    {.letter = 'v', .owned = false, .end = "cuMemRelease"},
    {.letter = 'P', .owned = false, .end = "cuMemPoolDestroy"},
    {.letter = 'c', .owned = false, .end = "cuCtxDestroy_v2"},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static struct kind *kind_of(char letter) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (kinds[i].letter == letter) return &kinds[i];
    }
    fprintf(stderr, "differential: no kind %c\n", letter);
    exit(3);
}

/* One that exists; in one of eight cases, or if there is none, a number that is none. */
static uint64_t pick(char letter) {
    const struct kind *kind = kind_of(letter);
    uint64_t which = chance(1 << 20), none = chance(8);
    if (letter == 's' && which % 2) return chance(3); /* the default streams */
    return kind->count == 0 || none == 0 ? 0 : kind->list[which % kind->count].value;
}

static void add(char letter, uint64_t value) {
    struct kind *kind = kind_of(letter);
    void *owner = NULL;
    if (kind->owned) CALL(cuCtxGetCurrent, (void **), &owner);
    if (kind->count < MOST_HANDLES) kind->list[kind->count++] = (struct handle){value, owner};
}

static void take_at(struct kind *kind, unsigned at) {
    memmove(&kind->list[at], &kind->list[at + 1], (--kind->count - at) * sizeof *kind->list);
}

static void forget_owned(const void *owner) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        for (unsigned at = 0; at < kinds[i].count;) {
            if (kinds[i].owned && kinds[i].list[at].owner == owner) take_at(&kinds[i], at);
            else at++;
        }
    }
}

/* A handle was destroyed, and what belonged to it. */
static void forget(char letter, uint64_t value) {
    struct kind *kind = kind_of(letter);
    for (unsigned at = 0; at < kind->count;) {
        if (kind->list[at].value == value) take_at(kind, at);
        else at++;
    }
    if (letter == 'c') forget_owned((void *)(uintptr_t)value);
    /* What belongs to a graph, a module or a library is not remembered by it: all of that kind is forgotten. */
    if (letter == 'g') kind_of('n')->count = 0;
    if (letter == 'm') kind_of('f')->count = 0;
    if (letter == 'l') kind_of('k')->count = kind_of('f')->count = 0;
}

static abi_result end_handle(char letter, uint64_t value) {
    const struct kind *kind = kind_of(letter);
    if (letter == 'r') {
        for (uint64_t at = value; at < value + ADDRESSES; at += 2 * MIB)
            CALL(cuMemUnmap, (abi_devptr, size_t), (abi_devptr)at, (size_t)(2 * MIB));
        return CALL(cuMemAddressFree, (abi_devptr, size_t), (abi_devptr)value, (size_t)ADDRESSES);
    }
    return kind->end ? ((abi_result (*)(uint64_t))find(kind->end))(value) : ABI_SUCCESS;
}

/* ---- one step ---- */

static struct step {
    const char *name;
    abi_result result;
    char made, ended; /* kinds; 0: none */
    uint64_t value, gone, hash;
    int limit; /* that was set, plus one; 0: none */
    size_t before;
} step;

static void note(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) step.hash = (step.hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}

static uint64_t bytes_of_chance(void) {
    static const uint64_t SIZES[] = {0,       1,        512,      4096,     65536,    MIB,      2 * MIB,
                                     3 * MIB, 16 * MIB, 20 * MIB, 64 * MIB, 90 * MIB, 1u << 30, UINT64_MAX};
    return SIZES[chance(sizeof SIZES / sizeof *SIZES)];
}

static const char CODE[] = ".version 8.0\n.target sm_70\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                           ".visible .entry work()\n{\n ret;\n}\n";

static void call_by_table(const struct call *call) {
    static uint64_t out[6][64];
    uint64_t n[6] = {0};
    unsigned count = 0;
    memset(out, 0, sizeof out);
    for (const char *letter = call->arguments; *letter; letter++, count++) {
        uint64_t *value = &n[count];
        switch (*letter) {
        case 'O':
        case 'o': *value = (uintptr_t)out[count]; break;
        case '>':
            step.made = *++letter;
            *value = (uintptr_t)out[count];
            break;
        case '-':
            step.ended = *++letter;
            *value = step.gone = pick(step.ended);
            break;
        case 'd': *value = chance(8) ? 0 : chance(3) + 1; break;
        case 'D': *value = 0; break;
        case '#': *value = bytes_of_chance(); break;
        case '+': *value = chance(4) ? chance(9) * 512 : 0; break;
        case 'A': *value = chance(165); break;
        case 'i': *value = chance(10); break;
        case 'I': *value = chance(4) ? 0 : chance(10); break;
        case '0': break;
        case '1': *value = 1; break;
        case '2': *value = 2; break;
        case '4': *value = 4; break;
        case '6': *value = 64; break;
        case 'R': *value = ADDRESSES; break;
        case 'H': *value = (uintptr_t)host; break;
        case 'L':
            *value = (uintptr_t)(chance(8) ? CODE : "no code at all, and long enough for a header of 64 bytes .....");
            break;
        case 'N': *value = (uintptr_t)(chance(4) ? "work" : "play"); break;
        case 'C': *value = (uintptr_t)"0000:10:00.0"; break;
        case 'T': *value = (uintptr_t)"/no/such/file"; break;
        default: *value = pick(*letter);
        }
    }
    step.result = ((abi_result (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))find(call->name))(
        n[0], n[1], n[2], n[3], n[4], n[5]);
    step.value = 0;
    count = 0;
    for (const char *letter = call->arguments; *letter; letter++, count++) {
        if (*letter == '-') letter++;
        if (*letter == '>') {
            letter++;
            step.value = out[count][0];
        }
        if (*letter == 'O') note(out[count], sizeof out[count]);
    }
}

/* ---- calls whose arguments are structures, or too many for the table ---- */

static abi_location location(void) {
    static const int TYPES[] = {ABI_LOCATION_DEVICE, ABI_LOCATION_DEVICE,    ABI_LOCATION_DEVICE, ABI_LOCATION_DEVICE,
                                ABI_LOCATION_HOST,   ABI_LOCATION_HOST_NUMA, ABI_LOCATION_NONE,   99};
    return (abi_location){TYPES[chance(sizeof TYPES / sizeof *TYPES)], chance(8) ? 0 : 5};
}
static void made(char letter, abi_result result, const void *value) {
    step.result = result;
    step.made = letter;
    memcpy(&step.value, value, sizeof step.value);
}

static void create_memory(void) {
    abi_vmm_prop prop = {.type = chance(8) ? ABI_ALLOCATION_PINNED : 0, .location = location()};
    abi_vmm_handle handle = 0;
    made('v',
         CALL(cuMemCreate, (abi_vmm_handle *, size_t, const abi_vmm_prop *, unsigned long long), &handle,
              (size_t)(chance(8) ? chance(40) * 2 * MIB : bytes_of_chance()), &prop, 0ull),
         &handle);
}
static void reserve_addresses(void) {
    abi_devptr at = 0;
    made('r',
         CALL(cuMemAddressReserve, (abi_devptr *, size_t, size_t, abi_devptr, unsigned long long), &at,
              (size_t)ADDRESSES, (size_t)0, (abi_devptr)0, 0ull),
         &at);
}
static void map_memory(void) {
    uint64_t at = pick('r'), slot = chance(32);
    step.result =
        CALL(cuMemMap, (abi_devptr, size_t, size_t, abi_vmm_handle, unsigned long long),
             (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB), (size_t)0, (abi_vmm_handle)pick('v'), 0ull);
}
static void unmap_memory(void) {
    uint64_t at = pick('r'), slot = chance(32);
    step.result = CALL(cuMemUnmap, (abi_devptr, size_t), (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB));
}
static void retain_mapped(void) {
    abi_vmm_handle handle = 0;
    uint64_t at = pick('r'), slot = chance(32);
    made('v',
         CALL(cuMemRetainAllocationHandle, (abi_vmm_handle *, void *), &handle,
              (void *)(uintptr_t)(at ? at + slot * 2 * MIB : 0)),
         &handle);
}
static void set_access(void) {
    uint64_t at = pick('r'), slot = chance(32);
    abi_access_desc access = {.location = location(), .flags = (int)chance(5)};
    step.result = CALL(cuMemSetAccess, (abi_devptr, size_t, const abi_access_desc *, size_t),
                       (abi_devptr)(at ? at + slot * 2 * MIB : 0), (size_t)(2 * MIB), &access, (size_t)1);
}
static void granularity(void) {
    abi_vmm_prop prop = {.type = ABI_ALLOCATION_PINNED, .location = location()};
    size_t size = 0;
    step.result =
        CALL(cuMemGetAllocationGranularity, (size_t *, const abi_vmm_prop *, int), &size, &prop, (int)chance(3));
    note(&size, sizeof size);
}
static void create_pool(void) {
    abi_pool_props props = {.alloc_type = chance(8) ? ABI_ALLOCATION_PINNED : (int)chance(4),
                            .location = location(),
                            .max_size = chance(4) ? 0 : 64 * MIB};
    abi_pool pool = NULL;
    made('P', CALL(cuMemPoolCreate, (abi_pool *, const abi_pool_props *), &pool, &props), &pool);
}
static void pool_of_location(void) {
    abi_location place = location();
    abi_pool pool = NULL;
    step.result = CALL(cuMemGetDefaultMemPool, (abi_pool *, const abi_location *, int), &pool, &place, (int)chance(3));
}
static void current_pool_of_location(void) {
    abi_location place = location();
    abi_pool pool = NULL;
    step.result = CALL(cuMemGetMemPool, (abi_pool *, const abi_location *, int), &pool, &place, (int)chance(3));
}
static void pool_access(void) {
    abi_location place = location();
    int flags = 0;
    step.result = CALL(cuMemPoolGetAccess, (int *, abi_pool, const abi_location *), &flags,
                       (abi_pool)(uintptr_t)pick('P'), &place);
    note(&flags, sizeof flags);
}
static void set_pool_access(void) {
    abi_access_desc access = {.location = location(), .flags = (int)chance(5)};
    step.result = CALL(cuMemPoolSetAccess, (abi_pool, const abi_access_desc *, size_t), (abi_pool)(uintptr_t)pick('P'),
                       &access, (size_t)1);
}
static void create_array(void) {
    abi_array_shape shape = {chance(2000), chance(2000), (int)chance(40), (unsigned)chance(6)};
    void *array = NULL;
    made('a', CALL(cuArrayCreate_v2, (void **, const abi_array_shape *), &array, &shape), &array);
}
static void create_array3d(void) {
    abi_array3d_shape shape = {chance(300), chance(300), chance(60), (int)chance(40), (unsigned)chance(6), 0};
    void *array = NULL;
    made('a', CALL(cuArray3DCreate_v2, (void **, const abi_array3d_shape *), &array, &shape), &array);
}
static void create_mipmap(void) {
    abi_array3d_shape shape = {chance(3000), chance(3000), 0, (int)chance(40), (unsigned)chance(6), 0};
    void *array = NULL;
    made('M',
         CALL(cuMipmappedArrayCreate, (void **, const abi_array3d_shape *, unsigned), &array, &shape,
              (unsigned)chance(8)),
         &array);
}
#define LAUNCH(symbol)                                                                                               \
    static void launch_##symbol(void) {                                                                              \
        step.result = CALL(symbol,                                                                                   \
                           (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,      \
                            abi_stream, void **, void **),                                                           \
                           (abi_function)(uintptr_t)pick('f'), (unsigned)chance(4), 1u, 1u, (unsigned)chance(3), 1u, \
                           1u, 0u, (abi_stream)(uintptr_t)pick('s'), NULL, NULL);                                    \
    }
LAUNCH(cuLaunchKernel)
LAUNCH(cuLaunchKernel_ptsz)
static void launch_cooperative(void) {
    step.result =
        CALL(cuLaunchCooperativeKernel,
             (abi_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, abi_stream, void **),
             (abi_function)(uintptr_t)pick('f'), 1u, 1u, 1u, (unsigned)chance(3), 1u, 1u, 0u,
             (abi_stream)(uintptr_t)pick('s'), NULL);
}
static void launch_ex(void) {
    abi_launch_config config = {
        (unsigned)chance(3), 1, 1, (unsigned)chance(3), 1, 1, 0, (abi_stream)(uintptr_t)pick('s'), NULL, 0};
    step.result = CALL(cuLaunchKernelEx, (const abi_launch_config *, abi_function, void **, void **), &config,
                       (abi_function)(uintptr_t)pick('f'), NULL, NULL);
}
static void add_alloc_node(void) {
    abi_alloc_node node = {.pool = {.alloc_type = ABI_ALLOCATION_PINNED, .location = location()},
                           .bytes = bytes_of_chance()};
    abi_graph_node out = NULL;
    made('n',
         CALL(cuGraphAddMemAllocNode, (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, abi_alloc_node *),
              &out, (abi_graph)(uintptr_t)pick('g'), NULL, (size_t)0, &node),
         &out);
}
static void add_memset_node(void) {
    abi_memset_node node = {
        .to = (abi_devptr)pick('p'), .pitch = 0, .value = 1, .element = 1, .width = 256, .height = 1};
    abi_graph_node out = NULL;
    abi_context current = NULL;
    CALL(cuCtxGetCurrent, (abi_context *), &current);
    made('n',
         CALL(cuGraphAddMemsetNode,
              (abi_graph_node *, abi_graph, const abi_graph_node *, size_t, const abi_memset_node *, abi_context), &out,
              (abi_graph)(uintptr_t)pick('g'), NULL, (size_t)0, &node, current),
         &out);
}
static void instantiate_with_params(void) {
    abi_instantiate_params params = {.flags = chance(3) ? 0 : ABI_INSTANTIATE_UPLOAD,
                                     .upload_stream = (abi_stream)(uintptr_t)pick('s')};
    abi_graph_exec out = NULL;
    made('x',
         CALL(cuGraphInstantiateWithParams, (abi_graph_exec *, abi_graph, abi_instantiate_params *), &out,
              (abi_graph)(uintptr_t)pick('g'), &params),
         &out);
}
static void load_library(void) {
    void *library = NULL;
    made('l',
         CALL(cuLibraryLoadData, (void **, const void *, int *, void **, unsigned, int *, void **, unsigned), &library,
              CODE, NULL, NULL, 0u, NULL, NULL, 0u),
         &library);
}
static void set_limit(void) {
    static const size_t VALUES[] = {0, 1024, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    int limit = (int)chance(7);
    step.limit = limit + 1;
    CALL(cuCtxGetLimit, (size_t *, int), &step.before, limit);
    step.result = CALL(cuCtxSetLimit, (int, size_t), limit, VALUES[chance(7)]);
}
static void host_function(void *data) {
    (void)data;
}
static void launch_host(void) {
    step.result = CALL(cuLaunchHostFunc, (abi_stream, void (*)(void *), void *), (abi_stream)(uintptr_t)pick('s'),
                       host_function, NULL);
}
static void register_host(void) {
    size_t bytes = (size_t)chance(3) * 4096;
    step.result = CALL(cuMemHostRegister_v2, (void *, size_t, unsigned), host, bytes, 0u);
}
static void unregister_host(void) {
    step.result = CALL(cuMemHostUnregister, (void *), host);
}
static void retain_primary(void) {
    abi_context context = NULL;
    step.result = CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &context, (abi_device)0);
    if (step.result == ABI_SUCCESS) CALL(cuDevicePrimaryCtxRelease_v2, (abi_device), (abi_device)0);
}

static const struct special {
    const char *name;
    void (*run)(void);
    unsigned weight;
} SPECIAL[] = {
    {"cuMemCreate", create_memory, 3},
    {"cuMemAddressReserve", reserve_addresses, 1},
    {"cuMemMap", map_memory, 3},
    {"cuMemUnmap", unmap_memory, 2},
    {"cuMemRetainAllocationHandle", retain_mapped, 1},
    {"cuMemSetAccess", set_access, 1},
    {"cuMemGetAllocationGranularity", granularity, 1},
    {"cuMemPoolCreate", create_pool, 3},
    {"cuMemGetDefaultMemPool", pool_of_location, 1},
    {"cuMemGetMemPool", current_pool_of_location, 1},
    {"cuMemPoolGetAccess", pool_access, 1},
    {"cuMemPoolSetAccess", set_pool_access, 1},
    {"cuArrayCreate_v2", create_array, 1},
    {"cuArray3DCreate_v2", create_array3d, 1},
    {"cuMipmappedArrayCreate", create_mipmap, 1},
    {"cuLaunchKernel", launch_cuLaunchKernel, 3},
    {"cuLaunchKernel_ptsz", launch_cuLaunchKernel_ptsz, 1},
    {"cuLaunchCooperativeKernel", launch_cooperative, 1},
    {"cuLaunchKernelEx", launch_ex, 1},
    {"cuGraphAddMemAllocNode", add_alloc_node, 3},
    {"cuGraphAddMemsetNode", add_memset_node, 1},
    {"cuGraphInstantiateWithParams", instantiate_with_params, 2},
    {"cuLibraryLoadData", load_library, 1},
    {"cuCtxSetLimit", set_limit, 2},
    {"cuLaunchHostFunc", launch_host, 1},
    {"cuMemHostRegister_v2", register_host, 1},
    {"cuMemHostUnregister", unregister_host, 1},
    {"cuDevicePrimaryCtxRetain", retain_primary, 1},
};
#define SPECIAL_COUNT (sizeof SPECIAL / sizeof *SPECIAL)

static void do_step(void) {
    unsigned weights = 0;
    for (size_t i = 0; i < SPECIAL_COUNT; i++) weights += SPECIAL[i].weight;
    uint64_t which = chance(CALL_COUNT + weights);
    step = (struct step){.hash = 1469598103934665603u};
    if (which < CALL_COUNT) {
        step.name = CALLS[which].name;
        call_by_table(&CALLS[which]);
        return;
    }
    size_t at = 0;
    for (which -= CALL_COUNT; which >= SPECIAL[at].weight; at++) which -= SPECIAL[at].weight;
    step.name = SPECIAL[at].name;
    SPECIAL[at].run();
}

static abi_context primary;

/* In the primary context, as none may be current. */
static void take_back(char letter, uint64_t value) {
    abi_context popped;
    if (letter != 'c') CALL(cuCtxPushCurrent_v2, (abi_context), primary);
    end_handle(letter, value);
    if (letter != 'c') CALL(cuCtxPopCurrent_v2, (abi_context *), &popped);
}

/* What follows from a step: handles that came and went; or the step is undone. */
static void settle(bool undo) {
    if (step.made && step.result == ABI_SUCCESS && step.value) {
        if (undo) take_back(step.made, step.value);
        else if (kind_of(step.made)->count < MOST_HANDLES) add(step.made, step.value);
        else end_handle(step.made, step.value);
    }
    if (undo && step.limit && step.result == ABI_SUCCESS)
        CALL(cuCtxSetLimit, (int, size_t), step.limit - 1, step.before);
    if (step.ended && step.gone && step.result == ABI_SUCCESS) forget(step.ended, step.gone);
}

static void make_primary_current(void) {
    if (!primary) CALL(cuDevicePrimaryCtxRetain, (abi_context *, abi_device), &primary, (abi_device)0);
    CALL(cuCtxSetCurrent, (abi_context), primary);
}

static void reset_limits(void) {
    static size_t usual[7];
    static bool known;
    for (int limit = 0; limit < 7; limit++) {
        if (!known) CALL(cuCtxGetLimit, (size_t *, int), &usual[limit], limit);
        else CALL(cuCtxSetLimit, (int, size_t), limit, usual[limit]);
    }
    known = true;
}

/* Ends everything that the sequence has left. */
static void clean(void) {
    abi_context popped = NULL;
    int mode = 0;
    size_t left = 0, total;
    abi_pool pool;
    for (unsigned i = 0; i < kind_of('s')->count; i++) {
        abi_graph graph = NULL;
        CALL(cuStreamEndCapture, (abi_stream, abi_graph *), (abi_stream)(uintptr_t)kind_of('s')->list[i].value, &graph);
        if (graph) CALL(cuGraphDestroy, (abi_graph), graph);
    }
    abi_graph graph = NULL;
    CALL(cuStreamEndCapture, (abi_stream, abi_graph *), ABI_STREAM_PER_THREAD, &graph);
    if (graph) CALL(cuGraphDestroy, (abi_graph), graph);
    CALL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
    for (int i = 0; i < MOST_STEPS && CALL(cuCtxPopCurrent_v2, (abi_context *), &popped) == ABI_SUCCESS; i++) {
    }
    make_primary_current();
    CALL(cuCtxSynchronize, (void));
    for (size_t i = 0; i < KIND_COUNT; i++) {
        while (kinds[i].count > 0) {
            uint64_t value = kinds[i].list[--kinds[i].count].value;
            end_handle(kinds[i].letter, value);
            if (kinds[i].letter == 'c') make_primary_current();
        }
    }
    make_primary_current();
    CALL(cuMemHostUnregister, (void *), host);
    reset_limits();
    if (CALL(cuDeviceGetDefaultMemPool, (abi_pool *, abi_device), &pool, (abi_device)0) == ABI_SUCCESS) {
        uint64_t keep = 0;
        CALL(cuDeviceSetMemPool, (abi_device, abi_pool), (abi_device)0, pool);
        CALL(cuMemPoolSetAttribute, (abi_pool, int, void *), pool, (int)ABI_POOL_RELEASE_THRESHOLD, (void *)&keep);
        CALL(cuMemPoolTrimTo, (abi_pool, size_t), pool, (size_t)0);
    }
    CALL(cuDeviceGraphMemTrim, (abi_device), (abi_device)0);
    CALL(cuMemGetInfo_v2, (size_t *, size_t *), &left, &total);
    printf("clean %zu\n", left);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    uint64_t steps = strtoull(argv[3], NULL, 10);
    bool bare = !strcmp(argv[4], "bare");
    static bool refused[MOST_STEPS];
    char line[64];
    setvbuf(stdout, NULL, _IOLBF, 0); /* the last line shows where it ended */
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    host = mmap(NULL, ADDRESSES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!driver || host == MAP_FAILED || steps > MOST_STEPS || CALL(cuInit, (unsigned), 0u)) return 3;
    make_primary_current();
    reset_limits();
    clean();
    for (uint64_t seed = first; seed < first + count; seed++) {
        memset(refused, 0, sizeof refused);
        while (fgets(line, sizeof line, stdin) && line[0] != '\n') {
            uint64_t number = strtoull(line, NULL, 10);
            if (number < steps) refused[number] = true;
        }
        state = seed * 0x9e3779b97f4a7c15u + 1;
        for (uint64_t number = 0; number < steps; number++) {
            if (number % 16 == 0) make_primary_current();
            do_step();
            settle(bare && refused[number]);
            printf("%" PRIu64 " %s %d %" PRIx64 "\n", number, step.name, step.result, step.hash);
        }
        clean();
    }
    while (fgets(line, sizeof line, stdin)) { /* what it holds is looked at until then */
    }
    return 0;
}
