/* A rule of NVIDIA's documentation as a test: what a row of the table says, and what its body may use. Each rule runs
 * in a process of its own, so it may leave anything behind; the first expectation that is not met ends it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

/* The documents. The reference is the text of the public header of that toolkit, from which NVIDIA makes its pages. */
#define DRIVER_API "CUDA Driver API 13.5, "
#define GUIDE "CUDA C++ Programming Guide 13.0, "
#define RUNTIME_API "CUDA Runtime API 13.5, "
#define NVML "NVML API Reference 13.5, "
/* NVIDIA's Python library over the driver, where it says what the driver does and the reference does not. */
#define CUDA_CORE "cuda.core 1.3, "

struct rule {
    const char *subject, *name;
    /* Document, its version, and section or function. */
    const char *source;
    /* Entry points that it holds for, separated by blanks: where the driver, or NVML, lacks one, the rule is not asked.
     */
    const char *calls;
    /* The exact sentence could not be retrieved when the rule was written. */
    bool recalled;
    /* What a grant is meant to change; such a rule asks is_granted(). */
    const char *granted;
    void (*run)(void);
    int place; /* of the name by which it was asked for */
    struct rule *next;
};

void add_rule(struct rule *rule);

/* A row and its body: RULE(name, .source = DRIVER_API "cuX", .calls = "cuX_v2") { ... }. The file defines SUBJECT. */
#define RULE(rule_name, ...)                                                                                         \
    static void rule_name(void);                                                                                     \
    static struct rule row_of_##rule_name = {.subject = SUBJECT, .name = #rule_name, .run = rule_name, __VA_ARGS__}; \
    __attribute__((constructor)) static void add_##rule_name(void) {                                                 \
        add_rule(&row_of_##rule_name);                                                                               \
    }                                                                                                                \
    static void rule_name(void)

/* ---- expectations ---- */
void expect_result(CUresult want, CUresult got, const char *text, int line);
void expect_one_of(const CUresult *want, size_t count, CUresult got, const char *text, int line);
void expect_refusal(CUresult got, const char *text, int line);
void expect_value(long long want, long long got, const char *text, int line);
/* The rule cannot be asked of this device or driver. */
_Noreturn void not_here(const char *why);

#define EXPECT(want, call) expect_result(want, call, #call, __LINE__)
#define OK(call) EXPECT(CUDA_SUCCESS, call)
/* Where the documentation leaves several answers: ONE_OF(call, CUDA_ERROR_A, CUDA_ERROR_B). */
#define ONE_OF(call, ...)                                                                                            \
    expect_one_of((const CUresult[]){__VA_ARGS__}, sizeof((const CUresult[]){__VA_ARGS__}) / sizeof(CUresult), call, \
                  #call, __LINE__)
/* Where the documentation refuses a call and names no error of its own. */
#define FAILS(call) expect_refusal(call, #call, __LINE__)
#define SAME(want, value) expect_value((long long)(want), (long long)(value), #value, __LINE__)
#define TRUE(condition) expect_value(1, !!(condition), #condition, __LINE__)
#define NEEDS(condition, why)            \
    do {                                 \
        if (!(condition)) not_here(why); \
    } while (0)

/* Inside a grant, which may change answers that the row names. */
bool is_granted(void);

/* ---- what most rules begin with; device 0, and a failure ends the rule ---- */
CUdevice start_driver(void);     /* cuInit, the first device */
CUcontext primary_context(void); /* retained and current */
CUcontext new_context(void);     /* created, and so current */
CUstream new_stream(unsigned flags);
CUevent new_event(unsigned flags);
CUdeviceptr new_memory(size_t bytes);
/* A kernel of rules.c, by name: "nothing" takes no arguments, "one_argument" a pointer; both end at once. */
CUfunction kernel(const char *name);
/* CUDA version of the driver, as 1000 x major + 10 x minor: what later headers name is not asked of it. */
int driver_version(void);
int device_attribute(int attribute);
CUcontext current_context(void);

/* A stream that is busy: from hold() until release_all(), what is enqueued later in that stream does not run. Made of a
 * host function that waits, so it holds for every driver. One stream at a time. */
void hold(CUstream stream);
void release_all(void);
/* What waits for nothing is done when work of a new context is: of what is not done then, something holds it. */
void let_pass(void);
#define NOT_YET(call)                                               \
    do {                                                            \
        let_pass();                                                 \
        expect_result(CUDA_ERROR_NOT_READY, call, #call, __LINE__); \
    } while (0)

/* In a thread of its own, joined. */
void in_thread(void (*body)(void));
/* In a forked child; whether it met all expectations. */
bool in_child(void (*body)(void));
