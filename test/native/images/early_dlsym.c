/* An allocator that finds the next one by dlsym at its first call, long before any constructor, as a preloaded jemalloc
 * does. What is allocated during that look-up comes from a buffer. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static void *(*below_malloc)(size_t), *(*below_calloc)(size_t, size_t), *(*below_realloc)(void *, size_t);
static void (*below_free)(void *);
static char buffer[65536];
static size_t used;
static int looking;

static void look(void) {
    if (below_malloc || looking) return;
    looking = 1;
    below_calloc = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
    below_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    below_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    below_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    looking = 0;
}

static void *from_buffer(size_t size) {
    void *at = buffer + used;
    used += (size + 15) & ~(size_t)15;
    return used <= sizeof buffer ? at : NULL;
}

void *malloc(size_t size) {
    look();
    return below_malloc ? below_malloc(size) : from_buffer(size);
}
void *calloc(size_t count, size_t size) {
    look();
    return below_calloc && !looking ? below_calloc(count, size) : from_buffer(count * size);
}
void *realloc(void *old, size_t size) {
    look();
    if ((char *)old < buffer || (char *)old >= buffer + sizeof buffer) return below_realloc(old, size);
    void *fresh = malloc(size);
    if (fresh) memcpy(fresh, old, size);
    return fresh;
}
void free(void *at) {
    if ((char *)at >= buffer && (char *)at < buffer + sizeof buffer) return;
    if (below_free) below_free(at);
}
