/* Every entry point by every way to look it up, each answer held against what the driver itself says. Prints one line a
 * way: its name, answers that were ours, the driver's own, absent, pretended, missing, and wrong; each wrong one on
 * standard error. Pretended and missing are what a preloaded object's fixed exports cannot help: a name that the driver
 * lacks is there and answers "not found", and one that only the driver has is not.
 *   conformance preload|mounted REAL-LIBCUDA PLUGIN PLUGIN-DEEPBIND PLUGIN-NEW-NAMESPACE ABSOLUTE-LIBCUDA
 *   conformance calls: with the driver of test/native/drivers/echo.c, calls all that is passed and gated
 * The truth is read from the driver's own symbol table and asked of its own cuGetProcAddress, past all hooks. Ours is
 * right where the entry point's verb is not `pass`; the driver's own where it is; absent where the driver lacks it.
 * Our object's export of a passed entry point counts as the driver's own: it jumps there. */
#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../native/abi/cuda.h"
#include "../../../../native/abi/generated/cuda_symbols.h"
#include "../../../../native/interposer/generated/cuda_verbs.h"

#define MOST_SYMBOLS 1024
/* What glibc began with on this machine. */
#if defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif
typedef abi_result (*gpa_v1)(const char *, void **, int, uint64_t);
typedef abi_result (*gpa_v2)(const char *, void **, int, uint64_t, int *);
typedef void *(*look_up)(void *, const char *);
typedef void *(*find_in)(const char *);

enum verb { RESERVE, RELEASE, TRACK, VIRTUALIZE, GATE, RESOLVE, PASS };
static const struct {
    const char *name;
    enum verb verb;
} KNOWN[] = {
#define ROW(index, symbol, verb, group) {#symbol, verb},
    COT_CUDA_ROWS(ROW)
#undef ROW
};
/* What an object linked with -lcuda is bound to. */
#define WEAK(index, symbol) extern __attribute__((weak, visibility("default"))) void symbol(void);
ABI_CUDA_SYMBOLS(WEAK)
static void *const LINKED[] = {
#define ROW(index, symbol) (void *)symbol,
    ABI_CUDA_SYMBOLS(ROW)
#undef ROW
};
static const struct {
    const char *base;
    int version;
} ROWS[] = {
#define ROW(base, version, per_thread, symbol) {base, version},
    ABI_CUDA_VERSION_ROWS(ROW)
#undef ROW
};

/* ---- objects, by their own symbol tables ---- */

struct object {
    const struct link_map *map;
    const ElfW(Sym) * symbols;
    const char *strings;
    const uint32_t *table;
};

static struct object object_of(void *handle) {
    struct object object = {.map = handle};
    for (const ElfW(Dyn) *entry = object.map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB) object.symbols = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_STRTAB) object.strings = (const void *)entry->d_un.d_ptr;
        if (entry->d_tag == DT_GNU_HASH) object.table = (const void *)entry->d_un.d_ptr;
    }
    if (!object.symbols || !object.strings || !object.table) exit(3);
    return object;
}

static void *walk(const struct object *object, const char *name) {
    const uint32_t *table = object->table;
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    const uint32_t *buckets = table + 4 + (size_t)table[2] * 2, *chain = buckets + table[0];
    for (uint32_t i = buckets[hash % table[0]]; i >= table[1] && i; i++) {
        uint32_t entry = chain[i - table[1]];
        if ((entry | 1) == (hash | 1) && !strcmp(object->strings + object->symbols[i].st_name, name))
            return (char *)object->map->l_addr + object->symbols[i].st_value;
        if (entry & 1) break;
    }
    return NULL;
}

static struct object real, ours;

/* The driver's exports by address, so that an answer has a name. */
static struct export {
    void *address;
    const char *name;
} exports[MOST_SYMBOLS];
static size_t export_count;

static int by_address(const void *one, const void *other) {
    const struct export *a = one, *b = other;
    return a->address < b->address ? -1 : a->address > b->address;
}

static void list_exports(void) {
    const uint32_t *table = real.table, *buckets = table + 4 + (size_t)table[2] * 2, *chain = buckets + table[0];
    for (uint32_t bucket = 0; bucket < table[0]; bucket++) {
        for (uint32_t i = buckets[bucket]; i; i++) {
            if (export_count == MOST_SYMBOLS) exit(3);
            exports[export_count++] = (struct export){(char *)real.map->l_addr + real.symbols[i].st_value,
                                                      real.strings + real.symbols[i].st_name};
            if (chain[i - table[1]] & 1) break;
        }
    }
    qsort(exports, export_count, sizeof *exports, by_address);
}

static const char *name_of(void *address) {
    struct export key = {.address = address};
    const struct export *found = bsearch(&key, exports, export_count, sizeof *exports, by_address);
    return found ? found->name : NULL;
}

static bool is_wrapped(const char *name) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (!strcmp(KNOWN[i].name, name)) return KNOWN[i].verb != PASS;
    }
    return false;
}

/* ---- judging ---- */

static struct count {
    unsigned ours, driver, absent, pretended, missing, wrong;
} count;
static const char *way;
static bool fixed; /* this way reads exports that are what they are */

static void begin(const char *name) {
    way = name;
    count = (struct count){0};
}

static void end(void) {
    printf("%s %u %u %u %u %u %u\n", way, count.ours, count.driver, count.absent, count.pretended, count.missing,
           count.wrong);
}

static void wrong(const char *name, const void *answer, const char *wanted) {
    count.wrong++;
    fprintf(stderr, "%s: %s: %p, not %s\n", way, name, answer, wanted);
}

/* `strict`: a passed one must be the driver's own address. */
static void judge(const char *name, void *answer, bool strict) {
    void *truth = walk(&real, name);
    bool wrapped = is_wrapped(name);
    if (fixed && !truth && answer && answer == walk(&ours, name)) {
        if (!wrapped && ((abi_result (*)(void))answer)() != ABI_ERROR_NOT_FOUND)
            return wrong(name, answer, "an entry point that says that it is not found");
        count.pretended++;
    } else if (fixed && truth && !answer && !walk(&ours, name)) {
        count.missing++;
    } else if (!truth) {
        if (answer) return wrong(name, answer, "absent");
        count.absent++;
    } else if (wrapped) {
        if (!answer || answer != walk(&ours, name)) return wrong(name, answer, "ours");
        count.ours++;
    } else {
        if (answer != truth && (strict || !answer || answer != walk(&ours, name)))
            return wrong(name, answer, "the driver's own");
        count.driver++;
    }
}

static const char *const MORE[] = {"cuNoSuchThing",          "cuMemAlloc_v9",        "cuLaunchKernel_v2",
                                   "cuLaunchKernel_v2_ptsz", "cuMemAlloc_v3",        "cuTensorHeapCreate",
                                   "cuTensorHeapDestroy",    "cotenant_interposer_", "sim_start"};

/* By a function that looks a name up. */
static void walk_names(const char *name, void *(*find)(const char *), bool strict) {
    begin(name);
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) judge(KNOWN[i].name, find(KNOWN[i].name), strict);
    for (size_t i = 0; i < sizeof MORE / sizeof *MORE; i++) judge(MORE[i], find(MORE[i]), strict);
    end();
}

static void *driver, *named, *absolute;
static look_up other_dlsym;
static find_in plugin_find;

static void *by_default(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}
static void *by_next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}
static void *by_handle(const char *name) {
    return dlsym(driver, name);
}
static void *by_other(const char *name) {
    return other_dlsym(driver, name);
}
static void *by_walk(const char *name) {
    return walk(&ours, name);
}
static void *by_plugin(const char *name) {
    return plugin_find(name);
}
static void *by_unversioned(const char *name) {
    return dlsym(named, name);
}
static void *by_absolute(const char *name) {
    return dlsym(absolute, name);
}

/* ---- cuGetProcAddress: each name at each version and stream flag, in both forms ---- */

static void judge_gpa(gpa_v1 first, gpa_v2 second, gpa_v1 true_first, gpa_v2 true_second, const char *base, int version,
                      uint64_t flags) {
    void *answer = (void *)1, *truth = (void *)1;
    int status = -1, true_status = -1;
    abi_result result = second ? second(base, &answer, version, flags, &status) : first(base, &answer, version, flags);
    abi_result true_result = true_second ? true_second(base, &truth, version, flags, &true_status)
                                         : true_first(base, &truth, version, flags);
    if (result != true_result || status != true_status) return wrong(base, answer, "the driver's result and status");
    if (result != ABI_SUCCESS || !truth) {
        if (answer != truth) return wrong(base, answer, "as the driver left it");
        count.absent++;
        return;
    }
    const char *symbol = name_of(truth);
    if (symbol && is_wrapped(symbol)) {
        if (answer != walk(&ours, symbol)) return wrong(symbol, answer, "ours");
        count.ours++;
    } else {
        if (answer != truth) return wrong(symbol ? symbol : base, answer, "the driver's own");
        count.driver++;
    }
}

static void walk_gpa(const char *name, void *first, void *second) {
    gpa_v1 true_first = (gpa_v1)walk(&real, "cuGetProcAddress");
    gpa_v2 true_second = (gpa_v2)walk(&real, "cuGetProcAddress_v2");
    static const int OFTEN[] = {0, 3020, 10000, 11080, 12040, 12080, 13000, 14000, 99990};
    begin(name);
    for (uint64_t flags = 0; flags <= 4; flags++) {
        for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
            bool is_new = i == 0 || strcmp(ROWS[i].base, ROWS[i - 1].base) != 0;
            for (int version = ROWS[i].version - 10; version <= ROWS[i].version + 10; version += 10)
                judge_gpa((gpa_v1)first, (gpa_v2)second, true_first, second ? true_second : NULL, ROWS[i].base, version,
                          flags);
            for (size_t k = 0; is_new && k < sizeof OFTEN / sizeof *OFTEN; k++)
                judge_gpa((gpa_v1)first, (gpa_v2)second, true_first, second ? true_second : NULL, ROWS[i].base,
                          OFTEN[k], flags);
        }
        /* Suffixed names are no names here, and an empty one is what CUDA's runtime probes with. */
        static const char *const OTHERS[] = {"cuTensorHeapCreate", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "",
                                             "cuNoSuchThing"};
        for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
            judge_gpa((gpa_v1)first, (gpa_v2)second, true_first, second ? true_second : NULL, OTHERS[i], 14000, flags);
    }
    end();
}

/* Our export of each name that leads to the driver leads to that very entry point of it. */
static int walk_calls(void) {
    ours = object_of(driver);
    begin("calls");
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        if (KNOWN[i].verb != PASS && KNOWN[i].verb != GATE) continue;
        /* Arguments in registers and on the stack, none of which matters to the echo. */
        int (*call)(long, long, long, long, long, long, long, long) = walk(&ours, KNOWN[i].name);
        if (!call || call(0, 0, 0, 0, 0, 0, 0, 0) != 10000 + (int)i) wrong(KNOWN[i].name, call, "its own number");
        else count.driver++;
    }
    end();
    return 0;
}

int main(int argc, char **argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (argc == 2 && driver && !strcmp(argv[1], "calls")) return walk_calls();
    if (argc != 7) return fputs("usage: conformance preload|mounted REAL PLUGIN DEEP NEW ABSOLUTE\n", stderr), 2;
    bool mounted = !strcmp(argv[1], "mounted");
    void *true_driver = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (!driver || !true_driver) return fprintf(stderr, "conformance: %s\n", dlerror()), 3;
    real = object_of(true_driver);
    ours = object_of(driver);
    list_exports();
    if (real.map == ours.map) return fputs("conformance: nothing stands before the driver\n", stderr), 3;

    bool strict = !mounted;
    walk_names("dlsym-default", by_default, strict);
    walk_names("dlsym-next", by_next, strict);
    walk_names("dlsym-handle", by_handle, strict);
    other_dlsym = (look_up)dlsym(RTLD_NEXT, "dlsym");
    walk_names("dlsym-by-dlsym", by_other, strict);
    begin("foreign-handle"); /* a library that has nothing to do with the driver has none of its names */
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        void *answer = dlsym(libc, KNOWN[i].name);
        if (answer) wrong(KNOWN[i].name, answer, "absent");
        else count.absent++;
    }
    end();
    fixed = !mounted;
    other_dlsym = (look_up)dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
    walk_names("dlsym-by-dlvsym", by_other, false);
    other_dlsym = (look_up)dlsym(libc, "dlsym");
    walk_names("dlsym-of-libc", by_other, false);
    walk_names("own-elf-walk", by_walk, false);
    begin("direct-link");
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) judge(KNOWN[i].name, LINKED[i], false);
    end();
    fixed = false;
    void *plugin = dlopen(argv[3], RTLD_NOW | RTLD_LOCAL), *deep = dlopen(argv[4], RTLD_NOW | RTLD_DEEPBIND);
    if (!plugin || !deep) return fprintf(stderr, "conformance: %s\n", dlerror()), 3;
    plugin_find = (find_in)dlsym(plugin, "plugin_find");
    walk_names("plugin", by_plugin, strict);
    plugin_find = (find_in)dlsym(deep, "plugin_find");
    walk_names("plugin-deepbind", by_plugin, strict);
    void *apart = dlmopen(LM_ID_NEWLM, argv[5], RTLD_NOW);
    void *(*driver_of)(void) = apart ? (void *(*)(void))dlsym(apart, "plugin_driver") : NULL;
    plugin_find = apart ? (find_in)dlsym(apart, "plugin_find_in_driver") : NULL;
    if (!plugin_find || !driver_of) return fprintf(stderr, "conformance: %s\n", dlerror()), 3;
    /* Mounted: a copy of us in a namespace of its own; preload: the driver itself. glibc looks a name up in the
     * namespace of the caller of dlmopen where its own has none. */
    struct object apart_driver = object_of(driver_of());
    begin("plugin-dlmopen");
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
        void *truth = walk(&real, KNOWN[i].name), *answer = plugin_find(KNOWN[i].name);
        if (!truth != !answer || (answer && answer != walk(&apart_driver, KNOWN[i].name)))
            wrong(KNOWN[i].name, answer, "that namespace's own");
        else if (!answer) count.absent++;
        else if (mounted && is_wrapped(KNOWN[i].name)) count.ours++;
        else count.driver++;
    }
    end();
    named = dlopen("libcuda.so", RTLD_NOW);
    absolute = dlopen(argv[6], RTLD_NOW);
    if (!named || !absolute) return fprintf(stderr, "conformance: %s\n", dlerror()), 3;
    walk_names("unversioned-name", by_unversioned, strict);
    walk_names("absolute-path", by_absolute, strict);

    void *v1 = dlsym(driver, "cuGetProcAddress"), *v2 = dlsym(driver, "cuGetProcAddress_v2"), *again = NULL;
    walk_gpa("get-proc-address-v1", v1, NULL);
    if (v2) walk_gpa("get-proc-address", NULL, v2);
    if (v2 && ((gpa_v2)v2)("cuGetProcAddress", &again, 12000, ABI_GPA_PER_THREAD_STREAM, NULL) == ABI_SUCCESS)
        walk_gpa("get-proc-address-twice", NULL, again);
    return 0;
}
