/* The folder of a simulated node: DIR/node.sock, and DIR/lib with the simulated libraries under the names that programs
 * load; and the facts page that every client maps. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "requests.h"

/* Links DIR/lib/NAME to the library beside this program. */
static bool link_library(const char *dir, const char *name, const char *target) {
    char own[4096], from[4200], to[4200];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (length <= 0) return false;
    own[length] = 0;
    char *slash = strrchr(own, '/');
    if (!slash) return false;
    *slash = 0;
    if (snprintf(from, sizeof from, "%s/lib/%s", dir, name) >= (int)sizeof from) return false;
    if (snprintf(to, sizeof to, "%s/simulated/%s", own, target) >= (int)sizeof to) return false;
    if (access(to, R_OK) != 0) {
        fprintf(stderr, "cotenant-simulator: %s: %s; build it with make -C native\n", to, strerror(errno));
        return false;
    }
    unlink(from);
    return symlink(to, from) == 0;
}

/* NVML exports more functions with newer drivers: picks the newest library that is not newer than this driver. */
static const char *nvml_library(const char *driver_version) {
    static const struct {
        unsigned long since;
        const char *library;
    } LIBRARIES[] = {
        {615, "615/libnvidia-ml.so.1"}, {550, "libnvidia-ml.so.1"},     {535, "535/libnvidia-ml.so.1"},
        {525, "525/libnvidia-ml.so.1"}, {520, "520/libnvidia-ml.so.1"}, {510, "510/libnvidia-ml.so.1"},
        {470, "470/libnvidia-ml.so.1"}, {450, "450/libnvidia-ml.so.1"},
    };
    unsigned long version = strtoul(driver_version, NULL, 10);
    for (size_t i = 0; i < sizeof LIBRARIES / sizeof *LIBRARIES; i++) {
        if (version >= LIBRARIES[i].since) return LIBRARIES[i].library;
    }
    return "418/libnvidia-ml.so.1";
}

bool folder_create(struct node *node) {
    char path[4200];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, node->dir) >=
        (int)sizeof address.sun_path) {
        fprintf(stderr, "cotenant-simulator: --dir %s: too long for a socket's path\n", node->dir);
        return false;
    }
    snprintf(path, sizeof path, "%s/lib", node->dir);
    /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer has gpu_add empty the node that it is handed */
    if ((mkdir(node->dir, 0755) != 0 && errno != EEXIST) || (mkdir(path, 0755) != 0 && errno != EEXIST)) {
        fprintf(stderr, "cotenant-simulator: %s: %s\n", path, strerror(errno));
        return false;
    }
    const char *nvml = nvml_library(node->facts->driver_version);
    char driver[64] = "libcuda.so.1";
    if (node->facts->cuda_version != SIM_DEFAULT_CUDA)
        snprintf(driver, sizeof driver, "%u/libcuda.so.1", node->facts->cuda_version);
    if (!link_library(node->dir, "libcuda.so.1", driver) || !link_library(node->dir, "libcuda.so", driver) ||
        !link_library(node->dir, "libnvidia-ml.so.1", nvml) || !link_library(node->dir, "libnvidia-ml.so", nvml)) {
        return false;
    }
    node->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (node->listen_fd < 0 || probe < 0) return perror("cotenant-simulator: socket"), false;
    bool taken = connect(probe, (struct sockaddr *)&address, sizeof address) == 0;
    close(probe);
    if (taken) {
        fprintf(stderr, "cotenant-simulator: %s: another simulated node runs in this folder\n", node->dir);
        return false;
    }
    unlink(address.sun_path);
    mode_t before = umask(0); /* any user may use the GPUs, as with real device nodes */
    int bound = bind(node->listen_fd, (struct sockaddr *)&address, sizeof address);
    umask(before);
    if (bound != 0 || listen(node->listen_fd, 4096) != 0) {
        fprintf(stderr, "cotenant-simulator: %s: %s\n", address.sun_path, strerror(errno));
        return false;
    }
    return true;
}

bool folder_share_facts(struct node *node) {
    int fd = memfd_create("simulated-facts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, sizeof *node->facts) != 0) return false;
    void *facts = mmap(NULL, sizeof *node->facts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (facts == MAP_FAILED) return false;
    node->facts = facts;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    node->facts_fd = open(path, O_RDONLY | O_CLOEXEC); /* clients cannot map this descriptor for writing */
    return node->facts_fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
}
