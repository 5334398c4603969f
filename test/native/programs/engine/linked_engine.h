/* What the entry objects provide to an engine, for programs that link an engine in, above a driver of their own. */
#pragma once

#include <stdio.h>

#include "../../../../native/interposer/engine/accounting/quota.h"
#include "../../../../native/interposer/engine/core/hooks.h"
#include "../../../../native/interposer/engine/launch/gate.h"
#include "../../../../native/interposer/engine/memory/blocks/blocks.h"
#include "../../../../native/interposer/engine/memory/pools/pools.h"

static union {
    struct cot_state state;
    char storage[COT_STATE_BYTES];
} kept;
static _Thread_local struct cot_thread own_thread;
static const char *grant_folder;

static bool has_driver(void) {
    return true;
}
static int missing(void) {
    return ABI_ERROR_NOT_FOUND;
}
static bool own_folder(char *path, size_t size) {
    return snprintf(path, size, "%s", grant_folder) < (int)size;
}
static void watch(const uint32_t *gate, const uint64_t *heartbeat, uint64_t *unknown) {}
static void wanted(uint32_t engine) {}
static void divert(const char *name) {} /* every call comes here */

/* `real`: the driver's functions by name. `folder`: of limits page and ledger. */
static void start_engine(void *(*real)(const char *name), const char *folder) {
    static struct cot_services services = {.bytes = sizeof services,
                                           .state = &kept.state,
                                           .thread_bytes = sizeof own_thread,
                                           .has_driver = has_driver,
                                           .missing = missing,
                                           .folder = own_folder,
                                           .watch = watch,
                                           .want_engine = wanted,
                                           .divert = divert};
    grant_folder = folder;
    services.real = real;
    services.thread = (char *)&own_thread - (char *)__builtin_thread_pointer();
    cot_start(&services);
}
