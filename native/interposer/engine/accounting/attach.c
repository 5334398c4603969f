/* Joining the container's grant: the limits page and the ledger lie beside this object, where a trusted party mounted
 * both; nothing is taken from the environment. A process that cannot be held to a grant is not let through: cuInit then
 * fails, with one line on standard error that says why.
 *
 * A forked child is not attached (it has no CUDA either): a page of memory that the kernel zeroes in children says so,
 * also after a raw clone. Its own cuInit, should the driver allow it, attaches it anew. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../engine_internal.h"

#define PAGE_BYTES 4096u
#define LEAST_ROWS 8u /* so few cost nothing to speak of */

/* A file of the folder of the grant: one buffer for all of them, for a stack that grows by several has several pages
 * more to touch. */
struct place {
    char path[PATH_MAX];
    size_t folder; /* length */
};

static bool find_folder(struct place *place) {
    place->folder = 0;
    if (!cot_services->folder(place->path, sizeof place->path)) return false;
    place->folder = strlen(place->path);
    return true;
}

/* NULL: the path is too long. */
static const char *in_folder(struct place *place, const char *name) {
    bool fits = cot_join(place->path + place->folder, sizeof place->path - place->folder, name, "");
    return fits ? place->path : NULL;
}

static __attribute__((cold, noinline)) abi_result refuse(const char *what, const char *path, int error) {
    char text[PATH_MAX + 256];
    int length = snprintf(text, sizeof text,
                          "cotenant: this container's GPU grant cannot be read, so the GPU stays closed: %s %s%s%s\n",
                          what, path, error ? ": " : "", error ? strerror(error) : "");
    if (length > 0) (void)!write(STDERR_FILENO, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    return ABI_ERROR_NOT_PERMITTED;
}

/* A descriptor out of the way of programs that count theirs. */
static int open_high(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 512);
    if (high < 0) return fd;
    close(fd);
    return high;
}

static abi_result map_page(struct place *place) {
    const char *path = in_folder(place, "/limits");
    struct stat info;
    if (!path) return refuse("too long:", place->path, 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return refuse("no limits page at", path, errno);
    abi_result result = ABI_SUCCESS;
    struct cot_limits_page_header header = {0};
    if (cot_fstat(fd, &info) != 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        result = refuse("cannot read", path, errno);
    } else if (header.magic != COT_LIMITS_PAGE_MAGIC || !cot_limits_page_known(header.version)) {
        result = refuse("not a limits page of a version known here:", path, 0);
    } else if (!cot_ledger_known(cot_ledger_version(&header))) {
        result = refuse("not a ledger of a version known here, says", path, 0);
    } else if (header.gpu_count > COT_MAX_GPUS || header.slot_count == 0 || header.slot_count > COT_MAX_SLOTS ||
               (uint64_t)info.st_size < cot_limits_page_bytes(header.slot_count, header.gpu_count)) {
        result = refuse("sizes do not fit in", path, 0);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            result = refuse("cannot map", path, errno);
        } else {
            cot->at.page = map;
            cot->at.gpu_count = header.gpu_count;
            cot->at.slot_count = header.slot_count;
            atomic_store(&cot->page_version, header.version);
            atomic_store(&cot->ledger_version, cot_ledger_version(&header));
        }
    }
    close(fd);
    return result;
}

/* Sizes come from the page: whatever a neighbor wrote into the ledger's header is not believed. */
static abi_result map_ledger(struct place *place) {
    const char *path = in_folder(place, "/ledger");
    struct stat info;
    uint64_t bytes = cot_ledger_bytes(cot->at.slot_count, cot->at.gpu_count);
    if (!path) return refuse("too long:", place->path, 0);
    cot->at.ledger_fd = open_high(path, O_RDWR);
    if (cot->at.ledger_fd < 0) return refuse("no ledger at", path, errno);
    cot->at.slot_bytes = cot_slot_bytes(cot->at.gpu_count);
    if (cot_fstat(cot->at.ledger_fd, &info) != 0 || (uint64_t)info.st_size < bytes) {
        close(cot->at.ledger_fd);
        return refuse("too short:", path, 0);
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cot->at.ledger_fd, 0);
    if (map == MAP_FAILED) {
        close(cot->at.ledger_fd);
        return refuse("cannot map", path, errno);
    }
    cot->at.ledger = map;
    cot->lives.ledger_device = info.st_dev;
    cot->lives.ledger_inode = info.st_ino;
    return ABI_SUCCESS;
}

bool cot_is_ledger(int fd) {
    struct stat info;
    return cot_fstat(fd, &info) == 0 && info.st_dev == cot->lives.ledger_device &&
           info.st_ino == cot->lives.ledger_inode;
}

/* A program may close all descriptors, ours too, and get their numbers again for files of its own. */
int cot_ledger_fd(void) {
    struct place place;
    if (cot_is_ledger(cot->at.ledger_fd)) return cot->at.ledger_fd;
    cot->at.ledger_fd = -1;
    const char *path = find_folder(&place) ? in_folder(&place, "/ledger") : NULL;
    int fd = path ? open_high(path, O_RDWR) : -1;
    if (fd >= 0 && cot_is_ledger(fd)) return cot->at.ledger_fd = fd;
    if (fd >= 0) close(fd);
    return -1;
}

struct cot_ledger_total *cot_total(uint32_t gpu) {
    return (struct cot_ledger_total *)(cot->at.ledger + sizeof(struct cot_ledger_header)) + gpu;
}

/* Random bytes that the kernel makes at every exec; the same for all copies of this object in one program. */
static uint64_t program_image(void) {
    uint64_t image = 0;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random) memcpy(&image, random, sizeof image);
    return image;
}

static void note_use(uint32_t slot) {
    struct cot_ledger_header *header = (struct cot_ledger_header *)cot->at.ledger;
    uint32_t used = __atomic_load_n(&header->slots_used, __ATOMIC_RELAXED);
    while (used <= slot && !__atomic_compare_exchange_n(&header->slots_used, &used, slot + 1, false, __ATOMIC_SEQ_CST,
                                                        __ATOMIC_RELAXED)) {
    }
}

/* Rows of the dead cost every request of the living, so the dead are looked for before the rows in use double. */
static void keep_rows_few(void) {
    uint32_t used = cot_slots_used();
    if (used < LEAST_ROWS || (used & (used - 1)) != 0) return;
    for (uint32_t i = 0; i < used; i++) {
        if (__atomic_load_n(&cot_slot_at(i)->stamp, __ATOMIC_ACQUIRE) == 0) return;
    }
    cot_reap();
}

static void note_engine(struct cot_slot *slot) {
    __atomic_store_n(&slot->engine, atomic_load(&cot->engine), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->engine_refused, atomic_load(&cot->engine_refused), __ATOMIC_RELAXED);
}

void cot_note_engine(void) {
    if (cot_attached()) note_engine(cot_slot_at(cot->at.slot));
}

/* The ledger opened for the lock of the slot, which is to last as long as this process's memory: a mapping keeps the
 * file open whatever becomes of the descriptor, no forked child has it, exec and exit end it. A process that ends loses
 * its mappings before its descriptors, and the kernel closes what was lost last first: the driver's files, then this
 * one. Emulators of programs may not know how to keep it from children (QEMU 11 answers EINVAL): there a dead process
 * holds its slot until its children have attached or ended. */
static abi_result open_life(struct place *place, int *fd) {
    const char *path = in_folder(place, "/ledger");
    if (!path) return refuse("too long:", place->path, 0);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return refuse("no ledger at", path, errno);
    void *map = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_SHARED, *fd, 0);
    if (map == MAP_FAILED) return refuse("cannot map", path, errno);
    cot->lives.kept = map;
    cot->lives.forked = madvise(map, PAGE_BYTES, MADV_DONTFORK) != 0;
    if (cot->lives.forked && errno != EINVAL) return refuse("cannot keep from forked children", path, errno);
    return ABI_SUCCESS;
}

/* Frees what this process held before an exec: that program and its memory are gone, though the process is not. */
static void leave_former_slots(int life, uint32_t pid, uint64_t start, uint64_t space) {
    for (uint32_t i = 0; i < cot_slots_used(); i++) {
        struct cot_slot *slot = cot_slot_at(i);
        if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == 0 || slot->pid != pid || slot->start_ticks != start ||
            slot->pid_namespace != space || slot->image == program_image() || !cot_lock_slot(life, i))
            continue;
        memset(slot + 1, 0, cot->at.slot_bytes - sizeof *slot);
        __atomic_store_n(&slot->pid, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->stamp, 0, __ATOMIC_SEQ_CST);
        cot_unlock_slot(life, i);
    }
}

/* Takes a free slot for the open file `life`. The byte lock comes first: whoever holds it is the only one that may set
 * or clear the stamp. A second copy of this object in the program (dlmopen) has a slot of its own. */
static bool take_slot(int life) {
    keep_rows_few();
    uint32_t pid = (uint32_t)getpid();
    uint64_t start = cot_start_ticks(pid), space = cot_pid_namespace();
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    uint64_t stamp = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) | 1;
    leave_former_slots(life, pid, start, space);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < cot->at.slot_count; i++) {
            struct cot_slot *slot = cot_slot_at(i);
            if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) != 0 || !cot_lock_slot(life, i)) continue;
            if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) != 0) {
                cot_unlock_slot(life, i); /* taken and lost again by somebody who died: for the reaper */
                continue;
            }
            note_use(i);
            memset(slot + 1, 0, cot->at.slot_bytes - sizeof *slot);
            slot->pid = 0;
            slot->state = COT_SLOT_LIVE;
            __atomic_store_n(&slot->stamp, stamp, __ATOMIC_SEQ_CST);
            slot->start_ticks = start;
            slot->pid_namespace = space;
            slot->image = program_image();
            slot->life = stamp;
            slot->observers = cot_observers();
            note_engine(slot);
            __atomic_store_n(&slot->pid, pid, __ATOMIC_SEQ_CST);
            cot->at.slot = i;
            return true;
        }
        if (!cot_reap()) return false;
    }
    return false;
}

/* Which ordinal is which GPU of the grant, by UUID: whatever CUDA_VISIBLE_DEVICES has made of the order. */
static abi_result map_devices(void) {
    int count = 0;
    abi_result result = CALL_DRIVER("cuDeviceGetCount", (int *), &count);
    if (result != ABI_SUCCESS) return result;
    cot->at.device_count = count > (int)COT_MAX_GPUS ? (int)COT_MAX_GPUS : count;
    for (int device = 0; device < cot->at.device_count; device++) {
        abi_uuid uuid;
        cot->at.gpu_of[device] = COT_NO_GPU;
        if (CALL_DRIVER("cuDeviceGetUuid", (abi_uuid *, abi_device), &uuid, device) != ABI_SUCCESS) continue;
        for (uint32_t gpu = 0; gpu < cot->at.gpu_count; gpu++) {
            if (!memcmp(cot->at.page->gpus[gpu].uuid, uuid.bytes, sizeof uuid.bytes)) cot->at.gpu_of[device] = gpu;
        }
    }
    return ABI_SUCCESS;
}

static void leave(void) {
    cot_services->watch(NULL, NULL, NULL);
    cot_gates_leave();
    if (cot->lives.kept) munmap(cot->lives.kept, PAGE_BYTES);
    if (cot->at.ledger) munmap(cot->at.ledger, cot_ledger_bytes(cot->at.slot_count, cot->at.gpu_count));
    if (cot->at.page) munmap((void *)cot->at.page, cot_limits_page_bytes(cot->at.slot_count, cot->at.gpu_count));
    if (cot->at.ledger_fd >= 0) close(cot->at.ledger_fd);
    cot->lives.kept = NULL;
    cot->lives.forked = 0;
    cot->at.ledger = NULL;
    cot->at.page = NULL;
    cot->at.ledger_fd = -1;
}

/* 0 now, and in every forked child to come. */
static uint32_t *wiped_word(void) {
    if (cot_services->bytes >= sizeof *cot_services && cot_services->wiped) return cot_services->wiped;
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, PAGE_BYTES, MADV_WIPEONFORK) == 0) return page;
    munmap(page, PAGE_BYTES);
    return NULL;
}

static abi_result join(void) {
    struct place place;
    int life = -1;
    if (!cot_services->has_driver()) return (abi_result)cot_missing(); /* nothing to be held to */
    if (!find_folder(&place)) return refuse("this library cannot tell where it lies:", "?", 0);
    cot_reap_anew();
    if (!cot->lives.forked) cot->lives.kept = NULL; /* a parent's, if there is one: no child has it */
    if (cot->at.ledger) leave();                    /* a parent's, too */
    cot->at.ledger_fd = -1;
    abi_result result = map_page(&place);
    if (result == ABI_SUCCESS) result = map_ledger(&place);
    if (result == ABI_SUCCESS) result = map_devices();
    if (result == ABI_SUCCESS) result = open_life(&place, &life);
    place.path[place.folder] = 0;
    if (result == ABI_SUCCESS && !take_slot(life)) result = refuse("every slot is taken in", place.path, 0);
    if (life >= 0) close(life);
    if (result == ABI_SUCCESS && !cot_gates_join())
        result = refuse("no compute page in the ledger at", place.path, errno);
    if (result != ABI_SUCCESS) {
        leave();
        return result;
    }
    uint32_t *alive = wiped_word();
    if (!alive) {
        leave();
        return refuse("this kernel cannot tell forked children apart:", place.path, errno);
    }
    const struct cot_limits_page_header *header = &cot->at.page->header;
    struct cot_ledger_header *counts = (struct cot_ledger_header *)cot->at.ledger;
    cot_services->watch(&header->gate, &header->heartbeat_ns, &counts->unknown);
    cot->at.alive = alive;
    __atomic_store_n(alive, 1, __ATOMIC_RELEASE); /* a child is attached with this, for its parent was */
    atomic_store_explicit(&cot->at.attached, 1, memory_order_release);
    return ABI_SUCCESS;
}

abi_result cot_attach_slow(void) {
    if (cot_attached()) return ABI_SUCCESS;
    pthread_mutex_lock(&cot->at.joining);
    abi_result result = cot_attached() ? ABI_SUCCESS : atomic_load(&cot->at.failed) ? ABI_ERROR_NOT_PERMITTED : join();
    if (result == ABI_ERROR_NOT_PERMITTED) atomic_store(&cot->at.failed, 1);
    pthread_mutex_unlock(&cot->at.joining);
    return result;
}

uint32_t cot_gpu_of(abi_device device) {
    return device >= 0 && device < cot->at.device_count ? cot->at.gpu_of[device] : COT_NO_GPU;
}

bool cot_is_host_location(const abi_location *location) {
    return location->type == ABI_LOCATION_HOST || location->type == ABI_LOCATION_HOST_NUMA ||
           location->type == ABI_LOCATION_HOST_NUMA_CURRENT;
}

/* A type that this build does not know may be GPU memory, and nothing says where such a type keeps its device. So it is
 * charged where the process sees one GPU, and refused where it sees several: if the wrong GPU were charged, the program
 * could go past its limit on the right one. */
abi_result cot_find_gpu_of_location(const abi_location *location, uint32_t *gpu) {
    switch (location->type) {
    case ABI_LOCATION_DEVICE: *gpu = cot_gpu_of(location->id); break;
    case ABI_LOCATION_DEVICE_LOCALITY_DOMAIN: *gpu = cot_gpu_of(location->id & 0xff); break;
    default:
        if (cot->at.device_count != 1) return ABI_ERROR_NOT_SUPPORTED;
        *gpu = cot_gpu_of(0);
    }
    return *gpu == COT_NO_GPU ? ABI_ERROR_OUT_OF_MEMORY : ABI_SUCCESS; /* a GPU that this container was not granted */
}

/* Another thread may have read and told a later one meanwhile, which must not be forgotten for an earlier one. */
static void tell_wanted_engine(void) {
    const uint32_t *wanted = &cot->at.page->header.engine;
    uint32_t told;
    do cot_services->wanted(told = __atomic_load_n(wanted, __ATOMIC_SEQ_CST));
    while (told != __atomic_load_n(wanted, __ATOMIC_SEQ_CST));
}

/* Reads the entry until it is whole, and which engine is wanted; the agent rewrites it in one short write. */
void cot_read_gpu(uint32_t gpu, uint64_t generation) {
    struct cot_limits_page_gpu entry;
    tell_wanted_engine();
    for (int tries = 0;; tries++) {
        const volatile uint64_t *from = (const volatile uint64_t *)&cot->at.page->gpus[gpu];
        uint64_t *to = (uint64_t *)&entry;
        for (unsigned i = 0; i < sizeof entry / sizeof *to; i++) to[i] = from[i];
        if (entry.check == cot_check(&entry, COT_GPU_WORDS)) break;
        if (tries == 1000) { /* never seen whole: nothing may be taken on its word */
            entry.memory_bytes = 0;
            break;
        }
    }
    atomic_store_explicit(&cot->seen[gpu].memory_bytes, entry.memory_bytes, memory_order_relaxed);
    uint64_t context_bytes = (entry.context_bytes + COT_PENDING_GRAIN - 1) & ~(COT_PENDING_GRAIN - 1);
    atomic_store_explicit(&cot->seen[gpu].context_bytes, context_bytes, memory_order_relaxed);
    /* The granule stays what it was when the first page was counted with it. */
    uint64_t unset = 0, granule = entry.granule_bytes ? entry.granule_bytes : 2u << 20;
    atomic_compare_exchange_strong(&cot->seen[gpu].granule_bytes, &unset, granule);
    atomic_store_explicit(&cot->seen[gpu].flags, entry.flags, memory_order_relaxed);
    atomic_store_explicit(&cot->seen[gpu].generation, generation + 1, memory_order_release);
}

abi_result cot_cuInit(unsigned flags) {
    abi_result result = CALL_REAL(cuInit, (unsigned), flags);
    return result == ABI_SUCCESS ? cot_attach() : result;
}
