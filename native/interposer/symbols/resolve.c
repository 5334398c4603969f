/* Names to real entry points, on first use. */
#include "symbols.h"

#include <dlfcn.h>
#include <link.h>

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

static SHIM_TABLE _Atomic(void *) addresses[SHIM_MOST_ENTRIES];

/* Names that an engine has asked for. */
#define MOST_DIVERSIONS 4
static struct {
    _Atomic uint32_t entry; /* its index plus one; 0: free */
    _Atomic(void *) function;
} diversions[MOST_DIVERSIONS];

int shim_find(const char *name) {
    size_t length = strlen(name);
    uint32_t hash = shim_hash(name, length), at = shim_first_slot(hash);
    int index;
    do {
        index = shim_candidate(shim_slots, hash, &at);
    } while (index >= 0 && strcmp(name, shim_name((uint32_t)index)) != 0);
    return index;
}

void *shim_real(uint32_t index) {
    void *address = atomic_load_explicit(&addresses[index], memory_order_acquire);
    if (address) return address;
    void *library = shim_real_library();
    address = library ? libc_dlsym(library, shim_name(index)) : NULL;
    if (address) atomic_store_explicit(&addresses[index], address, memory_order_release);
    return address;
}

/* A spare trampoline: straight to what the real library has by the name that the spare was given. */
static void *resolve_spare(uint32_t spare) {
    if (spare >= shim_form.spares_used) return NULL;
    const char *name = (const char *)&shim_form + shim_form.tables + shim_form.spare_names[spare];
    void *library = shim_real_library(), *address = library ? libc_dlsym(library, name) : NULL;
    if (address) shim_unknown();
    return address;
}

static void *resolve(uint64_t index, const void *caller) {
    shim_real_library_for(caller);
    bool spare = index >= shim_entry_count;
    /* Wrappers know what to say without a real library. */
    void *address = spare || shim_is_aside() ? NULL : shim_wrapper((uint32_t)index);
    if (!address) address = spare ? resolve_spare((uint32_t)index - shim_entry_count) : shim_real((uint32_t)index);
    if (!address) address = (void *)shim_missing;
    __atomic_store_n(&shim_target[index], address, __ATOMIC_SEQ_CST);
    for (unsigned i = 0; i < MOST_DIVERSIONS; i++) { /* perhaps while it was resolved */
        void *diverted = atomic_load(&diversions[i].entry) == index + 1 ? atomic_load(&diversions[i].function) : NULL;
        if (diverted) __atomic_store_n(&shim_target[index], address = diverted, __ATOMIC_SEQ_CST);
    }
    return address;
}

void *shim_resolve(uint64_t index, const uint64_t *registers, const uint64_t *stack) {
    return resolve(index, shim_caller(registers, stack));
}

void *shim_target_now(uint32_t index) {
    void *target = __atomic_load_n(&shim_target[index], __ATOMIC_ACQUIRE);
    return target ? target : resolve(index, NULL);
}

void shim_divert(const char *name, void *function) {
    int index = shim_find(name);
    if (index < 0) return;
    for (unsigned i = 0; i < MOST_DIVERSIONS; i++) {
        uint32_t entry = 0, own = (uint32_t)index + 1;
        if (!atomic_compare_exchange_strong(&diversions[i].entry, &entry, own) && entry != own) continue;
        atomic_store(&diversions[i].function, function);
        __atomic_store_n(&shim_target[index], function, __ATOMIC_SEQ_CST);
        return;
    }
}

/* Given by start.ld, with which not everything that has this file is linked. */
#define GIVEN __attribute__((weak, visibility("hidden")))
extern char shim_start_begin[] GIVEN, shim_start_end[] GIVEN;

void shim_make_start(void) {
    const int populate_write = 23; /* MADV_POPULATE_WRITE, from Linux 5.14 on; without it pages come one by one */
    int error = errno;
    uintptr_t begin = (uintptr_t)shim_start_begin, end = (uintptr_t)shim_start_end;
    if (end) syscall(SYS_madvise, begin, end - begin, populate_write);
    errno = error;
}

_Atomic(void *) shim_known_handle;

#pragma weak _r_debug /* not musl's */

/* A program begins with so many objects at least (it, the kernel's, us two, libc, the loader), which nobody closes. */
#define FIRST_OBJECTS 6

/* From the loader's own list for debuggers, which begins with what a program begins with, us among it where we are
 * preloaded: dladdr1, which the others are left to, looks at every name that we export. Further down are objects that
 * another thread may be closing. */
SHIM_EARLY void *shim_find_own_handle(void) {
    Dl_info info;
    void *handle = NULL;
    struct link_map *map = &_r_debug ? _r_debug.r_map : NULL;
    for (int i = 1; map && map->l_ld != _DYNAMIC; i++) map = i < FIRST_OBJECTS ? map->l_next : NULL;
    if (map) handle = map;
    else if (!dladdr1 || !dladdr1((const void *)&shim_entry_count, &info, &handle, RTLD_DL_LINKMAP)) return NULL;
    atomic_store_explicit(&shim_known_handle, handle, memory_order_release);
    return handle;
}

/* Who answers RTLD_NEXT, in the order in which objects were loaded from the caller's on. */
struct succession {
    const void *caller;
    const char *name;
    bool past_caller;
    enum { NOBODY, LIBRARY, SOMEBODY_ELSE } next; /* LIBRARY: we, or what we stand in for */
};

bool shim_holds(const struct dl_phdr_info *object, const void *address) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && (uintptr_t)address - object->dlpi_addr - part->p_vaddr < part->p_memsz)
            return true;
    }
    return false;
}

static int succeed(struct dl_phdr_info *object, size_t size, void *data) {
    struct succession *order = data;
    if (!order->past_caller) {
        order->past_caller = shim_holds(object, order->caller);
        return 0;
    }
    if (shim_holds(object, &shim_entry_count) || shim_is_real_object(object->dlpi_addr)) {
        order->next = LIBRARY;
        return 1;
    }
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC &&
            shim_symbol_in(object->dlpi_addr, (const void *)(object->dlpi_addr + part->p_vaddr), order->name))
            order->next = SOMEBODY_ELSE;
    }
    return order->next != NOBODY;
}

/* Would RTLD_NEXT, seen from the caller, find the library that we stand in for? */
static bool library_is_next(const char *name, const void *caller) {
    struct succession order = {.caller = caller, .name = name};
    dl_iterate_phdr(succeed, &order);
    return order.next == LIBRARY;
}

/* A name that this build does not know: our object stands in for the library, so it must not seem to be missing. */
static bool look_up_unknown(void *handle, const char *name, const void *caller, void **answer) {
    if (handle == RTLD_NEXT && !library_is_next(name, caller)) return false;
    if (handle != RTLD_NEXT && handle != shim_own_handle()) {
        *answer = libc_dlsym(handle, name);
        if (*answer && shim_is_real_code(*answer)) shim_unknown();
        if (*answer || handle != RTLD_DEFAULT) return true;
    }
    void *library = shim_real_library();
    if (!library) return false;
    *answer = libc_dlsym(library, name);
    if (*answer) shim_unknown();
    return true;
}

/* The pseudo handle, and what cot_dlopen(NULL) gives: the program itself, the first of all objects. */
static bool is_global(void *handle) {
    return handle == RTLD_DEFAULT || !((const struct link_map *)handle)->l_prev;
}

/* The library's own look-ups are its own: by whatever name it asks for itself, it finds itself. */
static bool look_up_inside(void *handle, const char *name, void **answer) {
    if (handle != RTLD_DEFAULT && handle != shim_own_handle()) return false;
    *answer = libc_dlsym(shim_real_library(), name);
    return *answer != NULL;
}

/* What the library has not, or nobody who could have it is there. */
static void *nothing(void *library, const char *name) {
    return library ? libc_dlsym(library, name) : libc_dlsym_nothing(name); /* asking sets dlerror */
}

/* Rules, each from a defect seen elsewhere: wrap only what the real look-up found; the library's own look-ups are its
 * own; the pseudo handles mean something relative to the caller, so what is not the library's goes to libc untouched.
 */
static __attribute__((noinline)) bool decide(int index, void *handle, const char *name, const void *caller,
                                             void **answer) {
    if (index < 0 && !strcmp(name, shim_marker)) return false;
    shim_real_library_for(caller); /* whose constructors may be who asks */
    if (shim_is_real_code(caller)) return look_up_inside(handle, name, answer);
    if (index < 0) return look_up_unknown(handle, name, caller, answer);
    void *real = shim_real((uint32_t)index), *library = shim_real_library();
    void *trampoline = shim_trampoline((uint32_t)index), *ours = shim_is_ours((uint32_t)index) ? trampoline : real;
    if (handle == RTLD_NEXT) {
        if (!library_is_next(name, caller)) return false;
        *answer = real ? ours : nothing(library, name);
        return true;
    }
    void *found = libc_dlsym(handle, name);
    if (!found && handle == RTLD_DEFAULT) return false; /* the caller's own scope may have it */
    /* A program that has opened our object by the library's name, where there is none, gets entry points that say that
     * there is no device; one that only asks whether the library is loaded is told that it is not. */
    if (found == trampoline && !real) *answer = library || is_global(handle) ? nothing(library, name) : found;
    else if (!found || (found != real && found != trampoline))
        *answer = found; /* somebody else's of that name, or nothing */
    else *answer = ours;
    return true;
}

bool shim_look_up(void *handle, const char *name, const void *caller, void **answer) {
    int index = shim_find(name);
    /* Asked of our own object once the real entry point is known: what libc finds there is the trampoline. */
    if (index >= 0 && handle == shim_own_handle() && shim_is_ours((uint32_t)index) &&
        atomic_load_explicit(&addresses[index], memory_order_relaxed) && !shim_is_real_code(caller))
        return false;
    return decide(index, handle, name, caller, answer);
}
