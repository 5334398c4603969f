/* The search for the driver: the loader's cache, of any bytes, in memory of exactly the file's size, so that whoever
 * reads beyond it is seen; and the folders that the loader tells of an object (library path, RPATH, RUNPATH), of any
 * names and lengths. Every name that is tried must lie in it whole, and all folders are tried that are not the loader's
 * own, in their order. */
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
    unsigned count, tried, found_at; /* found_at: in the one of this number the driver is found */
    char *names[MOST_FOLDERS];
} told;
static char driver;

static int tell_folders(void *handle, int request, void *out) {
    Dl_serinfo *info = out;
    size_t head = offsetof(Dl_serinfo, dls_serpath) + told.count * sizeof(Dl_serpath), bytes = head;
    for (unsigned i = 0; i < told.count; i++) bytes += strlen(told.names[i]) + 1;
    if (request == RTLD_DI_SERINFOSIZE) {
        info->dls_size = bytes;
        info->dls_cnt = told.count;
        return 0;
    }
    if (info->dls_size < bytes || info->dls_cnt != told.count) abort();
    char *text = (char *)info + head;
    for (unsigned i = 0; i < told.count; i++) {
        size_t length = strlen(told.names[i]) + 1;
        info->dls_serpath[i].dls_name = memcpy(text, told.names[i], length);
        text += length;
    }
    return 0;
}

static bool is_tried(const char *folder) {
    return *folder && strlen(folder) + sizeof "/" NAME <= PATH_MAX;
}

static void *try_told(const char *path) {
    while (told.tried < told.count && !is_tried(told.names[told.tried])) told.tried++;
    if (told.tried == told.count) abort();
    const char *folder = told.names[told.tried];
    size_t length = strlen(folder);
    if (strncmp(path, folder, length) != 0 || strcmp(path + length, "/" NAME) != 0) abort();
    return told.tried++ == told.found_at ? &driver : NULL;
}

static void search_folders(struct input *in) {
    const struct search search = {.name = NAME, .try_file = try_told};
    unsigned defaults = 0, expected;
    told.count = input_byte(in) % MOST_FOLDERS;
    told.found_at = input_byte(in);
    told.tried = 0;
    for (unsigned i = 0; i < told.count; i++) {
        uint8_t kind = input_byte(in);
        size_t length = kind == 255 ? 30000 : kind >= 250 ? PATH_MAX - sizeof NAME - 4 + kind - 250 : kind % 32;
        told.names[i] =
            kind >= 192 && kind < 250 ? strdup(DEFAULT_FOLDERS[kind % DEFAULT_COUNT]) : calloc(1, length + 1);
        if (kind < 192) input_bytes(in, told.names[i], length);
        if (kind >= 250) memset(told.names[i], '/', length);
    }
    /* The loader's own come at the end, each once. */
    for (expected = told.count; expected > 0; expected--) {
        int which = default_folder(told.names[expected - 1]);
        if (which < 0 || defaults & 1u << which) break;
        defaults |= 1u << which;
    }
    void *found = try_object(&search, &told);
    for (; told.tried < expected; told.tried++) {
        if (is_tried(told.names[told.tried]) && !found) abort();
    }
    if (told.tried > expected && told.count > 0 && !found) abort();
    if (found && found != &driver) abort();
    for (unsigned i = 0; i < told.count; i++) free(told.names[i]);
}

/* ---- the cache ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    uint8_t what = input_byte(&in);
    if (what % 4 == 2) {
        search_folders(&in);
        return 0;
    }
    /* Half of them begin as a cache does, so that not all of the fuzzer's luck goes into that. */
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
