/* Look-ups: arbitrary names in every handle, by callers inside and outside the driver, and cuGetProcAddress with
 * arbitrary arguments above a driver that returns what the fuzzer chooses, newer variants and nonsense included.
 * The result must be that of a plain search through the rows: what the driver lacks, or has in another variant, is
 * not wrapped; what is wrapped is the requested variant; and the driver's result and status are passed on. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "../../native/abi/generated/cuda_symbols.h"
#include "../../native/interposer/entry/entry.h"
#include "input.h"

/* The fuzzer's runtime keeps its own dlsym and dlvsym. */
/* NOLINTBEGIN(bugprone-suspicious-include,bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): what is remembered
 * of a driver is forgotten with it */
#define __asm__(text)
#define dlvsym fuzzed_dlvsym
#include "../../native/interposer/entry/get_proc_address.c"
#include "../../native/interposer/symbols/dlsym_hooks.c"
#include "../../native/interposer/symbols/look_up.c"
#include "../../native/interposer/symbols/resolve.c"
#undef __asm__
#undef dlvsym
/* NOLINTEND(bugprone-suspicious-include,bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* ---- our names ---- */

static char sentinel[1];
struct names {
#define NAME(index, symbol, verb, group) char symbol[sizeof #symbol];
    COT_CUDA_ROWS(NAME)
#undef NAME
};
const char shim_names[] =
#define NAME(index, symbol, verb, group) #symbol "\0"
    COT_CUDA_ROWS(NAME)
#undef NAME
    ;
/* Nothing jumps here: a record's address serves as its trampoline, the address after all records as every wrapper. */
#define RECORD(index) (int)((index) * sizeof(struct shim_record))
#define SERVED_RESERVE RECORD(COT_CUDA_COUNT), false
#define SERVED_RELEASE SERVED_RESERVE
#define SERVED_TRACK SERVED_RESERVE
#define SERVED_VIRTUALIZE SERVED_RESERVE
#define SERVED_RESOLVE SERVED_RESERVE
#define SERVED_GATE 0, true
#define SERVED_PASS 0, false
#define ENTRY_OF(at, name, wrapper, gated) {at, wrapper, name, gated}
#define ENTRY_FROM(at, name, served) ENTRY_OF(at, name, served)
const struct shim_record shim_records[COT_CUDA_COUNT + 1] = {
#define ENTRY(index, symbol, verb, group) ENTRY_FROM(RECORD(index), offsetof(struct names, symbol), SERVED_##verb),
    COT_CUDA_ROWS(ENTRY)
#undef ENTRY
};
#include "../../native/interposer/generated/cuda_names.h"
const uint32_t shim_entry_count = COT_CUDA_COUNT;
const char shim_marker[] = "cotenant_interposer";
const struct shim_form shim_form;
void *shim_target[COT_CUDA_COUNT];

static bool is_wrapped(int index) {
    return shim_records[index].wrapper || shim_records[index].gated;
}
static bool is_trampoline(const void *address) {
    return (const struct shim_record *)address >= shim_records &&
           (const struct shim_record *)address < shim_records + COT_CUDA_COUNT;
}

/* ---- the driver and the loader ---- */

static struct link_map program, own = {.l_prev = &program}, library = {.l_prev = &program},
                                other = {.l_prev = &program};
static char code[4096], code_of_others[256];
static struct {
    bool is_there;
    uint8_t lacks;      /* one in so many names */
    uint32_t newest;    /* its version */
    uint32_t changed;   /* from this version on it has variants that this build does not know, */
    uint8_t which;      /* of some names */
    uint8_t nonsense;   /* of so many answers in 256 */
    int result, status; /* then */
} driver;

static uint32_t mix(const char *text, uint32_t value) {
    uint32_t hash = value * 2654435761u + 1;
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 16777619u;
    return hash ^ hash >> 15;
}

/* A fixed address for each name. */
static void *driver_has(const char *name) {
    if (driver.lacks && mix(name, 1) % driver.lacks == 0) return NULL;
    return &code[mix(name, 2) % (sizeof code / 2)];
}

static const struct {
    const char *base;
    int version, per_thread;
    const char *symbol;
} ROWS[] = {
#define ROW(base, version, per_thread, symbol) {base, version, per_thread, #symbol},
    ABI_CUDA_VERSION_ROWS(ROW)
#undef ROW
};
#define ROWS_COUNT (sizeof ROWS / sizeof *ROWS)

/* The row that a request means: the newest one not above the version; of two, the per-thread one if requested. */
static int row_of(const char *base, int version, uint64_t flags) {
    int best = -1;
    for (int i = 0; i < (int)ROWS_COUNT; i++) {
        if (strcmp(ROWS[i].base, base) != 0 || ROWS[i].version > version) continue;
        if (ROWS[i].per_thread && !(flags & ABI_GPA_PER_THREAD_STREAM)) continue;
        if (best < 0 || ROWS[i].version > ROWS[best].version ||
            (ROWS[i].version == ROWS[best].version && ROWS[i].per_thread))
            best = i;
    }
    return best;
}

static abi_result answer(const char *base, void **address, int version, uint64_t flags, int *status) {
    if (!base || !address) return ABI_ERROR_INVALID_VALUE;
    if (mix(base, (uint32_t)version * 3 + (uint32_t)flags) % 256 < driver.nonsense) {
        *address = driver.result == ABI_SUCCESS ? NULL : &code[0];
        if (status) *status = driver.status;
        return driver.result;
    }
    bool above = (uint32_t)version > driver.newest;
    int asked = above ? (int)driver.newest : version, row = row_of(base, asked, flags);
    *address = row < 0 ? driver_has(base) : driver_has(ROWS[row].symbol);
    if (*address && (uint32_t)asked >= driver.changed && mix(base, 5) % 4 <= driver.which % 4)
        *address = &code[sizeof code / 2 + mix(base, 6) % (sizeof code / 2)];
    if (status) *status = *address ? ABI_GPA_FOUND : ABI_GPA_SYMBOL_NOT_FOUND;
    return *address ? ABI_SUCCESS : ABI_ERROR_NOT_FOUND;
}
static abi_result answer_v1(const char *base, void **address, int version, uint64_t flags) {
    return answer(base, address, version, flags, NULL);
}
static abi_result tell_version(int *version) {
    *version = (int)driver.newest;
    return driver.newest == 0 ? ABI_ERROR_UNKNOWN : ABI_SUCCESS;
}

void *libc_dlsym(void *handle, const char *name) {
    int index = shim_index_of(name);
    if (handle == &library) {
        return !strcmp(name, "cuGetProcAddress_v2")  ? (void *)answer
               : !strcmp(name, "cuGetProcAddress")   ? (void *)answer_v1
               : !strcmp(name, "cuDriverGetVersion") ? (void *)tell_version
                                                     : driver_has(name);
    }
    if (handle == &other) return mix(name, 7) % 2 ? &code_of_others[mix(name, 8) % sizeof code_of_others] : NULL;
    return index < 0 ? NULL : (void *)&shim_records[index];
}
void *libc_dlvsym(void *handle, const char *name, const char *version) {
    return handle == &other ? libc_dlsym(handle, name) : NULL;
}
void *libc_dlsym_address(void) {
    return sentinel;
}
void *libc_dlsym_fail(const char *name) {
    return NULL;
}
void *shim_find_in_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name) {
    return NULL;
}
void *shim_real_library_for(const void *caller) {
    return driver.is_there ? &library : NULL;
}
void *shim_real_library(void) {
    return shim_real_library_for(NULL);
}
bool shim_defers_to_older_copy(void) {
    return false;
}
bool shim_is_real_object(ElfW(Addr) base) {
    return false;
}
bool shim_is_real_code(const void *address) {
    return (const char *)address >= code && (const char *)address < code + sizeof code;
}
int shim_missing(void) {
    return driver.is_there ? ABI_ERROR_NOT_FOUND : ABI_ERROR_NO_DEVICE;
}
static _Atomic uint64_t unknown;
_Atomic(_Atomic uint64_t *) shim_unknown_count = &unknown;
_Atomic(void *) shim_known_handle;
void *shim_find_own_handle(void) {
    return atomic_load(&shim_known_handle);
}

/* ---- questions ---- */

static int find_by_walking(const char *name) {
    for (uint32_t i = 0; i < shim_entry_count; i++) {
        if (!strcmp(shim_name(i), name)) return (int)i;
    }
    return -1;
}

/* A name in memory of exactly its size: a symbol or base name, perhaps with changed bytes, or arbitrary bytes. */
static char *name_from(struct input *in) {
    uint8_t kind = input_byte(in);
    char text[256];
    size_t length = 0;
    memset(text, 0, sizeof text);
    if (kind % 8 < 6) {
        uint32_t which = input_word(in);
        const char *known = kind % 2 ? ROWS[which % ROWS_COUNT].base : shim_name(which % shim_entry_count);
        length = strlen(known);
        memcpy(text, known, length);
    }
    if (kind % 8 > 4) {
        size_t more = input_byte(in) % 64, from = length ? input_byte(in) % length : 0;
        input_bytes(in, text + from, more);
        length = strlen(text);
    } else if (kind >= 224) {
        length = input_byte(in) % (length + 1);
    }
    char *name = malloc(length + 1);
    memcpy(name, text, length);
    name[length] = 0;
    return name;
}

static void look_up(struct input *in) {
    uint8_t how = input_byte(in);
    void *const handles[] = {&own, &other, &program, &library, RTLD_DEFAULT, RTLD_NEXT};
    void *handle = handles[how % 6];
    const void *caller = how & 64 ? (const void *)&code[how] : (const void *)code_of_others;
    char *name = name_from(in);
    int index = find_by_walking(name);
    if (shim_index_of(name) != index) abort();
    struct route route = shim_route_dlsym(handle, name, caller);
    bool from_driver = driver.is_there && how & 64;
    if (route.go_on && route.answer) abort();
    if (is_trampoline(route.answer)) {
        if (index < 0 || from_driver) abort();
        if (route.answer != &shim_records[index]) abort();
        if (driver.is_there && !libc_dlsym(&library, name)) abort(); /* the driver lacks the name */
    }
    /* What another object defines is not wrapped. */
    if (handle == &other && !route.go_on && route.answer != libc_dlsym(&other, name)) abort();
    /* libc would find the trampoline of a name that the driver lacks. */
    if (route.go_on && handle == &own && index >= 0 && driver.is_there && !from_driver && !libc_dlsym(&library, name))
        abort();
    fuzzed_dlvsym(handle, name, "GLIBC_2.2.5");
    free(name);
}

static void *known_as[ROWS_COUNT]; /* an address recognized as a row's variant stays recognized */

static void get_proc_address(struct input *in) {
    uint8_t how = input_byte(in);
    static const int VERSIONS[] = {0, 2000, 3020, 7000, 11030, 12000, 12080, 13000, 14000, -1};
    int version = how & 16 ? (int)input_word(in) : VERSIONS[input_byte(in) % 10];
    uint64_t flags = how & 32 ? input_long(in) : input_byte(in) % 4;
    char *base = how % 16 ? name_from(in) : NULL;
    void *theirs = sentinel, *ours = sentinel;
    int their_status = 77, our_status = 77;
    abi_result expected, result;
    if (how & 64) {
        expected = driver.is_there ? answer(base, &theirs, version, flags, &their_status) : shim_missing();
        result = cot_cuGetProcAddress_v2(base, how % 16 == 1 ? NULL : &ours, version, flags, &our_status);
    } else {
        expected = driver.is_there ? answer(base, &theirs, version, flags, NULL) : shim_missing();
        result = cot_cuGetProcAddress(base, how % 16 == 1 ? NULL : &ours, version, flags);
    }
    if (how % 16 != 1) {
        if (result != expected || our_status != their_status) abort();
        int asked = driver.newest > 0 && version > (int)driver.newest ? (int)driver.newest : version;
        int row = base ? row_of(base, asked, flags) : -1, index = row < 0 ? -1 : find_by_walking(ROWS[row].symbol);
        void *again = NULL;
        bool is_known = result == ABI_SUCCESS && theirs && index >= 0 && is_wrapped(index);
        if (is_known && known_as[row] != theirs) {
            is_known = answer(base, &again, ROWS[row].version, flags, NULL) == ABI_SUCCESS && again == theirs;
            if (is_known) known_as[row] = theirs;
        }
        if (ours != (is_known ? (void *)&shim_records[index] : theirs)) abort();
    }
    free(base);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    static const uint32_t NEWEST[] = {0, 11080, 12040, 12080, 13000, 14000};
    memset(seen, 0, sizeof seen);
    memset(known_as, 0, sizeof known_as);
    atomic_store(&known_version, 0);
    memset(shim_addresses, 0, sizeof shim_addresses);
    atomic_store(&shim_known_handle, &own);
    uint8_t kind = input_byte(&in);
    driver.is_there = kind % 16 != 0;
    driver.newest = NEWEST[kind / 16 % 6];
    driver.lacks = input_byte(&in) % 16;
    driver.which = input_byte(&in);
    driver.changed = driver.which & 4 ? NEWEST[1 + input_byte(&in) % 5] : UINT32_MAX;
    driver.nonsense = input_byte(&in) % 64;
    driver.result = input_byte(&in) % 2 ? (int)input_word(&in) : ABI_SUCCESS;
    driver.status = (int)input_byte(&in);
    for (int question = 0; question < 32 && in.left > 0; question++) {
        if (input_byte(&in) % 2) look_up(&in);
        else get_proc_address(&in);
    }
    return 0;
}
