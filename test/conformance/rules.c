/* Runs the rules of NVIDIA's documentation, each in a process of its own with a bound on its time, and prints a line of
 * JSON for each: the row, the outcome (kept, broken, hung, died, absent, not-here), and what was answered instead.
 *   conformance-rules [--library PATH] [--granted] [--seconds N] [--list] [SUBJECT | SUBJECT/RULE]...
 * The driver is libcuda.so.1 unless --library names another. Exit code 0 says that each rule was asked, whatever the
 * outcomes. */
#include "management.h"
#include "memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Exit codes of a rule's process. */
enum { KEPT = 0, BROKEN = 10, NOT_HERE = 11, ABSENT = 12 };
enum { DETAIL_FD = 3, MOST_DETAIL = 1024, MOST_RULES = 2000, SECONDS = 10 };

#define CALL(name, parameters) CUresult(*name) parameters;
DRIVER_CALLS(CALL)
MEMORY_CALLS(CALL)
#undef CALL
#define CALL(name, parameters) int(*name) parameters;
NVML_CALLS(CALL)
#undef CALL
const char *(*nvmlErrorString)(int);

static struct rule *rules;
static bool granted;
static const char *library = "libcuda.so.1";

void add_rule(struct rule *rule) {
    rule->next = rules;
    rules = rule;
}

bool is_granted(void) {
    return granted;
}

/* ---- in the process of a rule ---- */
static _Noreturn void end_rule(int outcome, const char *detail) {
    ssize_t written = write(DETAIL_FD, detail, strlen(detail));
    _exit(written < 0 ? 1 : outcome);
}

static const char *name_of(CUresult result) {
    const char *name = NULL;
    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "no result of CUDA";
}

void expect_result(CUresult want, CUresult got, const char *text, int line) {
    expect_one_of(&want, 1, got, text, line);
}

void expect_one_of(const CUresult *want, size_t count, CUresult got, const char *text, int line) {
    char wanted[256] = "", detail[MOST_DETAIL];
    for (size_t i = 0; i < count; i++) {
        if (got == want[i]) return;
        size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof(wanted) - used, "%s%d (%s)", i ? " or " : "", want[i], name_of(want[i]));
    }
    snprintf(detail, sizeof(detail), "line %d: %.400s answered %d (%s), documented is %s", line, text, got,
             name_of(got), wanted);
    end_rule(BROKEN, detail);
}

void expect_refusal(CUresult got, const char *text, int line) {
    if (got != CUDA_SUCCESS) return;
    char detail[MOST_DETAIL];
    snprintf(detail, sizeof(detail), "line %d: %.400s succeeded, documented is a refusal", line, text);
    end_rule(BROKEN, detail);
}

void expect_value(long long want, long long got, const char *text, int line) {
    if (want == got) return;
    char detail[MOST_DETAIL];
    snprintf(detail, sizeof(detail), "line %d: %.400s is %lld, documented is %lld", line, text, got, want);
    end_rule(BROKEN, detail);
}

void not_here(const char *why) {
    end_rule(NOT_HERE, why);
}

/* Another name for a call that the library lacks; never called by a rule that names its calls. */
static CUresult lacking(void) {
    end_rule(BROKEN, "the rule uses an entry point that the driver lacks, and does not name it");
}

/* A rule of NVML names calls of it; the others do without the library. */
static void load_nvml(void *nvml) {
#define CALL(name, parameters)              \
    *(void **)&(name) = dlsym(nvml, #name); \
    if (!(name)) *(void **)&(name) = (void *)lacking;
    NVML_CALLS(CALL)
#undef CALL
    *(void **)&nvmlErrorString = dlsym(nvml, "nvmlErrorString");
}

static void load_driver(const struct rule *rule) {
    void *driver = dlopen(library, RTLD_NOW), *nvml = NULL;
    if (!driver) end_rule(ABSENT, dlerror());
    char calls[512], *rest = NULL;
    snprintf(calls, sizeof(calls), "%s", rule->calls);
    for (char *name = strtok_r(calls, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
        bool managing = !strncmp(name, "nvml", 4);
        if (managing && !nvml && !(nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW))) end_rule(ABSENT, dlerror());
        if (!dlsym(managing ? nvml : driver, name)) end_rule(ABSENT, name);
    }
    if (nvml) load_nvml(nvml);
#define CALL(name, parameters)                \
    *(void **)&(name) = dlsym(driver, #name); \
    if (!(name)) *(void **)&(name) = (void *)lacking;
    DRIVER_CALLS(CALL)
    MEMORY_CALLS(CALL)
#undef CALL
}

CUdevice start_driver(void) {
    CUdevice device = -1;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    return device;
}

CUcontext primary_context(void) {
    CUcontext context = NULL;
    OK(cuDevicePrimaryCtxRetain(&context, start_driver()));
    OK(cuCtxSetCurrent(context));
    return context;
}

CUcontext new_context(void) {
    CUcontext context = NULL;
    OK(cuCtxCreate_v2(&context, 0, start_driver()));
    return context;
}

CUcontext current_context(void) {
    CUcontext context = NULL;
    OK(cuCtxGetCurrent(&context));
    return context;
}

CUstream new_stream(unsigned flags) {
    CUstream stream = NULL;
    OK(cuStreamCreate(&stream, flags));
    return stream;
}

CUevent new_event(unsigned flags) {
    CUevent event = NULL;
    OK(cuEventCreate(&event, flags));
    return event;
}

CUdeviceptr new_memory(size_t bytes) {
    CUdeviceptr memory = 0;
    OK(cuMemAlloc_v2(&memory, bytes));
    return memory;
}

CUfunction kernel(const char *name) {
    static const char PTX[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                              ".visible .entry nothing() { ret; }\n"
                              ".visible .entry one_argument(.param .u64 pointer) { ret; }\n";
    CUmodule module = NULL;
    CUfunction function = NULL;
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

int driver_version(void) {
    int version = 0;
    OK(cuDriverGetVersion(&version));
    return version;
}

int device_attribute(int attribute) {
    int value = -1;
    OK(cuDeviceGetAttribute(&value, attribute, 0));
    return value;
}

static void *call_body(void *body) {
    (*(void (**)(void))body)();
    return NULL;
}

void in_thread(void (*body)(void)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, call_body, &body)) end_rule(BROKEN, "no thread can be started");
    pthread_join(thread, NULL);
}

bool in_child(void (*body)(void)) {
    pid_t child = fork();
    if (child < 0) end_rule(BROKEN, "fork failed");
    if (!child) {
        body();
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == BROKEN) _exit(BROKEN); /* the detail has been written */
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- in the process that runs them all ---- */
static void print_text(const char *key, const char *text) {
    printf(",\"%s\":\"", key);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < ' ') printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

static void print_row(const struct rule *rule, const char *outcome, const char *detail, long ms) {
    printf("{\"id\":\"%s/%s\"", rule->subject, rule->name);
    print_text("source", rule->source);
    print_text("calls", rule->calls);
    printf(",\"recalled\":%s", rule->recalled ? "true" : "false");
    if (rule->granted) print_text("granted", rule->granted);
    if (outcome) {
        print_text("outcome", outcome);
        if (*detail) print_text("detail", detail);
        printf(",\"ms\":%ld", ms);
    }
    puts("}");
    fflush(stdout);
}

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The rule's process, with the write end of a pipe as its descriptor for details. */
static pid_t start_rule(const struct rule *rule, int detail) {
    char id[256];
    snprintf(id, sizeof(id), "%s/%s", rule->subject, rule->name);
    char *arguments[] = {"conformance-rules",          "--library", (char *)library, "--run", id,
                         granted ? "--granted" : NULL, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, detail, DETAIL_FD);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attributes, &none);
    pid_t child = -1;
    int failed = posix_spawn(&child, "/proc/self/exe", &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return failed ? -1 : child;
}

/* Its exit status, or -1: it was still running at the end of its time, and has been killed. */
static int await(pid_t child, long until_ms) {
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    int status = 0;
    for (;;) {
        if (waitpid(child, &status, WNOHANG) == child) return status;
        long left = until_ms - now_ms();
        if (left <= 0) break;
        struct timespec time = {left / 1000, left % 1000 * 1000000};
        sigtimedwait(&ended, NULL, &time);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

static bool run_rule(const struct rule *rule, long seconds) {
    int ends[2];
    long started = now_ms();
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK)) return false;
    /* Its descriptor 3 may be one of these already, which adddup2 then makes inheritable. */
    int detail_fd = fcntl(ends[1], F_DUPFD_CLOEXEC, DETAIL_FD + 2);
    pid_t child = start_rule(rule, detail_fd);
    close(detail_fd);
    close(ends[1]);
    char detail[MOST_DETAIL] = "";
    int status = child > 0 ? await(child, started + seconds * 1000) : 0;
    ssize_t length = read(ends[0], detail, sizeof(detail) - 1);
    detail[length > 0 ? length : 0] = '\0';
    close(ends[0]);
    if (child <= 0) return false;
    const char *outcome = "died";
    if (status == -1) outcome = "hung";
    else if (WIFEXITED(status)) {
        int code = WEXITSTATUS(status);
        outcome = code == KEPT       ? "kept"
                  : code == BROKEN   ? "broken"
                  : code == NOT_HERE ? "not-here"
                  : code == ABSENT   ? "absent"
                                     : "died";
    }
    if (!strcmp(outcome, "died")) {
        if (WIFSIGNALED(status)) snprintf(detail, sizeof(detail), "signal %d", WTERMSIG(status));
        else snprintf(detail, sizeof(detail), "exit code %d", WEXITSTATUS(status));
    }
    print_row(rule, outcome, detail, now_ms() - started);
    return true;
}

/* Rules are asked in the order of the names, those of one name in the order of their ids. */
static bool is_named(struct rule *rule, char **names) {
    if (!*names) return true;
    char id[256];
    snprintf(id, sizeof(id), "%s/%s", rule->subject, rule->name);
    for (rule->place = 0; names[rule->place]; rule->place++)
        if (!strcmp(names[rule->place], rule->subject) || !strcmp(names[rule->place], id)) return true;
    return false;
}

static int by_place(const void *left, const void *right) {
    const struct rule *a = *(const struct rule *const *)left, *b = *(const struct rule *const *)right;
    int order = a->place - b->place;
    if (!order) order = strcmp(a->subject, b->subject);
    return order ? order : strcmp(a->name, b->name);
}

int main(int count, char **arguments) {
    long seconds = SECONDS;
    bool list = false;
    const char *run = NULL;
    char **next = arguments + 1;
    for (; *next && !strncmp(*next, "--", 2); next++) {
        if (!strcmp(*next, "--granted")) granted = true;
        else if (!strcmp(*next, "--list")) list = true;
        else if (!next[1]) break;
        else if (!strcmp(*next, "--library")) library = *++next;
        else if (!strcmp(*next, "--seconds")) seconds = strtol(*++next, NULL, 10);
        else if (!strcmp(*next, "--run")) run = *++next;
        else {
            fprintf(stderr, "conformance-rules: %s: --library, --granted, --seconds and --list are known\n", *next);
            return 2;
        }
    }
    static const struct rule *sorted[MOST_RULES];
    size_t known = 0;
    char *one[] = {(char *)run, NULL};
    for (struct rule *rule = rules; rule; rule = rule->next)
        if (known < MOST_RULES && is_named(rule, run ? one : next)) sorted[known++] = rule;
    if (!known) {
        fprintf(stderr, "conformance-rules: no rule has such a name; --list prints all\n");
        return 2;
    }
    if (run) {
        load_driver(sorted[0]);
        sorted[0]->run();
        return KEPT;
    }
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    qsort((void *)sorted, known, sizeof(*sorted), by_place);
    for (size_t i = 0; i < known; i++) {
        if (list) print_row(sorted[i], NULL, "", 0);
        else if (!run_rule(sorted[i], seconds)) return 1;
    }
    return 0;
}
