/* What dlsym and dlvsym answer for a name of the library that this object stands in for. */
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "symbols.h"

/* Which object answers RTLD_NEXT: the first one loaded after the caller's that defines the name. */
struct search_order {
    const void *caller;
    const char *name;
    bool past_caller;
    enum { NONE, REAL, OTHER } next; /* REAL: this object or the real library */
};

static int visit_object(struct dl_phdr_info *object, size_t size, void *data) {
    struct search_order *search = data;
    if (!search->past_caller) {
        search->past_caller = shim_object_contains(object, search->caller);
        return 0;
    }
    if (shim_object_contains(object, &shim_entry_count) || shim_is_real_object(object->dlpi_addr)) {
        search->next = REAL;
        return 1;
    }
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_DYNAMIC &&
            shim_find_in_object(object->dlpi_addr, (const void *)(object->dlpi_addr + part->p_vaddr), search->name))
            search->next = OTHER;
    }
    return search->next != NONE;
}

/* Would RTLD_NEXT find the real library, seen from the caller? */
static bool library_is_next(const char *name, const void *caller) {
    struct search_order search = {.caller = caller, .name = name};
    dl_iterate_phdr(visit_object, &search);
    return search.next == REAL;
}

/* A name that this build does not know must not seem to be missing from the library that this object stands in for. */
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

/* RTLD_DEFAULT, or the handle of the program itself, the first of all objects. */
static bool is_global(void *handle) {
    return handle == RTLD_DEFAULT || !((const struct link_map *)handle)->l_prev;
}

/* The real library finds itself, by whatever name it looks itself up. */
static bool look_up_inside(void *handle, const char *name, void **answer) {
    if (handle != RTLD_DEFAULT && handle != shim_own_handle()) return false;
    *answer = libc_dlsym(shim_real_library(), name);
    return *answer != NULL;
}

/* The real library lacks the name, or there is no library. */
static void *not_found(void *library, const char *name) {
    return library ? libc_dlsym(library, name) : libc_dlsym_fail(name); /* the look-up sets dlerror */
}

/* Rules, each from a defect of other interposers: wrap only what the real look-up finds; leave the library's own
 * look-ups alone; the pseudo handles are relative to the caller, so what is not the library's goes to libc
 * untouched. */
static __attribute__((noinline)) bool decide_look_up(int index, void *handle, const char *name, const void *caller,
                                                     void **answer) {
    if (index < 0 && !strcmp(name, shim_marker)) return false;
    shim_real_library_for(caller); /* its constructors may be the caller */
    if (shim_is_real_code(caller)) return look_up_inside(handle, name, answer);
    if (index < 0) return look_up_unknown(handle, name, caller, answer);
    void *real = shim_real((uint32_t)index), *library = shim_real_library();
    void *trampoline = shim_trampoline((uint32_t)index),
         *ours = shim_is_intercepted((uint32_t)index) ? trampoline : real;
    if (handle == RTLD_NEXT) {
        if (!library_is_next(name, caller)) return false;
        *answer = real ? ours : not_found(library, name);
        return true;
    }
    void *found = libc_dlsym(handle, name);
    if (!found && handle == RTLD_DEFAULT) return false; /* the caller's scope may have it */
    /* A program that opened this object by the library's name where there is no driver gets entry points that
     * return an error; one that only asks whether the library is loaded is answered that it is not. */
    if (found == trampoline && !real) *answer = library || is_global(handle) ? not_found(library, name) : found;
    else if (!found || (found != real && found != trampoline))
        *answer = found; /* another object's symbol of that name, or none */
    else *answer = ours;
    return true;
}

bool shim_look_up(void *handle, const char *name, const void *caller, void **answer) {
    int index = shim_index_of(name);
    /* Look-ups in this object, once the real entry point is known: libc finds the trampoline by itself. */
    if (index >= 0 && handle == shim_own_handle() && shim_is_intercepted((uint32_t)index) &&
        shim_is_resolved((uint32_t)index) && !shim_is_real_code(caller))
        return false;
    return decide_look_up(index, handle, name, caller, answer);
}
