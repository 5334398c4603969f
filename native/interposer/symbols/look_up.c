/* What dlsym and dlvsym answer for a name of the library that this object stands in for. */
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "symbols.h"

/* Who answers RTLD_NEXT, in the order in which objects were loaded from the caller's on. */
struct succession {
    const void *caller;
    const char *name;
    bool past_caller;
    enum { NOBODY, LIBRARY, SOMEBODY_ELSE } next; /* LIBRARY: we, or what we stand in for */
};

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
        if (*answer && shim_is_real_code(*answer)) shim_count_unknown();
        if (*answer || handle != RTLD_DEFAULT) return true;
    }
    void *library = shim_real_library();
    if (!library) return false;
    *answer = libc_dlsym(library, name);
    if (*answer) shim_count_unknown();
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
        shim_is_resolved((uint32_t)index) && !shim_is_real_code(caller))
        return false;
    return decide(index, handle, name, caller, answer);
}
