/* Memory limits of cgroups, which drivers from 615 on have. Only the library of such a driver contains them, so that a
 * program that looks up the names finds them nowhere else. */
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "nvml.h"

/* Inode of the cgroup's folder. The real driver opens that folder too. */
static nvml_abi_return group_of(const char *path, uint64_t *group) {
    struct statfs system;
    struct stat info;
    if (!path) return NVML_ABI_INVALID_ARGUMENT;
    int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return NVML_ABI_NOT_FOUND;
    bool good = fstatfs(fd, &system) == 0 && system.f_type == CGROUP2_SUPER_MAGIC && fstat(fd, &info) == 0;
    close(fd);
    if (!good) return NVML_ABI_INVALID_ARGUMENT;
    *group = info.st_ino;
    return NVML_ABI_SUCCESS;
}

NVML_EXPORT nvmlDeviceSetMemoryLimits_v1(nvml_abi_device device, struct nvml_abi_set_memory_limits *limits) {
    NVML_ENTER_GPU(limits);
    struct sim_reply reply;
    uint64_t group;
    NVML_TRY(group_of(limits->name_space, &group));
    struct sim_request request = {
        .op = SIM_LIMIT_SET, .gpu = gpu, .arg = {group, limits->soft_bytes, limits->hard_bytes}};
    return nvml_ask_whole(&request, &reply, NULL, 0);
}

NVML_EXPORT nvmlDeviceGetMemoryLimits_v1(nvml_abi_device device, struct nvml_abi_get_memory_limits *limits) {
    NVML_ENTER_GPU(limits);
    struct sim_reply reply;
    uint64_t group;
    NVML_TRY(group_of(limits->name_space, &group));
    NVML_TRY(nvml_ask(SIM_LIMIT_GET, gpu, group, &reply, NULL, 0));
    limits->soft_bytes = reply.arg[0];
    limits->hard_bytes = reply.arg[1];
    limits->used_bytes = reply.arg[2];
    return NVML_ABI_SUCCESS;
}
