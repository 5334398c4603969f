/* The loader's cache as the search for the driver reads it, of any bytes: memory of exactly the file's size, so that
 * whoever reads beyond it is seen; every name that is tried must lie in it whole. */
#include <stdlib.h>

/* NOLINTNEXTLINE(bugprone-suspicious-include): what reads the cache is its own business */
#include "../../native/interposer/search.c"
#include "input.h"

static void *try_file(const char *path) {
    if (strlen(path) >= PATH_MAX) abort();
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    const struct search search = {.name = "libcuda.so.1", .try_file = try_file};
    /* Half of them begin as a cache does, so that not all of the fuzzer's luck goes into that. */
    if (input_byte(&in) % 2) {
        char *text = malloc(in.left + 1);
        memcpy(text, in.at, in.left);
        search_cache(&search, text, in.left);
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
    search_cache(&search, exact, length);
    free(exact);
    free(text);
    return 0;
}
