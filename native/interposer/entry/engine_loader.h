/* The file of an engine: found by its number, checked before it is loaded, and checked again before it is used. */
#pragma once

#include "../engine_abi.h"

struct engine_file {
    const struct cot_engine *descriptor;
    void *handle;
};

/* Opens FOLDER/libcotenant-engine.NUMBER.so. On failure `why` says what is wrong, and nothing stays open. */
bool engine_file_open(const char *folder, uint32_t number, struct engine_file *file, char *why, size_t size);
/* Versions of the files that it would read; 0: not known yet, not checked. */
struct engine_formats {
    uint32_t page, ledger;
};
/* Can it work with this state, these services and these files? If not, `why` says why. */
bool engine_file_fits(const struct cot_engine *engine, uint32_t number, const struct cot_services *services,
                      const struct engine_formats *formats, char *why, size_t size);
