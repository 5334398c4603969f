#include "engine_loader.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../symbols/symbols.h"

#define MAX_PROGRAM_HEADERS 32

/* Checks that the file is as long as its program headers say: touching a mapped page beyond its end kills the
 * process. */
static const char *check_elf(int fd) {
    struct stat info;
    ElfW(Ehdr) header, own;
    ElfW(Phdr) parts[MAX_PROGRAM_HEADERS];
    if (cot_fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return "is not a file";
    if (pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        return "is not a shared object";
    memset(&own, 0, sizeof own);
    own.e_ident[EI_CLASS] = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
#if defined(__x86_64__)
    own.e_machine = EM_X86_64;
#elif defined(__aarch64__)
    own.e_machine = EM_AARCH64;
#endif
    if (header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS] || header.e_machine != own.e_machine ||
        header.e_type != ET_DYN || header.e_phentsize != sizeof *parts || header.e_phnum > MAX_PROGRAM_HEADERS)
        return "is not a shared object of this machine";
    size_t bytes = header.e_phnum * sizeof *parts;
    if (pread(fd, parts, bytes, (off_t)header.e_phoff) != (ssize_t)bytes) return "is cut short";
    for (unsigned i = 0; i < header.e_phnum; i++) {
        if (parts[i].p_type == PT_LOAD && (parts[i].p_offset > (uint64_t)info.st_size ||
                                           parts[i].p_filesz > (uint64_t)info.st_size - parts[i].p_offset))
            return "is cut short";
    }
    return NULL;
}

bool engine_file_open(const char *folder, uint32_t number, struct engine_file *file, char *why, size_t size) {
    char path[PATH_MAX], name[64] = "/libcotenant-engine.";
    memcpy(cot_write_digits(name + strlen(name), number), ".so", sizeof ".so");
    if (!cot_join(path, sizeof path, folder, name)) {
        snprintf(why, size, "its path is too long");
        return false;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        snprintf(why, size, "%s: %s", path, strerror(errno));
        return false;
    }
    const char *wrong = check_elf(fd);
    close(fd);
    if (!wrong && !(file->handle = cot_dlopen(path, RTLD_NOW | RTLD_LOCAL))) wrong = "cannot be loaded";
    if (!wrong && !(file->descriptor = libc_dlsym(file->handle, "cotenant_engine"))) {
        cot_dlclose(file->handle);
        wrong = "is not an engine";
    }
    if (wrong) snprintf(why, size, "%s %s", path, wrong);
    return !wrong;
}

static bool is_between(uint32_t first, uint32_t value, uint32_t last) {
    return value == 0 || (first <= value && value <= last);
}

bool engine_file_fits(const struct cot_engine *engine, uint32_t number, const struct cot_services *services,
                      const struct engine_formats *formats, char *why, size_t size) {
    const struct cot_state *state = services->state;
    /* Other threads may be writing them at the same time, with the same values. */
    uint32_t layout = __atomic_load_n(&state->layout, __ATOMIC_RELAXED);
    uint32_t bytes = __atomic_load_n(&state->bytes, __ATOMIC_RELAXED);
    uint32_t page = formats->page, ledger = formats->ledger;
    if (memcmp(engine->magic, COT_ENGINE_MAGIC, sizeof engine->magic) != 0 || engine->bytes < sizeof *engine) {
        snprintf(why, size, "its file has an unknown format");
    } else if (engine->number != number) {
        snprintf(why, size, "its file contains engine %u", engine->number);
    } else if (!is_between(engine->layout_first, layout, engine->layout_last)) {
        snprintf(why, size, "it supports state layouts %u to %u, this process has %u", engine->layout_first,
                 engine->layout_last, layout);
    } else if (engine->services_bytes > services->bytes || engine->state_bytes > bytes ||
               engine->thread_bytes > services->thread_bytes) {
        snprintf(why, size, "it needs a newer libcotenant.so than this process has mapped");
    } else if (!is_between(engine->page_first, page, engine->page_last)) {
        snprintf(why, size, "it supports limits pages of version %u to %u, this container's is %u", engine->page_first,
                 engine->page_last, page);
    } else if (!is_between(engine->ledger_first, ledger, engine->ledger_last)) {
        snprintf(why, size, "it supports ledgers of version %u to %u, this container's is %u", engine->ledger_first,
                 engine->ledger_last, ledger);
    } else {
        return true;
    }
    return false;
}
