/* Variables that PTX text declares for all of its kernels, after the sections "State Space Declarations" and "Variable
 * Declarations" of NVIDIA's PTX ISA: `.visible .global .align 4 .u32 name[2] = {1, 2};`. Those of several vectors or
 * dimensions have their size; first values are numbers, in one pair of braces. Others (addresses of variables, nested
 * braces) are zeros. */
#include <stdlib.h>
#include <string.h>

#include "modules.h"

struct declaration {
    const char *name;
    size_t name_length;
    uint64_t alignment, element_bytes, count;
    bool managed, other_type; /* a texture, sampler or surface reference */
};

static const char *skip(const char *at) {
    return at + strspn(at, " \t\r\n");
}
static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("_$%", c);
}
static size_t name_length(const char *at) {
    size_t length = 0;
    while (at[length] && is_name(at[length])) length++;
    return length;
}

static bool is_word(const char *at, size_t length, const char *word) {
    return length == strlen(word) && !strncmp(at, word, length);
}

/* A word that begins with a dot, and what belongs to it. */
static const char *read_directive(const char *at, struct declaration *to) {
    char *end;
    const char *word = at + 1;
    size_t length = name_length(word);
    at = skip(word + length);
    if (is_word(word, length, "align")) {
        to->alignment = strtoull(at, &end, 10);
        return end;
    }
    if (is_word(word, length, "attribute") && *at == '(') {
        size_t inside = strcspn(at, ")");
        for (const char *one = at; one + 8 <= at + inside; one++) to->managed |= !strncmp(one, ".managed", 8);
        return at + inside + (at[inside] == ')');
    }
    uint64_t number = length > 1 ? strtoull(word + 1, NULL, 10) : 0;
    if (word[0] == 'v' && number) to->count *= number;
    else if (strchr("bsuf", word[0]) && number && number <= 128) to->element_bytes = number / 8;
    else to->other_type = true;
    return at;
}

/* From behind `.global` to behind the last dimension. */
static const char *read_declaration(const char *at, struct declaration *to) {
    *to = (struct declaration){.alignment = 1, .count = 1};
    for (at = skip(at); *at == '.'; at = skip(at)) at = read_directive(at, to);
    to->name = at;
    to->name_length = name_length(at);
    for (at = skip(at + to->name_length); *at == '['; at = skip(at)) {
        char *end;
        uint64_t count = strtoull(at + 1, &end, 0);
        to->count = count > UINT32_MAX || to->count > UINT32_MAX ? 0 : to->count * count;
        at = skip(end);
        if (*at == ']') at++;
    }
    return at;
}

/* Of an integer, or of a floating-point number as PTX writes its bits: 0f3F800000, 0d3FF0000000000000. */
static uint64_t read_number(const char *at, char **end) {
    bool bits = at[0] == '0' && at[1] && strchr("fFdD", at[1]);
    return bits ? strtoull(at + 2, end, 16) : strtoull(at, end, 0);
}

static void read_values(const char *at, const struct declaration *from, unsigned char *to) {
    size_t width = from->element_bytes < 8 ? from->element_bytes : 8;
    for (uint64_t i = 0; i < from->count; i++) {
        char *end;
        at += strspn(at, " \t\r\n={,");
        uint64_t value = read_number(at, &end);
        if (end == at) return;
        memcpy(to + i * from->element_bytes, &value, width); /* little-endian, as the GPU */
        at = end;
    }
}

static int add(struct sim_module *module, const struct declaration *from, const char *values) {
    struct sim_global *global = calloc(1, sizeof *global);
    char *name = strndup(from->name, from->name_length);
    uint64_t bytes = from->element_bytes * from->count;
    unsigned char *first = *values == '=' ? calloc(1, bytes) : NULL;
    if (!global || !name || (*values == '=' && !first)) {
        free(global);
        free(name);
        free(first);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    if (first) read_values(values, from, first);
    uint64_t unit = from->alignment > from->element_bytes ? from->alignment : from->element_bytes;
    uint64_t offset = (module->global_bytes + unit - 1) / unit * unit;
    *global = (struct sim_global){name, offset, bytes, first, from->managed, module->globals};
    module->globals = global;
    module->global_bytes = offset + bytes;
    return ABI_SUCCESS;
}

/* The word is one of its own, and neither the space of a parameter's address nor of a variable of another module. */
static bool begins_declaration(const char *text, const char *at) {
    const char *before = at;
    if (at > text && !strchr(" \t\r\n;}", at[-1])) return false;
    while (before > text && !strchr(";{}\n", before[-1])) before--;
    for (; before < at; before++)
        if (!strncmp(before, ".ptr", 4) || !strncmp(before, ".extern", 7)) return false;
    return true;
}

int sim_globals_read(struct sim_module *module, const char *text) {
    static const char WORD[] = ".global ";
    for (const char *at = text; (at = strstr(at, WORD));) {
        struct declaration declaration;
        bool begins = begins_declaration(text, at);
        at += sizeof WORD - 1;
        if (!begins) continue;
        at = read_declaration(at, &declaration);
        if (declaration.other_type || !declaration.name_length || !declaration.element_bytes || !declaration.count)
            continue;
        SIM_TRY(add(module, &declaration, at));
    }
    return ABI_SUCCESS;
}
