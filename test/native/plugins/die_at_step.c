/* For LD_PRELOAD: kills its process, as by SIGKILL, before the N-th step (COTENANT_TEST_DIE_AT, from 1) of a stop:
 * opening, renaming or removing state files, killing a cgroup, signaling a process. It counts once the file
 * COTENANT_TEST_DIE_WHEN exists, and writes the steps into it, one a line. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL(name, types) ((types)dlsym(RTLD_NEXT, name))

static void step(const char *what, const char *about) {
    static int steps;
    static const char *const FILES[] = {"audit.log", "stopping.json", "cgroup.kill"};
    const char *at = getenv("COTENANT_TEST_DIE_AT"), *when = getenv("COTENANT_TEST_DIE_WHEN");
    int is_ours = about == NULL;
    for (size_t i = 0; about && i < sizeof FILES / sizeof *FILES; i++) is_ours |= strstr(about, FILES[i]) != NULL;
    if (!is_ours || !at || !when) return;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, when, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0) return;
    const char *name = about && strrchr(about, '/') ? strrchr(about, '/') + 1 : "a process";
    char line[256];
    const int length = snprintf(line, sizeof line, "%s %s\n", what, name);
    if (++steps == (int)strtol(at, NULL, 10) || write(fd, line, (size_t)length) != length) raise(SIGKILL);
    close(fd);
}

EXPORT int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (flags & (O_WRONLY | O_RDWR)) step("write", path);
    return REAL("open64", int (*)(const char *, int, ...))(path, flags, mode);
}

EXPORT int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (flags & (O_WRONLY | O_RDWR)) step("write", path);
    return REAL("open", int (*)(const char *, int, ...))(path, flags, mode);
}

EXPORT int rename(const char *from, const char *to) {
    step("rename to", to);
    return REAL("rename", int (*)(const char *, const char *))(from, to);
}

EXPORT int unlink(const char *path) {
    step("unlink", path);
    return REAL("unlink", int (*)(const char *))(path);
}

EXPORT long syscall(long number, ...) {
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) words[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_pidfd_send_signal && words[1] != 0) step("signal", NULL);
    return REAL("syscall", long (*)(long, ...))(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
