#include "grant_view.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../shared-memory/slot_charge.h"
#include "../clock.h"
#include "../process_start.h"
#include "../symbols/symbols.h"

static pthread_mutex_t joining = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int joined;
static const struct cot_limits_page *page;
static const char *ledger;
static int ledger_fd = -1;
static uint64_t own_namespace;
static uint32_t gpu_count, slot_count;

/* Maps a whole file. The descriptor stays open: closing it would drop record locks that libcotenant.so of the same
 * process holds on the ledger. */
static const void *map_file(const char *folder, const char *name, uint64_t least, int *fd) {
    char path[PATH_MAX];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NULL;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || cot_fstat(*fd, &info) != 0 || (uint64_t)info.st_size < least) return NULL;
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, *fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void join(void) {
    char folder[PATH_MAX];
    if (!shim_own_folder(folder, sizeof folder)) return;
    int page_fd;
    const struct cot_limits_page *limits = map_file(folder, "limits", sizeof *limits, &page_fd);
    if (!limits || limits->header.magic != COT_LIMITS_PAGE_MAGIC || !cot_limits_page_known(limits->header.version) ||
        !cot_ledger_known(cot_ledger_version(&limits->header)))
        return;
    gpu_count = limits->header.gpu_count;
    slot_count = limits->header.slot_count;
    if (gpu_count > COT_MAX_GPUS || slot_count == 0 || slot_count > COT_MAX_SLOTS) return;
    struct stat info;
    if (cot_fstat(page_fd, &info) != 0 || (uint64_t)info.st_size < cot_limits_page_bytes(slot_count, gpu_count)) return;
    ledger = map_file(folder, "ledger", cot_ledger_bytes(slot_count, gpu_count), &ledger_fd);
    if (!ledger) return;
    if (cot_stat("/proc/self/ns/pid", &info) == 0) own_namespace = info.st_ino;
    page = limits;
}

bool grant_is_readable(void) {
    if (!atomic_load_explicit(&joined, memory_order_acquire)) {
        pthread_mutex_lock(&joining);
        if (!joined) {
            cot_read_boottime_offset();
            join();
        }
        atomic_store_explicit(&joined, 1, memory_order_release);
        pthread_mutex_unlock(&joining);
    }
    return page != NULL;
}

uint32_t grant_gpu_count(void) {
    return grant_is_readable() ? gpu_count : 0;
}

bool grant_gpu_uuid(uint32_t gpu, char *text) {
    if (gpu >= grant_gpu_count()) return false;
    const uint8_t *u = page->gpus[gpu].uuid;
    sprintf(text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
            u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return true;
}

bool grant_find_gpu(const char *uuid, uint32_t *gpu) {
    char text[48];
    for (uint32_t i = 0; grant_gpu_uuid(i, text); i++) {
        if (strcmp(text, uuid) != 0) continue;
        *gpu = i;
        return true;
    }
    return false;
}

static const struct cot_slot *slot_at(uint32_t slot) {
    return (const struct cot_slot *)(ledger + cot_ledger_slots_offset(gpu_count) + slot * cot_slot_bytes(gpu_count));
}

static uint32_t slots_used(void) {
    uint32_t used = __atomic_load_n(&((const struct cot_ledger_header *)ledger)->slots_used, __ATOMIC_ACQUIRE);
    return used < slot_count ? used : slot_count;
}

static struct cot_limits_page_gpu gpu_entry(uint32_t gpu) {
    struct cot_limits_page_gpu entry = {0};
    for (int tries = 0; tries < 1000; tries++) {
        memcpy(&entry, (const void *)&page->gpus[gpu], sizeof entry);
        if (entry.check == cot_check(&entry, COT_GPU_WORDS)) return entry;
    }
    return (struct cot_limits_page_gpu){0}; /* never consistent: nothing is reported */
}

/* A dead process's slot stays until another process needs it, but holds nothing. Its lock is free and its start
 * time does not match. */
static bool is_dead(uint32_t index, const struct cot_slot *slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)index, .l_len = 1};
    if (slot->stamp == 0) return true;
    if (slot->pid_namespace != own_namespace || fcntl(ledger_fd, F_GETLK, &lock) != 0) return false;
    return lock.l_type == F_UNLCK && !cot_started_at(slot->pid, slot->start_ticks);
}

static uint64_t counted(uint32_t index, uint32_t gpu, bool late) {
    const struct cot_slot_gpu *row = (const struct cot_slot_gpu *)(slot_at(index) + 1) + gpu;
    uint64_t pending = cot_clamp_bytes(__atomic_load_n(&row->pending, __ATOMIC_SEQ_CST));
    uint64_t held = cot_clamp_bytes(__atomic_load_n(&row->held, __ATOMIC_SEQ_CST));
    return cot_slot_charge(&page->feedback[index * gpu_count + gpu], slot_at(index), row, pending, held, late);
}

void grant_gpu_usage(uint32_t gpu, struct grant_gpu *out) {
    struct cot_limits_page_gpu entry = gpu_entry(gpu);
    bool late = entry.flags & COT_GPU_RELEASES_LATE;
    *out = (struct grant_gpu){.memory_bytes = entry.memory_bytes,
                              .isolate = page->header.flags & COT_LIMITS_PAGE_ISOLATE_MEMORY};
    for (uint32_t i = 0, used = slots_used(); i < used; i++) {
        /* On a GPU that frees memory late, only the agent knows when a dead process's memory is free. */
        if (slot_at(i)->stamp != 0 && (late || !is_dead(i, slot_at(i)))) out->held_bytes += counted(i, gpu, late);
    }
    if (out->held_bytes > out->memory_bytes) out->held_bytes = out->memory_bytes;
}

/* Did this process, by its PID here, take a slot in another PID namespace? Its innermost PID is the last one in the
 * NSpid line of its status. */
static bool is_occupant(uint32_t pid, const struct cot_slot *slot) {
    char path[64], text[4096];
    struct stat info;
    if (!cot_started_at(pid, slot->start_ticks)) return false;
    snprintf(path, sizeof path, "/proc/%u/ns/pid", pid);
    if (cot_stat(path, &info) == 0 && info.st_ino != slot->pid_namespace) return false;
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *line = strstr(text, "\nNSpid:");
    const char *end = line ? strchr(line + 1, '\n') : NULL;
    while (end && end[-1] >= '0' && end[-1] <= '9') end--;
    return end && cot_digits(end) == slot->pid;
}

static uint32_t pid_from_outside(const struct cot_slot *slot) {
    DIR *folder = opendir("/proc");
    uint32_t found = 0;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        uint32_t pid = (uint32_t)cot_digits(entry->d_name);
        if (pid && is_occupant(pid, slot)) found = pid;
    }
    if (folder) closedir(folder);
    return found;
}

/* PID of a slot's process in this PID namespace; 0: it has ended, or is not visible from here. */
static uint32_t pid_of(const struct cot_slot *slot) {
    uint32_t pid = __atomic_load_n(&slot->pid, __ATOMIC_SEQ_CST);
    if (slot->stamp == 0 || pid == 0) return 0;
    if (slot->pid_namespace != own_namespace) return pid_from_outside(slot);
    return cot_started_at(pid, slot->start_ticks) ? pid : 0;
}

uint32_t grant_max_processes(void) {
    return grant_is_readable() ? slot_count : 0;
}

uint32_t grant_processes(uint32_t gpu, struct grant_process *out) {
    uint32_t count = 0;
    bool late = gpu != GRANT_NO_GPU && gpu_entry(gpu).flags & COT_GPU_RELEASES_LATE;
    for (uint32_t i = 0, used = slots_used(); i < used; i++) {
        uint32_t pid = pid_of(slot_at(i)), k = 0;
        if (pid == 0) continue;
        while (k < count && out[k].pid != pid) k++; /* two copies of libcotenant.so in one process (dlmopen) */
        if (k == count) out[count++] = (struct grant_process){.pid = pid};
        if (gpu != GRANT_NO_GPU) out[k].bytes += counted(i, gpu, late);
    }
    return count;
}
