/* The part of libc that the preloaded objects may use: what glibc 2.17 had, under the symbol versions of that
 * release, and musl has as well. A missing name would end every process of an image with an older or other libc,
 * whether or not it uses CUDA. A test checks the built objects. */
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc 2.34 gave the functions that it moved out of libdl.so.2 a new symbol version; before, they had that of the
 * architecture's first release or of their own introduction. */
#if defined(__GLIBC__)
#define COT_AS_OF(name, version) __asm__(".symver " #name ", " #name "@GLIBC_" version);
#if defined(__x86_64__)
#define COT_OLD "2.2.5"
#define COT_LATER "2.3.3"
#elif defined(__aarch64__)
#define COT_OLD "2.17"
#define COT_LATER "2.17"
#else
#error "which versions has glibc here?"
#endif
COT_AS_OF(dladdr, COT_OLD)
COT_AS_OF(dladdr1, COT_LATER)
COT_AS_OF(dlclose, COT_OLD)
COT_AS_OF(dlinfo, COT_LATER)
COT_AS_OF(dlopen, COT_OLD)
#undef COT_OLD
#undef COT_LATER
#undef COT_AS_OF
#endif

/* Undefined where an older glibc's program has not loaded libdl.so.2: such a program finds no driver either.
 * Linking against libdl.so.2 would make these objects fail to load, and with them the limit, in every image without
 * it. dladdr1 is also missing in musl. */
#pragma weak dladdr
#pragma weak dladdr1
#pragma weak dlclose
#pragma weak dlinfo
#pragma weak dlopen

static inline void *cot_dlopen(const char *path, int flags) {
    return dlopen ? dlopen(path, flags) : NULL;
}
static inline void cot_dlclose(void *handle) {
    if (dlclose) dlclose(handle);
}
static inline int cot_dlinfo(void *handle, int request, void *out) {
    return dlinfo ? dlinfo(handle, request, out) : -1;
}
static inline int cot_dladdr(const void *address, Dl_info *out) {
    return dladdr ? dladdr(address, out) : 0;
}

/* stat and fstat had other symbol names before glibc 2.33. */
static inline int cot_stat(const char *path, struct stat *out) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}
static inline int cot_fstat(int fd, struct stat *out) {
    return (int)syscall(SYS_fstat, fd, out);
}

/* Joins two texts without printf, whose first call costs more at start than all else here. False: the text was cut. */
static inline bool cot_join(char *out, size_t size, const char *first, const char *second) {
    char *last = out + size - 1;
    while (*first && out < last) *out++ = *first++;
    while (*second && out < last) *out++ = *second++;
    *out = 0;
    return !*first && !*second;
}
/* Writes up to 10 digits and returns where the text goes on. */
static inline char *cot_write_digits(char *out, uint32_t number) {
    char digits[10];
    unsigned count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count) *out++ = digits[--count];
    return out;
}

/* The number that a text begins with. strtoul has another symbol name from glibc 2.38 on. */
static inline uint64_t cot_digits(const char *text) {
    uint64_t number = 0;
    for (; *text >= '0' && *text <= '9'; text++) number = number * 10 + (uint64_t)(*text - '0');
    return number;
}
