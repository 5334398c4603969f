/* The search for the driver: the loader's cache with arbitrary bytes, in memory of exactly the file's size, so that
 * any read beyond it is found; and the folders that the loader reports of an object (library path, RPATH, RUNPATH),
 * with arbitrary names and lengths. Every name that is tried must lie in it completely, and all folders are tried
 * that are not the loader's own, in order. */
#include <stdlib.h>

#include "../../native/interposer/libc.h"
#include "input.h"

static int tell_folders(void *handle, int request, void *out);
#define cot_dlinfo(handle, request, out) tell_folders(handle, request, out)
/* NOLINTNEXTLINE(bugprone-suspicious-include): what reads the cache is its own business */
#include "../../native/interposer/symbols/library_search.c"

#define NAME "libcuda.so.1"

static void *try_file(const char *path) {
    if (strlen(path) >= PATH_MAX) abort();
    return NULL;
}
static const struct search SEARCH = {.name = NAME, .try_file = try_file};

/* ---- folders ---- */

#define MOST_FOLDERS 32
static struct {
    unsigned count, tried, found_at; /* found_at: number of the folder that has the driver */
    char *names[MOST_FOLDERS];
} folders;
static char driver;

static int tell_folders(void *handle, int request, void *out) {
    Dl_serinfo *info = out;
    size_t head = offsetof(Dl_serinfo, dls_serpath) + folders.count * sizeof(Dl_serpath), bytes = head;
    for (unsigned i = 0; i < folders.count; i++) bytes += strlen(folders.names[i]) + 1;
    if (request == RTLD_DI_SERINFOSIZE) {
        info->dls_size = bytes;
        info->dls_cnt = folders.count;
        return 0;
    }
    if (info->dls_size < bytes || info->dls_cnt != folders.count) abort();
    char *text = (char *)info + head;
    for (unsigned i = 0; i < folders.count; i++) {
        size_t length = strlen(folders.names[i]) + 1;
        info->dls_serpath[i].dls_name = memcpy(text, folders.names[i], length);
        text += length;
    }
    return 0;
}

static bool is_tried(const char *folder) {
    return *folder && strlen(folder) + sizeof "/" NAME <= PATH_MAX;
}

static void *try_told(const char *path) {
    while (folders.tried < folders.count && !is_tried(folders.names[folders.tried])) folders.tried++;
    if (folders.tried == folders.count) abort();
    const char *folder = folders.names[folders.tried];
    size_t length = strlen(folder);
    if (strncmp(path, folder, length) != 0 || strcmp(path + length, "/" NAME) != 0) abort();
    return folders.tried++ == folders.found_at ? &driver : NULL;
}

static void search_folders(struct input *in) {
    const struct search search = {.name = NAME, .try_file = try_told};
    unsigned defaults = 0, expected;
    folders.count = input_byte(in) % MOST_FOLDERS;
    folders.found_at = input_byte(in);
    folders.tried = 0;
    for (unsigned i = 0; i < folders.count; i++) {
        uint8_t kind = input_byte(in);
        size_t length = kind == 255 ? 30000 : kind >= 250 ? PATH_MAX - sizeof NAME - 4 + kind - 250 : kind % 32;
        folders.names[i] =
            kind >= 192 && kind < 250 ? strdup(DEFAULT_FOLDERS[kind % DEFAULT_COUNT]) : calloc(1, length + 1);
        if (kind < 192) input_bytes(in, folders.names[i], length);
        if (kind >= 250) memset(folders.names[i], '/', length);
    }
    /* The loader's default folders come at the end, each once. */
    for (expected = folders.count; expected > 0; expected--) {
        int which = default_folder(folders.names[expected - 1]);
        if (which < 0 || defaults & 1u << which) break;
        defaults |= 1u << which;
    }
    void *found = try_object(&search, &folders);
    for (; folders.tried < expected; folders.tried++) {
        if (is_tried(folders.names[folders.tried]) && !found) abort();
    }
    if (folders.tried > expected && folders.count > 0 && !found) abort();
    if (found && found != &driver) abort();
    for (unsigned i = 0; i < folders.count; i++) free(folders.names[i]);
}

/* ---- the cache ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    uint8_t what = input_byte(&in);
    if (what % 4 == 2) {
        search_folders(&in);
        return 0;
    }
    /* Half of the inputs begin like a cache, so that the fuzzer gets past the header. */
    if (what % 2) {
        char *text = malloc(in.left + 1);
        memcpy(text, in.at, in.left);
        search_cache(&SEARCH, text, in.left);
        free(text);
        return 0;
    }
    struct cache_header header = {.count = input_word(&in) % 64};
    memcpy(header.magic, "glibc-ld.so.cache1.1", sizeof header.magic + sizeof header.version);
    size_t entries = header.count * sizeof(struct cache_entry), whole = sizeof header + entries + 64;
    uint8_t cut = input_byte(&in);
    size_t length = cut < 128 ? whole : whole * cut / 255;
    char *text = malloc(whole);
    memcpy(text, &header, sizeof header);
    for (uint32_t i = 0; i < header.count; i++) {
        struct cache_entry entry = {.key = (uint32_t)(sizeof header + entries), .value = input_byte(&in)};
        if (input_byte(&in) % 4 == 0) input_bytes(&in, &entry, sizeof entry);
        else entry.value += (uint32_t)(sizeof header + entries);
        memcpy(text + sizeof header + i * sizeof entry, &entry, sizeof entry);
    }
    memset(text + sizeof header + entries, 'x', 64);
    memcpy(text + sizeof header + entries, "libcuda.so.1", sizeof "libcuda.so.1");
    input_bytes(&in, text + sizeof header + entries + 13, 51);
    char *exact = malloc(length + (length == 0));
    memcpy(exact, text, length);
    search_cache(&SEARCH, exact, length);
    free(exact);
    free(text);
    return 0;
}
