/* Stands in a build folder where a program of another machine is meant: runs that program, which lies in the folder of
 * its own build, in the emulator, with the same arguments and environment. So tests name programs as they always do,
 * and what is preloaded is preloaded into the emulated program alone: this one and the emulator are static.
 *
 *   BUILD/emulated/tests/client    a copy of this            BUILD/emulated/emulator    a link to the emulator
 *   BUILD/arm64/tests/client       what it runs              BUILD/emulated/prefix      a link to the libc's folder */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "/emulated/"

int main(int argc, char **argv) {
    char own[PATH_MAX], emulator[PATH_MAX], prefix[PATH_MAX], program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = 0;
    char *folder = strstr(own, FOLDER);
    if (!folder) return fprintf(stderr, "launcher: not in a folder " FOLDER ": %s\n", own), 126;
    const int base = (int)(folder - own);
    const char *rest = folder + strlen(FOLDER);
    if (snprintf(emulator, sizeof emulator, "%.*s" FOLDER "emulator", base, own) >= PATH_MAX ||
        snprintf(prefix, sizeof prefix, "%.*s" FOLDER "prefix", base, own) >= PATH_MAX ||
        snprintf(program, sizeof program, "%.*s/arm64/%s", base, own, rest) >= PATH_MAX)
        return fputs("launcher: paths too long\n", stderr), 126;
    char **words = calloc((size_t)argc + 6, sizeof *words);
    if (!words) return 126;
    words[0] = emulator;
    words[1] = (char *)"-L";
    words[2] = prefix;
    words[3] = (char *)"-0"; /* what the program knows itself by, and may run again */
    words[4] = own;
    words[5] = program;
    for (int i = 1; i < argc; i++) words[5 + i] = argv[i];
    execv(emulator, words);
    free(words);
    perror(emulator);
    return 126;
}
