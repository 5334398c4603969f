/* cotenant-simulator: the simulated kernel driver of one node as a process, and the commands that change a running one.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "requests/requests.h"

static int print_help(FILE *to, int code) {
    fputs("usage: cotenant-simulator serve --dir DIR [--gpu MODEL[,memory=24Gi]...]... [options]\n"
          "       cotenant-simulator COMMAND --dir DIR [...]\n\n"
          "serve: runs one simulated GPU node; programs find its driver in DIR/lib (LD_LIBRARY_PATH=DIR/lib)\n"
          "  --gpu MODEL[,memory=SIZE][,reserved=SIZE][,context=SIZE][,granule=SIZE][,mig=1g.10gb+...]\n"
          "                      MODEL: h200 h100 a100 l40s l4 a10 t4 v100; default: two l4\n"
          "  --kernel-us N       duration of a kernel whose image names none (default 100)\n"
          "  --slice-us N        time slice between processes (default 2000)\n"
          "  --cuda N            CUDA version: 11080 12040 12080 13000 14000 (default 13000); 14000 is not NVIDIA's\n"
          "  --driver VERSION    driver version (default 580.95.05); from 615 on, cgroups can have memory limits\n"
          "  --perturb SEED      vary granules, context sizes and release delays, so that no formula predicts them\n"
          "usage                 print GPUs, processes and the memory of each as JSON\n"
          "watch PID             record the peak memory of PID and its descendants as a group\n"
          "temperature GPU C     set a GPU's temperature\n"
          "lose|recover GPU      the GPU falls off the bus, or returns\n"
          "hide|show GPU         NVML no longer counts the GPU, or counts it again\n"
          "hide-process-memory GPU 0|1\n"
          "                      NVML lists the GPU's processes without their memory (all ones)\n"
          "reset GPU             the driver initializes the GPU anew; allocations stay\n"
          "xid GPU N             the GPU reports an Xid\n"
          "ecc GPU corrected|uncorrected N\n"
          "                      add N memory errors\n"
          "rows GPU corrected|uncorrected|pending|failed N\n"
          "                      add N remapped rows or retired pages; pending, failed: 0 or 1\n"
          "throttle GPU none|power-cap|hw-slowdown|sw-thermal|hw-thermal|power-brake\n"
          "                      set the reason for low clocks\n"
          "pcie|nvlink GPU received|sent BYTES\n"
          "                      add BYTES to the traffic of the GPU's links\n"
          "activity GPU occupancy|tensor|dram|fp32 PERCENT\n"
          "                      how busy kernels keep that unit while they run; without it, its counter is missing\n"
          "process-list-delay US every NVML process list takes this long\n"
          "ignore-limits 0|1     report memory limits of cgroups as set, but do not enforce them\n",
          to);
    return code;
}

static bool parse_number(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *value) {
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

/* One of the versions that the simulated driver is built for. */
static bool parse_cuda(const char *text, uint64_t *value) {
    static const uint64_t BUILT[] = {11080, 12040, 12080, SIM_DEFAULT_CUDA, 14000};
    char *end;
    *value = strtoull(text, &end, 10);
    for (size_t i = 0; i < sizeof BUILT / sizeof *BUILT; i++) {
        if (!*end && BUILT[i] == *value) return true;
    }
    fprintf(stderr, "cotenant-simulator: --cuda %s: want one of 11080 12040 12080 13000 14000\n", text);
    return false;
}

struct serve_options {
    uint64_t kernel_us, slice_us, cuda;
    const char *driver;
};

static bool refuse(const char *name, const char *why) {
    fprintf(stderr, "cotenant-simulator: %s%s\n", name, why);
    print_help(stderr, 2);
    return false;
}

/* Reads the options of `serve` and adds GPUs to the node as they come. False: an error was printed. */
static bool parse_options(struct node *node, int argc, char **argv, struct serve_options *options) {
    for (int i = 2; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        bool good = true;
        if (!value) return refuse(name, ": a value is missing");
        if (!strcmp(name, "--dir")) node->dir = value;
        else if (!strcmp(name, "--gpu")) good = gpu_add(node, value);
        else if (!strcmp(name, "--kernel-us")) good = parse_number(name, value, 1, 60000000, &options->kernel_us);
        else if (!strcmp(name, "--slice-us")) good = parse_number(name, value, 10, 1000000, &options->slice_us);
        else if (!strcmp(name, "--cuda")) good = parse_cuda(value, &options->cuda);
        else if (!strcmp(name, "--perturb")) good = parse_number(name, value, 1, UINT64_MAX, &node->perturb);
        else if (!strcmp(name, "--driver")) options->driver = value;
        else return refuse(name, ": unknown option");
        if (!good) return false;
    }
    return node->dir || refuse("--dir", " is missing");
}

static bool add_default_gpus(struct node *node) {
    /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer assumes that gpu_add empties the node */
    bool named = node->facts->gpu_count > 0;
    for (int i = 0; !named && i < 2; i++) {
        if (!gpu_add(node, "l4")) return false;
    }
    return gpus_finish(node);
}

static void apply_options(struct node *node, const struct serve_options *options) {
    /* NOLINTNEXTLINE(clang-analyzer-core.*): the analyzer assumes that gpu_add empties the node */
    node->facts->protocol = SIM_PROTOCOL;
    node->facts->cuda_version = (uint32_t)options->cuda;
    node->facts->kernel_ns = options->kernel_us * 1000;
    node->facts->code_free_bytes = 8u << 20;
    node->facts->pitch_bytes = 512;
    snprintf(node->facts->driver_version, sizeof node->facts->driver_version, "%s", options->driver);
    node->slice_ns = options->slice_us * 1000;
    node->random = node->perturb ? node->perturb : 1;
    if (node->perturb) gpus_perturb(node);
}

static void raise_file_limit(void) {
    struct rlimit files = {0};
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static int serve_main(struct node *node, int argc, char **argv) {
    struct serve_options options = {100, 2000, SIM_DEFAULT_CUDA, "580.95.05"};
    if (!folder_share_facts(node)) return perror("cotenant-simulator: shared memory"), 1;
    if (!parse_options(node, argc, argv, &options) || !add_default_gpus(node)) return 2;
    apply_options(node, &options);
    raise_file_limit();
    prctl(PR_SET_TIMERSLACK, 1ul);
    if (!folder_create(node)) return 1;
    if (!event_loop_open(node)) return perror("cotenant-simulator"), 1;
    printf("simulated node: %u GPU(s) at %s/lib; nothing measured on it is a GPU result\n", node->facts->gpu_count,
           node->dir);
    fflush(stdout);
    event_loop_run(node);
    char path[4200];
    snprintf(path, sizeof path, "%s/" SIM_SOCKET_NAME, node->dir);
    unlink(path);
    return 0;
}

int main(int argc, char **argv) {
    static struct node node = {.listen_fd = -1};
    if (argc < 2) return print_help(stderr, 2);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return print_help(stdout, 0);
    if (!strcmp(argv[1], "serve")) return serve_main(&node, argc, argv);
    int code = control_main(argc, argv);
    return code < 0 ? print_help(stderr, 2) : code;
}
