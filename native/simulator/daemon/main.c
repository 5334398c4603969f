/* cotenant-simulator: the simulated node's kernel driver as a process. Arguments, the loop, and the folder that clients
 * find it by: DIR/node.sock, and DIR/lib with the simulated libraries under the names that programs look for. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "control.h"
#include "node.h"

#define MAX_EVENTS 8192
#define DEFAULT_CUDA 13000u

uint64_t node_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* xorshift64: repeatable from the seed of --perturb. */
uint64_t node_random(struct node *node) {
    uint64_t x = node->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return node->random = x;
}

static int usage(FILE *to, int code) {
    fputs("usage: cotenant-simulator serve --dir DIR [--gpu MODEL[,memory=24Gi]...]... [options]\n"
          "       cotenant-simulator COMMAND --dir DIR [...]\n\n"
          "serve: one simulated GPU node; programs find it through DIR/lib (LD_LIBRARY_PATH=DIR/lib)\n"
          "  --gpu MODEL[,memory=SIZE][,reserved=SIZE][,context=SIZE][,granule=SIZE][,mig=1g.10gb+...]\n"
          "                      MODEL: h200 h100 a100 l40s l4 a10 t4 v100; default: two l4\n"
          "  --kernel-us N       how long a kernel runs that does not say so itself (default 100)\n"
          "  --slice-us N        time slice between processes (default 2000)\n"
          "  --cuda N            CUDA version: 11080 12040 12080 13000 14000 (default 13000); 14000 is not NVIDIA's\n"
          "  --driver TEXT       driver version (default 580.95.05); from 615 on it has limits of memory for cgroups\n"
          "  --perturb SEED      hide granules, residuals and late releases from formulas\n"
          "books                 print who holds what, as JSON\n"
          "watch PID             watch PID and its descendants as a group with a peak of its own\n"
          "temperature GPU C    set a GPU's temperature\n"
          "lose|find GPU        it falls off the bus, or returns\n"
          "unlist|list GPU      NVML counts it no more, or again\n"
          "untold GPU 0|1       its process lists say who is there, and all ones for what each holds\n"
          "reset GPU            it is initialized anew; what programs hold of it stays\n"
          "xid GPU N            an Xid is raised\n"
          "ecc GPU corrected|uncorrected N\n"
          "                      so many more errors of memory\n"
          "rows GPU corrected|uncorrected|pending|failed N\n"
          "                      so many more rows remapped, or pages retired; pending, failed: 0 or 1\n"
          "throttle GPU none|power-cap|hw-slowdown|sw-thermal|hw-thermal|power-brake\n"
          "                      why its clocks are low\n"
          "pcie|nvlink GPU received|sent BYTES\n"
          "                      so many more bytes over its links\n"
          "active GPU occupancy|tensor|dram|fp32 PERCENT\n"
          "                      how busy kernels keep that while they run; unsaid, no counter tells of it\n"
          "list-cost US          make every NVML process list take that long\n"
          "limits-ignored 0|1    limits of memory for cgroups hold nobody, while they are told as they were set\n",
          to);
    return code;
}

/* The versions that a simulated driver's library was built of. */
static bool cuda_option(const char *text, uint64_t *value) {
    static const uint64_t BUILT[] = {11080, 12040, 12080, DEFAULT_CUDA, 14000};
    for (size_t i = 0; i < sizeof BUILT / sizeof *BUILT; i++) {
        char word[8];
        snprintf(word, sizeof word, "%u", (unsigned)BUILT[i]);
        if (strcmp(text, word) != 0) continue;
        *value = BUILT[i];
        return true;
    }
    fprintf(stderr, "cotenant-simulator: --cuda %s: want one of 11080 12040 12080 13000 14000\n", text);
    return false;
}

static bool number_option(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *value) {
    char *end;
    errno = 0;
    unsigned long long parsed = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || parsed < least || parsed > most) {
        fprintf(stderr, "cotenant-simulator: %s %s: want a whole number from %llu to %llu\n", name, text,
                (unsigned long long)least, (unsigned long long)most);
        return false;
    }
    *value = parsed;
    return true;
}

/* DIR/lib/NAME -> the library beside this program. */
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

/* What NVML exports came with versions of the driver: the newest library that this one has. */
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

static bool make_folder(struct node *node) {
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
    if (node->facts->cuda_version != DEFAULT_CUDA)
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
        fprintf(stderr, "cotenant-simulator: %s: another simulated node serves this folder\n", node->dir);
        return false;
    }
    unlink(address.sun_path);
    mode_t before = umask(0); /* any user of the node may use its GPUs, as with the real device files */
    int bound = bind(node->listen_fd, (struct sockaddr *)&address, sizeof address);
    umask(before);
    if (bound != 0 || listen(node->listen_fd, 4096) != 0) {
        fprintf(stderr, "cotenant-simulator: %s: %s\n", address.sun_path, strerror(errno));
        return false;
    }
    return true;
}

static bool share_facts(struct node *node) {
    int fd = memfd_create("simulated-facts", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, sizeof *node->facts) != 0) return false;
    void *facts = mmap(NULL, sizeof *node->facts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (facts == MAP_FAILED) return false;
    node->facts = facts;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    node->facts_fd = open(path, O_RDONLY | O_CLOEXEC); /* clients cannot map this one for writing */
    return node->facts_fd >= 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
}

static int timeout_ms(uint64_t until_ns) {
    uint64_t now = node_now_ns();
    if (until_ns == UINT64_MAX) return -1;
    if (until_ns <= now) return 0;
    uint64_t ms = (until_ns - now) / 1000000;
    return ms > 1000 ? 1000 : (int)ms;
}

/* Sleeps until `until_ns` or an event; finer than epoll's milliseconds where the kernel can. */
static int wait_events(struct node *node, struct epoll_event *events, uint64_t until_ns) {
    uint64_t now = node_now_ns();
    if (until_ns == UINT64_MAX || until_ns <= now)
        return epoll_wait(node->epoll_fd, events, MAX_EVENTS, timeout_ms(until_ns));
    uint64_t left = until_ns - now;
    struct timespec limit = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    int count = epoll_pwait2(node->epoll_fd, events, MAX_EVENTS, &limit, NULL);
    if (count < 0 && errno == ENOSYS) count = epoll_wait(node->epoll_fd, events, MAX_EVENTS, timeout_ms(until_ns));
    return count;
}

static void serve(struct node *node, int signal_fd) {
    static struct epoll_event events[MAX_EVENTS];
    while (!node->stopping) {
        uint64_t now = node_now_ns(), until = UINT64_MAX;
        /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer has gpu_add empty the node that it is handed */
        for (uint32_t i = 0; i < node->facts->gpu_count; i++) {
            timeline_advance(node, &node->gpus[i], now);
            uint64_t wake = timeline_next_wake(node, &node->gpus[i]);
            if (wake < until) until = wake;
        }
        uint64_t expiry = books_expire(node, now);
        if (expiry < until) until = expiry;
        int count = wait_events(node, events, until);
        /* Ends first: whoever saw a process die may ask for its memory in the very same batch. */
        for (int i = 0; i < count; i++) {
            uintptr_t tag = (uintptr_t)events[i].data.u64;
            if (tag & 1) client_gone(node, (struct client *)(tag & ~(uintptr_t)1));
            else if (tag > 4096 && (events[i].events & (EPOLLHUP | EPOLLERR))) client_gone(node, (struct client *)tag);
        }
        for (int i = 0; i < count; i++) {
            uintptr_t tag = (uintptr_t)events[i].data.u64;
            uint64_t ignored;
            if (tag == 2) clients_accept(node);
            else if (tag == 4) (void)!read(node->doorbell_fd, &ignored, sizeof ignored);
            else if (tag == 6) node->stopping = true;
            else if (!(tag & 1) && ((struct client *)tag)->fd >= 0) client_readable(node, (struct client *)tag);
        }
    }
    (void)signal_fd;
}

static int serve_main(struct node *node, int argc, char **argv) {
    uint64_t kernel_us = 100, slice_us = 2000, cuda = DEFAULT_CUDA;
    const char *driver = "580.95.05";
    if (!share_facts(node)) return perror("cotenant-simulator: shared memory"), 1;
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : NULL;
        if (!value) {
            fprintf(stderr, "cotenant-simulator: %s: a value is missing\n", name);
            return usage(stderr, 2);
        }
        bool good = true;
        if (!strcmp(name, "--dir")) node->dir = value;
        else if (!strcmp(name, "--gpu")) good = gpu_add(node, value);
        else if (!strcmp(name, "--kernel-us")) good = number_option(name, value, 1, 60000000, &kernel_us);
        else if (!strcmp(name, "--slice-us")) good = number_option(name, value, 10, 1000000, &slice_us);
        else if (!strcmp(name, "--cuda")) good = cuda_option(value, &cuda);
        else if (!strcmp(name, "--perturb")) good = number_option(name, value, 1, UINT64_MAX, &node->perturb);
        else if (!strcmp(name, "--driver")) driver = value;
        else {
            fprintf(stderr, "cotenant-simulator: %s: no such option\n", name);
            return usage(stderr, 2);
        }
        if (!good) return 2;
    }
    if (!node->dir) {
        fputs("cotenant-simulator: --dir is missing\n", stderr);
        return usage(stderr, 2);
    }
    /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer has gpu_add empty the node that it is handed */
    bool named = node->facts->gpu_count > 0;
    for (int i = 0; !named && i < 2; i++) {
        if (!gpu_add(node, "l4")) return 2;
    }
    if (!gpus_divide(node)) return 2;
    /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer has gpu_add empty the node that it is handed */
    node->facts->protocol = SIM_PROTOCOL;
    node->facts->cuda_version = (uint32_t)cuda;
    node->facts->kernel_ns = kernel_us * 1000;
    node->facts->code_free_bytes = 8u << 20;
    node->facts->pitch_bytes = 512;
    snprintf(node->facts->driver_version, sizeof node->facts->driver_version, "%s", driver);
    node->slice_ns = slice_us * 1000;
    node->random = node->perturb ? node->perturb : 1;
    if (node->perturb) gpus_perturb(node);

    struct rlimit files = {0};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    prctl(PR_SET_TIMERSLACK, 1ul);
    if (!make_folder(node)) return 1;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    int signal_fd = signalfd(-1, &ends, SFD_CLOEXEC);
    node->doorbell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    node->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (signal_fd < 0 || node->doorbell_fd < 0 || node->epoll_fd < 0) return perror("cotenant-simulator"), 1;
    struct epoll_event accepting = {.events = EPOLLIN, .data.u64 = 2}, ringing = {.events = EPOLLIN, .data.u64 = 4},
                       ending = {.events = EPOLLIN, .data.u64 = 6};
    epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, node->listen_fd, &accepting);
    epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, node->doorbell_fd, &ringing);
    epoll_ctl(node->epoll_fd, EPOLL_CTL_ADD, signal_fd, &ending);
    printf("simulated node: %u GPU(s) at %s/lib; nothing measured on it is a GPU result\n", node->facts->gpu_count,
           node->dir);
    fflush(stdout);
    serve(node, signal_fd);
    char path[4200];
    snprintf(path, sizeof path, "%s/" SIM_SOCKET_NAME, node->dir);
    unlink(path);
    return 0;
}

int main(int argc, char **argv) {
    static struct node node = {.listen_fd = -1};
    if (argc < 2) return usage(stderr, 2);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return usage(stdout, 0);
    if (!strcmp(argv[1], "serve")) return serve_main(&node, argc, argv);
    int code = control_main(argc, argv);
    return code < 0 ? usage(stderr, 2) : code;
}
