/* Where code is loaded: a module in the context that was current at its load, a library in each context that asks for
 * one of its globals or functions. There it has memory for its code, as far as that is more than a context contains
 * anyway, and for its globals, which are one range of addresses. */
#include <stdlib.h>
#include <string.h>

#include "modules.h"

static void set_first_values(const struct sim_module *module, const struct sim_region *region) {
    char *start = (char *)sim_region_address(region);
    for (const struct sim_global *global = module->globals; global; global = global->next)
        if (global->first) memcpy(start + global->offset, global->first, global->bytes);
}

static void unload(struct sim_loaded **place) {
    struct sim_loaded *loaded = *place;
    *place = loaded->next;
    if (loaded->block) sim_simple(SIM_RELEASE, loaded->context->gpu, loaded->block, 0, NULL);
    if (loaded->globals) sim_region_end(loaded->globals);
    free(loaded);
}

/* Of code and globals, what a context has not taken already. */
static int take(struct sim_loaded *loaded, const struct sim_module *module) {
    uint64_t bytes = module->code_bytes + module->global_bytes, free_bytes = sim.facts->code_free_bytes;
    if (bytes > free_bytes)
        SIM_TRY(sim_simple(SIM_ALLOCATE, loaded->context->gpu, bytes - free_bytes, SIM_KIND_CODE, &loaded->block));
    if (!module->globals) return ABI_SUCCESS;
    SIM_TRY(sim_region_new(SIM_GLOBALS, module->global_bytes, 0, &loaded->globals));
    loaded->globals->context = loaded->context;
    loaded->globals->device = loaded->context->device;
    set_first_values(module, loaded->globals);
    return ABI_SUCCESS;
}

int sim_load(struct sim_module *module, struct sim_context *context, struct sim_loaded **out) {
    for (*out = module->loaded; *out; *out = (*out)->next)
        if (sim_root((*out)->context) == sim_root(context)) return ABI_SUCCESS;
    SIM_TRY(sim_usable(context)); /* another thread may have ended it */
    struct sim_loaded *loaded = calloc(1, sizeof *loaded);
    if (!loaded) return ABI_ERROR_OUT_OF_MEMORY;
    *loaded = (struct sim_loaded){.context = context, .next = module->loaded};
    module->loaded = loaded;
    int result = take(loaded, module);
    if (result != ABI_SUCCESS) unload(&module->loaded);
    else *out = loaded;
    return result;
}

void sim_unload_all(struct sim_module *module) {
    while (module->loaded) unload(&module->loaded);
}

static void inherit(struct sim_context *from, struct sim_context *to) {
    for (struct sim_module *module = sim.modules; module; module = module->next) {
        if (module->context == from) module->context = to;
        for (struct sim_loaded *loaded = module->loaded; loaded; loaded = loaded->next) {
            if (loaded->context == from) loaded->context = to;
            if (loaded->globals && loaded->globals->context == from) loaded->globals->context = to;
        }
    }
}

static void release(struct sim_context *context) {
    for (struct sim_module *module = sim.modules; module; module = module->next) {
        for (struct sim_loaded **place = &module->loaded; *place;) {
            if ((*place)->context == context) unload(place);
            else place = &(*place)->next;
        }
    }
}
SIM_ON_CONTEXT_END(.inherit = inherit, .release = release)

/* ---- globals ---- */

static int find(struct sim_module *module, struct sim_context *context, const char *name, abi_devptr *pointer,
                size_t *bytes, bool managed) {
    const struct sim_global *global = module->globals;
    struct sim_loaded *loaded;
    while (global && strcmp(global->name, name) != 0) global = global->next;
    if (!global || (managed && !global->managed)) return ABI_ERROR_NOT_FOUND;
    SIM_TRY(sim_load(module, context, &loaded));
    if (pointer) *pointer = sim_region_address(loaded->globals) + global->offset;
    if (bytes) *bytes = global->bytes;
    return ABI_SUCCESS;
}

/* Of a module in its context, or of a library in the current one. */
static int global(abi_devptr *pointer, size_t *bytes, void *handle, const char *name, bool managed) {
    SIM_CURRENT(context);
    struct sim_module *module = sim_module_of(handle);
    if (!module) return ABI_ERROR_INVALID_HANDLE;
    if (!name || (!pointer && !bytes)) return ABI_ERROR_INVALID_VALUE;
    return SIM_LOCKED(find(module, module->context ? module->context : context, name, pointer, bytes, managed));
}

SIM_EXPORT abi_result cuModuleGetGlobal_v2(abi_devptr *pointer, size_t *bytes, struct sim_module *module,
                                           const char *name) {
    SIM_ENTER("cuModuleGetGlobal_v2");
    SIM_LATER_FORM();
    return global(pointer, bytes, module, name, false);
}
SIM_ROW(cuLibraryGetGlobal, (abi_devptr * pointer, size_t *bytes, struct sim_module *library, const char *name),
        global(pointer, bytes, library, name, false))
SIM_ROW(cuLibraryGetManaged, (abi_devptr * pointer, size_t *bytes, struct sim_module *library, const char *name),
        global(pointer, bytes, library, name, true))
