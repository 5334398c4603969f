/* What the files of this folder know of a module. */
#pragma once

#include "../sim.h"

static inline struct sim_module *sim_module_of(void *handle) {
    struct sim_module *module = handle;
    return module && module->magic == SIM_MODULE_MAGIC ? module : NULL;
}

/* ptx_globals.c: adds the globals that PTX text declares; an error: there is no memory for them. */
int sim_globals_read(struct sim_module *module, const char *text);

/* loaded.c: code and globals in a context; all under sim.lock */
int sim_load(struct sim_module *module, struct sim_context *context, struct sim_loaded **out);
void sim_unload_all(struct sim_module *module);
