/* What the steps of the differential fuzzer are made of: chance, handles that exist, and what a step did. */
#pragma once

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../../native/abi/cuda.h"
#include "../../../../native/abi/cuda_arrays.h"

#define MOST_HANDLES 24
#define MIB (1ull << 20)
#define ADDRESSES (64 * MIB)

static void *driver;
static char *host; /* not page-locked for any context; as large as any copy */

static void *find(const char *name) {
    void *function = dlsym(driver, name);
    if (function) return function;
    fprintf(stderr, "differential: no %s\n", name);
    exit(3);
}
#define CALL(name, types, ...) ((abi_result(*) types)find(#name))(__VA_ARGS__)

/* ---- chance ---- */

static uint64_t state;
static uint64_t chance(uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

/* ---- handles ---- */

struct handle {
    uint64_t value;
    void *owner; /* the context that it ends with; NULL: none */
};
static struct kind {
    const char *end; /* entry point that takes it and nothing else */
    struct handle list[MOST_HANDLES];
    unsigned count;
    char letter;
    bool owned;
} kinds[] = {
    /* in the order in which they are destroyed */
    {.letter = 'x', .owned = false, .end = "cuGraphExecDestroy"},
    {.letter = 'n', .owned = false, .end = NULL},
    {.letter = 'g', .owned = false, .end = "cuGraphDestroy"},
    {.letter = 'q', .owned = true, .end = "cuMemFree_v2"},
    {.letter = 'p', .owned = true, .end = "cuMemFree_v2"},
    {.letter = 'h', .owned = true, .end = "cuMemFreeHost"},
    {.letter = 'a', .owned = true, .end = "cuArrayDestroy"},
    {.letter = 'M', .owned = true, .end = "cuMipmappedArrayDestroy"},
    {.letter = 'f', .owned = true, .end = NULL},
    {.letter = 'k', .owned = false, .end = NULL},
    {.letter = 'm', .owned = true, .end = "cuModuleUnload"},
    {.letter = 'l', .owned = false, .end = "cuLibraryUnload"},
    {.letter = 'e', .owned = true, .end = "cuEventDestroy_v2"},
    {.letter = 's', .owned = true, .end = "cuStreamDestroy_v2"},
    {.letter = 'r', .owned = false, .end = NULL},
    {.letter = 'v', .owned = false, .end = "cuMemRelease"},
    {.letter = 'P', .owned = false, .end = "cuMemPoolDestroy"},
    {.letter = 'c', .owned = false, .end = "cuCtxDestroy_v2"},
};
#define KIND_COUNT (sizeof kinds / sizeof *kinds)

static struct kind *kind_of(char letter) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        if (kinds[i].letter == letter) return &kinds[i];
    }
    fprintf(stderr, "differential: no kind %c\n", letter);
    exit(3);
}

/* One that exists; in one of eight cases, or if there is none, a number that is none. */
static uint64_t pick(char letter) {
    const struct kind *kind = kind_of(letter);
    uint64_t which = chance(1 << 20), none = chance(8);
    if (letter == 's' && which % 2) return chance(3); /* the default streams */
    return kind->count == 0 || none == 0 ? 0 : kind->list[which % kind->count].value;
}

static void add(char letter, uint64_t value) {
    struct kind *kind = kind_of(letter);
    void *owner = NULL;
    if (kind->owned) CALL(cuCtxGetCurrent, (void **), &owner);
    if (kind->count < MOST_HANDLES) kind->list[kind->count++] = (struct handle){value, owner};
}

static void take_at(struct kind *kind, unsigned at) {
    memmove(&kind->list[at], &kind->list[at + 1], (--kind->count - at) * sizeof *kind->list);
}

static void forget_owned(const void *owner) {
    for (size_t i = 0; i < KIND_COUNT; i++) {
        for (unsigned at = 0; at < kinds[i].count;) {
            if (kinds[i].owned && kinds[i].list[at].owner == owner) take_at(&kinds[i], at);
            else at++;
        }
    }
}

/* A handle was destroyed, and what belonged to it. */
static void forget(char letter, uint64_t value) {
    struct kind *kind = kind_of(letter);
    for (unsigned at = 0; at < kind->count;) {
        if (kind->list[at].value == value) take_at(kind, at);
        else at++;
    }
    if (letter == 'c') forget_owned((void *)(uintptr_t)value);
    /* What belongs to a graph, a module or a library is not remembered by it: all of that kind is forgotten. */
    if (letter == 'g') kind_of('n')->count = 0;
    if (letter == 'm') kind_of('f')->count = 0;
    if (letter == 'l') kind_of('k')->count = kind_of('f')->count = 0;
}

static abi_result end_handle(char letter, uint64_t value) {
    const struct kind *kind = kind_of(letter);
    if (letter == 'r') {
        for (uint64_t at = value; at < value + ADDRESSES; at += 2 * MIB)
            CALL(cuMemUnmap, (abi_devptr, size_t), (abi_devptr)at, (size_t)(2 * MIB));
        return CALL(cuMemAddressFree, (abi_devptr, size_t), (abi_devptr)value, (size_t)ADDRESSES);
    }
    return kind->end ? ((abi_result (*)(uint64_t))find(kind->end))(value) : ABI_SUCCESS;
}

/* ---- one step ---- */

static struct step {
    const char *name;
    abi_result result;
    char made, ended; /* kinds; 0: none */
    uint64_t value, gone, hash;
    int limit; /* that was set, plus one; 0: none */
    size_t before;
} step;

static void note(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) step.hash = (step.hash ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}

static uint64_t bytes_of_chance(void) {
    static const uint64_t SIZES[] = {0,       1,        512,      4096,     65536,    MIB,      2 * MIB,
                                     3 * MIB, 16 * MIB, 20 * MIB, 64 * MIB, 90 * MIB, 1u << 30, UINT64_MAX};
    return SIZES[chance(sizeof SIZES / sizeof *SIZES)];
}

static const char CODE[] = ".version 8.0\n.target sm_70\n.address_size 64\n// cotenant-sim: duration_us=1\n"
                           ".visible .entry work()\n{\n ret;\n}\n";
