/* Which engine works: the first one, loaded when the first entry point that it serves is called; then whichever the
 * limits page names. An engine that cannot be loaded, or does not fit, leaves the one that works where it is, with one
 * line on standard error; without any engine the GPU stays closed.
 *
 * Nothing here waits and nothing is locked across a call: of several threads one attends, the others go on. Of those
 * whose first calls come at once each loads an engine for itself, for whoever waited for another one could hold what
 * that one needs (the loader's lock, in a constructor); one of them wins. A forked child keeps the engine that it was
 * born with until it has joined the grant itself: its parent's other threads may have left the loader and malloc in any
 * state. */
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

#define MOST_ENGINES 8 /* loaded at the same time */
#define FIRST_LOOK_NS 1000000ull
#define LAST_LOOK_NS 1000000000ull
#define FOR_GOOD UINT32_MAX /* of an engine put aside: it stays loaded */
#define NOTHING UINT32_MAX  /* no number that a page names */

struct entry_working entry_working = {.attention = true};

/* All zeros, so that it takes no room in the file. */
SHIM_STATE union entry_state entry_state;

/* The first engine, and how it came to that one. It stays where it is for good, for threads that are late to begin
 * with it still read the words; its engine is used again for another one when it is let go. */
struct first {
    struct entry_engine engine;
    uint32_t number, named, refused;
};
static _Atomic(struct first *) first;
static _Atomic bool closed;                   /* no first engine could be had; it is not tried again */
static _Atomic uint32_t asked = NOTHING;      /* the number that the page names */
static _Atomic uint32_t considered = NOTHING; /* what it named when that was last looked at */

/* The process in which a thread changes engines; what follows is that thread's. A child forked meanwhile has none. */
static _Atomic int attending;
static SHIM_REST struct entry_engine later[MOST_ENGINES - 1];
static uint32_t switches;
static _Atomic uint64_t next_look_ns; /* for whether old engines can be let go */
static uint64_t pause_ns;

/* Names without pointers to them, for which the loader would have to do something at every start of every program. */
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
    if (atomic_load_explicit(&asked, memory_order_relaxed) == number) return;
    atomic_store(&asked, number);
    atomic_store(&entry_working.attention, true);
}

/* ---- loading ---- */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...) {
    char text[PATH_MAX + 512];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (length > 0) (void)!write(STDERR_FILENO, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

static void let_go(struct entry_engine *engine) {
    cot_dlclose(engine->handle);
    engine->itself = NULL;
    engine->aside_at = 0;
}

static const char *fill(struct entry_engine *engine) {
    for (unsigned i = 0; i < ENTRY_SERVED; i++) {
        const char *name = served_name(i);
        engine->serve[i] = NULL;
        /* Engines of our own build list them in this order: the first one is it. */
        for (uint32_t k = 0, count = engine->itself->served_count; k < count && !engine->serve[i]; k++) {
            uint32_t at = (uint32_t)(((uint64_t)i + k) % count);
            if (!strcmp(engine->itself->served[at].name, name))
                engine->serve[i] = (entry_function *)engine->itself->served[at].function;
        }
        if (!engine->serve[i]) return name;
    }
    return NULL;
}

/* The engine of that number, ready to work. */
static bool load(struct entry_engine *engine, const char *folder, uint32_t number, const struct engine_formats *formats,
                 char *why, size_t size) {
    struct engine_file file;
    if (!engine_file_open(folder, number, &file, why, size)) return false;
    engine->itself = file.itself;
    engine->handle = file.handle;
    engine->aside_at = 0;
    bool fits = engine_file_fits(file.itself, number, &entry_services, formats, why, size);
    const char *lacks = fits ? fill(engine) : NULL;
    if (lacks) snprintf(why, size, "it does not serve %s", lacks);
    if (fits && !lacks && file.itself->start(&entry_services)) return true;
    if (fits && !lacks) snprintf(why, size, "it cannot start here");
    let_go(engine);
    return false;
}

/* What the page in that folder names, and what is to be read there; zeros where it cannot be read, which the engine
 * finds out for itself. Not inlined, so that its path lies where others' do, and not in one more page of the stack. */
static __attribute__((noinline)) uint32_t named_by_page(const char *folder, struct engine_formats *formats) {
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

static struct first *load_some(char *why, size_t size) {
    char folder[PATH_MAX] = "";
    struct engine_formats formats;
    struct first *mine = calloc(1, sizeof *mine);
    if (!mine || !shim_own_folder(folder, sizeof folder)) {
        snprintf(why, size, mine ? "this library cannot tell where it lies" : "no memory");
        free(mine);
        return NULL;
    }
    mine->named = named_by_page(folder, &formats);
    mine->number = mine->named ? mine->named : COT_ENGINE_NUMBER;
    /* Our own comes last, so it may begin with what it does not know, and says itself what that is. */
    if (mine->number == COT_ENGINE_NUMBER) formats = (struct engine_formats){0};
    if (load(&mine->engine, folder, mine->number, &formats, why, size)) return mine;
    if (mine->number != COT_ENGINE_NUMBER) {
        say("cotenant: engine %u cannot work here, so this process begins with engine %u: %s\n", mine->number,
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
    __atomic_store_n(&entry_services.wiped, entry_wiped_word(), __ATOMIC_RELAXED);
    __atomic_store_n(&entry_state.state.layout, COT_STATE_LAYOUT, __ATOMIC_RELAXED);
    __atomic_store_n(&entry_state.state.bytes, COT_STATE_ROOM, __ATOMIC_RELAXED);
    struct first *none = NULL, *mine = load_some(why, sizeof why);
    if (mine && !atomic_compare_exchange_strong(&first, &none, mine)) {
        let_go(&mine->engine);
        free(mine);
    }
    if (atomic_load(&first)) return true;
    if (!atomic_exchange(&closed, true)) say("cotenant: no engine can work here, so the GPU stays closed: %s\n", why);
    return false;
}

/* All that must be known before a call goes in. Each thread that finds no engine working does it, so none waits for the
 * one that has loaded it, and it takes effect once: none of these words is ever again what it was before. */
static void begin(struct first *it) {
    uint64_t unset = 0, words = (uint64_t)it->refused << 32 | it->number;
    uint32_t nothing = NOTHING;
    const struct entry_engine *none = NULL;
    atomic_compare_exchange_strong(&entry_state.state.engine_words, &unset, words);
    atomic_compare_exchange_strong(&considered, &nothing, it->named);
    atomic_compare_exchange_strong(&entry_working.engine, &none, &it->engine);
}

/* ---- replacing ---- */

/* After it every thread that was on its way by the old engine's table is seen to be inside. False: nobody can tell. */
static bool all_pass_a_barrier(void) {
    enum { EXPEDITED = 1 << 3, REGISTER_EXPEDITED = 1 << 4 }; /* membarrier(2) */
    return syscall(SYS_membarrier, REGISTER_EXPEDITED, 0) == 0 && syscall(SYS_membarrier, EXPEDITED, 0) == 0;
}

static struct entry_engine *engine_at(unsigned i) {
    return i == 0 ? &atomic_load(&first)->engine : &later[i - 1];
}

static struct entry_engine *loaded(uint32_t number) {
    for (unsigned i = 0; i < MOST_ENGINES; i++) {
        if (engine_at(i)->aside_at && engine_at(i)->itself->number == number) return engine_at(i);
    }
    return NULL;
}

static struct entry_engine *load_next(uint32_t number, char *why, size_t size) {
    char folder[PATH_MAX];
    struct entry_engine *next = NULL;
    const struct engine_formats formats = {atomic_load(&entry_state.state.page_version),
                                           atomic_load(&entry_state.state.ledger_version)};
    for (unsigned i = 0; i < MOST_ENGINES && !next; i++) {
        if (!engine_at(i)->itself) next = engine_at(i);
    }
    if (!next) snprintf(why, size, "%d older ones are still in use", MOST_ENGINES - 1);
    else if (!shim_own_folder(folder, sizeof folder)) snprintf(why, size, "this library cannot tell where it lies");
    else if (load(next, folder, number, &formats, why, size)) return next;
    return NULL;
}

static void replace(uint32_t named) {
    char why[PATH_MAX + 256];
    struct entry_engine *old = (struct entry_engine *)atomic_load(&entry_working.engine), *next = old;
    uint32_t number = named ? named : COT_ENGINE_NUMBER;
    atomic_store(&considered, named);
    if (old->itself->number != number && !(next = loaded(number))) next = load_next(number, why, sizeof why);
    atomic_store(&entry_state.state.engine_refused, next ? 0 : number);
    if (!next) {
        say("cotenant: engine %u cannot work here, so engine %u goes on: %s\n", number, old->itself->number, why);
    } else if (next != old) {
        next->aside_at = 0;
        atomic_store(&entry_state.state.engine, number);
        atomic_store(&entry_working.engine, next);
        old->aside_at = ++switches;
        if (!all_pass_a_barrier()) old->aside_at = FOR_GOOD;
        atomic_store(&next_look_ns, 0);
        pause_ns = FIRST_LOOK_NS;
    }
    (next ? next : old)->itself->note();
}

static uint64_t now_ns(void) {
    return cot_clock_ns(CLOCK_MONOTONIC_COARSE);
}

/* Unloads what nobody is in any more. True: some are left to look at again. */
static bool let_old_ones_go(void) {
    bool left = false;
    for (unsigned i = 0; i < MOST_ENGINES && switches > 0; i++) {
        uint32_t aside_at = engine_at(i)->aside_at;
        if (aside_at == 0 || aside_at == FOR_GOOD) continue;
        if (entry_all_out_since(aside_at, switches)) let_go(engine_at(i));
        else left = true;
    }
    return left;
}

static bool is_attached(void) {
    return atomic_load(&entry_state.state.at.attached) && *entry_state.state.at.alive;
}

static bool start_attending(void) {
    int self = (int)syscall(SYS_getpid), who = 0;
    while (!atomic_compare_exchange_strong(&attending, &who, self)) {
        if (who == self) return false;
    }
    return true;
}

bool entry_attend(uint64_t *answer) {
    int error = errno;
    if (!atomic_load(&entry_working.engine)) {
        *answer = shim_real_library() ? ABI_ERROR_NOT_PERMITTED : (uint64_t)shim_missing();
        if (!atomic_load(&first) && (!shim_real_library() || atomic_load(&closed) || !load_first())) return false;
        begin(atomic_load(&first));
    }
    if ((now_ns() >= atomic_load_explicit(&next_look_ns, memory_order_relaxed) || asked != considered) &&
        start_attending()) {
        atomic_store(&entry_working.attention, false);
        uint32_t named = atomic_load(&asked);
        if (named != NOTHING && named != atomic_load(&considered) && is_attached()) replace(named);
        if (let_old_ones_go()) {
            atomic_store(&next_look_ns, now_ns() + pause_ns);
            pause_ns = pause_ns < LAST_LOOK_NS ? pause_ns * 2 : LAST_LOOK_NS;
            atomic_store(&entry_working.attention, true);
        }
        atomic_store(&attending, 0);
    }
    errno = error;
    return true;
}
