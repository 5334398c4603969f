/* Loads the first engine when the first entry point that it serves is called, and replaces it when the limits page
 * names another one. If an engine cannot be loaded or does not fit, the working one stays, with one line on
 * standard error; without any engine the GPU stays closed.
 *
 * No thread waits and no lock is held across a call: one thread replaces the engine while the others go on. If
 * several threads make their first call at once, each loads an engine and one of them wins: a thread that waited
 * for another could hold the loader's lock (in a constructor) that the other one needs. A forked child keeps the
 * engine it was forked with until it attaches itself, as other threads of its parent may have left the loader and
 * malloc in any state. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../shared-memory/ledger.h"
#include "../clock.h"
#include "engine_loader.h"
#include "engine_switch.h"
#include "lanes.h"

#define MAX_ENGINES 8 /* loaded at the same time */
#define FIRST_LOOK_NS 1000000ull
#define LAST_LOOK_NS 1000000000ull
#define NEVER_UNLOAD UINT32_MAX /* replaced_at of an engine that stays loaded for good */
#define NO_ENGINE UINT32_MAX    /* not a number that a limits page can name */

struct entry_working entry_working = {.attention = true};

/* All zeros, so that it takes no room in the file. */
SHIM_STATE union entry_state entry_state;

/* The first engine, and how it was chosen. Never freed, as threads may still read it; its entry_engine is reused
 * for another engine once it is unloaded. */
struct first {
    struct entry_engine engine;
    uint32_t number, named, refused;
};
static _Atomic(struct first *) first;
static _Atomic bool load_failed;                     /* no first engine could be loaded; not tried again */
static _Atomic uint32_t wanted = NO_ENGINE;          /* the number that the limits page names */
static _Atomic uint32_t last_considered = NO_ENGINE; /* what it named when it was last acted on */

/* The process in which a thread replaces the engine; the variables below are that thread's. In a child that was
 * forked meanwhile no thread does. */
static _Atomic int replacing_process;
static SHIM_REST struct entry_engine later_engines[MAX_ENGINES - 1];
static uint32_t switches;
static _Atomic bool waits_for_room;   /* as many engines are loaded as can be: the wanted one follows at a later look */
static _Atomic uint64_t next_look_ns; /* when to check next whether old engines can be unloaded */
static uint64_t pause_ns;

/* Names without pointers: pointers would need relocation at every start of every program. */
static const struct served_names {
#define ROOM(symbol) char symbol[sizeof #symbol];
#define ROOM_ROW(index, symbol) ROOM(symbol)
    COT_CUDA_SERVED(ROOM_ROW) ENTRY_DIVERTED(ROOM) ENTRY_OWN(ROOM)
} SERVED_NAMES = {
#define NAME(symbol) #symbol,
#define NAME_ROW(index, symbol) NAME(symbol)
    COT_CUDA_SERVED(NAME_ROW) ENTRY_DIVERTED(NAME) ENTRY_OWN(NAME)};
static const uint16_t SERVED[] = {
#define PLACE(symbol) offsetof(struct served_names, symbol),
#define PLACE_ROW(index, symbol) PLACE(symbol)
    COT_CUDA_SERVED(PLACE_ROW) ENTRY_DIVERTED(PLACE) ENTRY_OWN(PLACE)};
static_assert(sizeof SERVED / sizeof *SERVED == ENTRY_SERVED, "a name for each");

static const char *served_name(unsigned i) {
    return (const char *)&SERVED_NAMES + SERVED[i];
}

void entry_want_engine(uint32_t number) {
    if (atomic_load_explicit(&wanted, memory_order_relaxed) == number) return;
    atomic_store(&wanted, number);
    atomic_store(&entry_working.attention, true);
}

/* ---- loading ---- */

__attribute__((format(printf, 1, 2))) static void print_error(const char *format, ...) {
    char text[PATH_MAX + 512];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (length > 0) (void)!write(STDERR_FILENO, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

static void unload(struct entry_engine *engine) {
    cot_dlclose(engine->handle);
    engine->descriptor = NULL;
    engine->replaced_at = 0;
}

static const char *fill_table(struct entry_engine *engine) {
    for (unsigned i = 0; i < ENTRY_SERVED; i++) {
        const char *name = served_name(i);
        engine->serve[i] = NULL;
        /* Engines of this build list them in the same order, so the first comparison succeeds. */
        for (uint32_t k = 0, count = engine->descriptor->served_count; k < count && !engine->serve[i]; k++) {
            uint32_t at = (uint32_t)(((uint64_t)i + k) % count);
            if (!strcmp(engine->descriptor->served[at].name, name))
                engine->serve[i] = (entry_function *)engine->descriptor->served[at].function;
        }
        if (!engine->serve[i]) return name;
    }
    return NULL;
}

/* Loads the engine of that number and checks it. */
static bool load(struct entry_engine *engine, const char *folder, uint32_t number, const struct engine_formats *formats,
                 char *why, size_t size) {
    struct engine_file file;
    if (!engine_file_open(folder, number, &file, why, size)) return false;
    engine->descriptor = file.descriptor;
    engine->handle = file.handle;
    engine->replaced_at = 0;
    bool fits = engine_file_fits(file.descriptor, number, &entry_services, formats, why, size);
    const char *lacks = fits ? fill_table(engine) : NULL;
    if (lacks) snprintf(why, size, "it does not serve %s", lacks);
    if (fits && !lacks && file.descriptor->start(&entry_services)) return true;
    if (fits && !lacks) snprintf(why, size, "it cannot start here");
    unload(engine);
    return false;
}

/* The engine that the limits page in that folder names, and the versions of the files there; zeros if the page
 * cannot be read, which the engine itself reports. Not inlined, so that its path buffer shares stack pages with
 * others. */
static __attribute__((noinline)) uint32_t engine_in_limits_page(const char *folder, struct engine_formats *formats) {
    char path[PATH_MAX];
    struct cot_limits_page_header header = {0};
    *formats = (struct engine_formats){0};
    if (!cot_join(path, sizeof path, folder, "/limits")) return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool read = fd >= 0 && pread(fd, &header, sizeof header, 0) == (ssize_t)sizeof header;
    if (fd >= 0) close(fd);
    if (!read || header.magic != COT_LIMITS_PAGE_MAGIC) return 0;
    *formats = (struct engine_formats){header.version, cot_ledger_version(&header)};
    return header.engine;
}

static struct first *load_initial(char *why, size_t size) {
    char folder[PATH_MAX] = "";
    struct engine_formats formats;
    struct first *mine = calloc(1, sizeof *mine);
    if (!mine || !shim_own_folder(folder, sizeof folder)) {
        snprintf(why, size, mine ? "this library cannot find its own path" : "no memory");
        free(mine);
        return NULL;
    }
    mine->named = engine_in_limits_page(folder, &formats);
    mine->number = mine->named ? mine->named : COT_ENGINE_NUMBER;
    /* The engine of this build is the last resort: it may start with files that it does not know, and reports that
     * itself. */
    if (mine->number == COT_ENGINE_NUMBER) formats = (struct engine_formats){0};
    if (load(&mine->engine, folder, mine->number, &formats, why, size)) return mine;
    if (mine->number != COT_ENGINE_NUMBER) {
        print_error("cotenant: engine %u cannot work here, so this process starts with engine %u: %s\n", mine->number,
                    COT_ENGINE_NUMBER, why);
        mine->refused = mine->number;
        mine->number = COT_ENGINE_NUMBER;
        formats = (struct engine_formats){0};
        if (load(&mine->engine, folder, mine->number, &formats, why, size)) return mine;
    }
    free(mine);
    return NULL;
}

static bool load_first(void) {
    char why[PATH_MAX + 256];
    __atomic_store_n(&entry_services.thread, entry_thread_offset(), __ATOMIC_RELAXED);
    __atomic_store_n(&entry_services.fork_zeroed_word, entry_fork_zeroed_word(), __ATOMIC_RELAXED);
    __atomic_store_n(&entry_state.state.layout, COT_STATE_LAYOUT, __ATOMIC_RELAXED);
    __atomic_store_n(&entry_state.state.bytes, COT_STATE_BYTES, __ATOMIC_RELAXED);
    struct first *none = NULL, *mine = load_initial(why, sizeof why);
    if (mine && !atomic_compare_exchange_strong(&first, &none, mine)) {
        unload(&mine->engine);
        free(mine);
    }
    if (atomic_load(&first)) return true;
    if (!atomic_exchange(&load_failed, true))
        print_error("cotenant: no engine can work here, so the GPU stays closed: %s\n", why);
    return false;
}

/* Publishes what must be known before a call enters the engine. Every thread that finds no engine working does it,
 * and it takes effect once, as no value here is ever again what it was before. */
static void publish_first(struct first *it) {
    uint64_t unset = 0, words = (uint64_t)it->refused << 32 | it->number;
    uint32_t nothing = NO_ENGINE;
    const struct entry_engine *none = NULL;
    atomic_compare_exchange_strong(&entry_state.state.engine_words, &unset, words);
    atomic_compare_exchange_strong(&last_considered, &nothing, it->named);
    atomic_compare_exchange_strong(&entry_working.engine, &none, &it->engine);
}

/* ---- replacing ---- */

/* After it every thread that read the old engine's table shows as inside. False: the kernel cannot do it. */
static bool run_barrier_on_all_threads(void) {
    enum { EXPEDITED = 1 << 3, REGISTER_EXPEDITED = 1 << 4 }; /* membarrier(2) */
    return syscall(SYS_membarrier, REGISTER_EXPEDITED, 0) == 0 && syscall(SYS_membarrier, EXPEDITED, 0) == 0;
}

static struct entry_engine *engine_at(unsigned i) {
    return i == 0 ? &atomic_load(&first)->engine : &later_engines[i - 1];
}

static struct entry_engine *loaded(uint32_t number) {
    for (unsigned i = 0; i < MAX_ENGINES; i++) {
        if (engine_at(i)->replaced_at && engine_at(i)->descriptor->number == number) return engine_at(i);
    }
    return NULL;
}

static struct entry_engine *load_next(uint32_t number, char *why, size_t size) {
    char folder[PATH_MAX];
    struct entry_engine *next = NULL;
    const struct engine_formats formats = {atomic_load(&entry_state.state.page_version),
                                           atomic_load(&entry_state.state.ledger_version)};
    for (unsigned i = 0; i < MAX_ENGINES && !next; i++) {
        if (!engine_at(i)->descriptor) next = engine_at(i);
    }
    if (!next) snprintf(why, size, "%d older engines are still in use", MAX_ENGINES - 1);
    else if (!shim_own_folder(folder, sizeof folder)) snprintf(why, size, "this library cannot find its own path");
    else if (load(next, folder, number, &formats, why, size)) return next;
    return NULL;
}

static bool has_room(uint32_t named) {
    uint32_t number = named ? named : COT_ENGINE_NUMBER;
    if (atomic_load(&entry_working.engine)->descriptor->number == number || loaded(number)) return true;
    for (unsigned i = 0; i < MAX_ENGINES; i++) {
        if (!engine_at(i)->descriptor) return true;
    }
    return false;
}

static void replace(uint32_t named) {
    char why[PATH_MAX + 256];
    struct entry_engine *old = (struct entry_engine *)atomic_load(&entry_working.engine), *next = old;
    uint32_t number = named ? named : COT_ENGINE_NUMBER;
    atomic_store(&last_considered, named);
    if (old->descriptor->number != number && !(next = loaded(number))) next = load_next(number, why, sizeof why);
    atomic_store(&entry_state.state.engine_refused, next ? 0 : number);
    if (!next) {
        print_error("cotenant: engine %u cannot work here, so engine %u goes on: %s\n", number, old->descriptor->number,
                    why);
    } else if (next != old) {
        next->replaced_at = 0;
        atomic_store(&entry_state.state.engine, number);
        atomic_store(&entry_working.engine, next);
        old->replaced_at = ++switches;
        if (!run_barrier_on_all_threads()) old->replaced_at = NEVER_UNLOAD;
        atomic_store(&next_look_ns, 0);
        pause_ns = FIRST_LOOK_NS;
    }
    (next ? next : old)->descriptor->note();
}

static uint64_t now_ns(void) {
    return cot_clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* Unloads replaced engines that no thread is in. True: some are left to check again. */
static bool unload_old_engines(void) {
    bool left = false;
    for (unsigned i = 0; i < MAX_ENGINES && switches > 0; i++) {
        uint32_t replaced_at = engine_at(i)->replaced_at;
        if (replaced_at == 0 || replaced_at == NEVER_UNLOAD) continue;
        if (entry_all_left_since(replaced_at, switches)) unload(engine_at(i));
        else left = true;
    }
    return left;
}

static bool is_attached(void) {
    return atomic_load(&entry_state.state.at.attached) && *entry_state.state.at.alive;
}

static bool claim_replacement(void) {
    int self = (int)syscall(SYS_getpid), owner = 0;
    while (!atomic_compare_exchange_strong(&replacing_process, &owner, self)) {
        if (owner == self) return false;
    }
    return true;
}

bool entry_update_engine(uint64_t *answer) {
    int error = errno;
    if (!atomic_load(&entry_working.engine)) {
        *answer = shim_real_library() ? ABI_ERROR_NOT_PERMITTED : (uint64_t)shim_missing();
        if (!atomic_load(&first) && (!shim_real_library() || atomic_load(&load_failed) || !load_first())) return false;
        publish_first(atomic_load(&first));
    }
    if ((now_ns() >= atomic_load_explicit(&next_look_ns, memory_order_relaxed) ||
         (wanted != last_considered && !atomic_load_explicit(&waits_for_room, memory_order_relaxed))) &&
        claim_replacement()) {
        atomic_store(&entry_working.attention, false);
        uint32_t named = atomic_load(&wanted);
        bool is_new = named != NO_ENGINE && named != atomic_load(&last_considered) && is_attached();
        atomic_store(&waits_for_room, is_new && !has_room(named));
        if (is_new && !atomic_load(&waits_for_room)) replace(named);
        if (unload_old_engines() || atomic_load(&waits_for_room)) {
            atomic_store(&next_look_ns, now_ns() + pause_ns);
            pause_ns = pause_ns < LAST_LOOK_NS ? pause_ns * 2 : LAST_LOOK_NS;
            atomic_store(&entry_working.attention, true);
        }
        atomic_store(&replacing_process, 0);
    }
    errno = error;
    return true;
}
