/* Random sequences of calls, for a comparison of the driver with and without a grant (differential.test.ts).
 *
 *   differential FIRST COUNT STEPS bare|granted
 *
 * does COUNT sequences of so many steps from the seed FIRST on, and prints a line for each step: its number, the call,
 * the result, and a hash of what was answered. The same seed is the same sequence as long as the same calls succeed. So
 * the program that has a grant goes first: before each sequence the other one reads which of its steps were answered
 * out of memory. It does them as well, and undoes them. After each sequence everything is destroyed, and a line says
 * how many bytes are free. */
#include <inttypes.h>
#include <sys/mman.h>

#include "differential_calls.h"
#include "differential_special.h"

#define CALL_COUNT (sizeof CALLS / sizeof *CALLS)
#define MOST_STEPS 1000

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

/* By how much pools grow is known to the interposer from the first growth on, and that one may pass a grant for the
 * length of its call (memory/pool-requests.test.ts). From then on nothing may. */
static void learn_pool_step(void) {
    abi_devptr memory = 0;
    if (CALL(cuMemAllocAsync, (abi_devptr *, size_t, abi_stream), &memory, (size_t)1, (abi_stream)NULL) == ABI_SUCCESS)
        CALL(cuMemFree_v2, (abi_devptr), memory);
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
    learn_pool_step();
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
