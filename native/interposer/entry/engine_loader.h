/* One engine's file: found by its number, looked at before it is loaded, checked before it is let in. */
#pragma once

#include "../engine_abi.h"

struct engine_file {
    const struct cot_engine *itself;
    void *handle;
};

/* Opens FOLDER/libcotenant-engine.NUMBER.so; on failure `why` says what was wrong, and nothing stays open. */
bool engine_file_open(const char *folder, uint32_t number, struct engine_file *file, char *why, size_t size);
/* What it would have to read; 0: not known yet, so nothing is asked. */
struct engine_formats {
    uint32_t page, ledger;
};
/* Can it work on this state, with these services and files? Else `why` says why not. */
bool engine_file_fits(const struct cot_engine *engine, uint32_t number, const struct cot_services *services,
                      const struct engine_formats *formats, char *why, size_t size);
