/* Attaches a process to its container's grant: maps the limits page and the usage ledger, which lie beside
 * libcotenant.so where the agent mounted them, and takes a slot. Nothing of it comes from the environment. If that
 * fails the GPU stays closed: cuInit fails, with one line on standard error that says why.
 *
 * A forked child is not attached, and CUDA does not work in it either. A page that the kernel zeroes in children
 * identifies it, also after a raw clone. If the child calls cuInit and the driver allows it, the child attaches. */
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

#include "../../clock.h"
#include "../../libc.h"
#include "../../process_start.h"
#include "../core/driver_calls.h"
#include "../core/hooks.h"
#include "grant.h"
#include "slots.h"
#include "visible_devices.h"

#define PAGE_BYTES 4096u
#define FEW_ROWS 8u /* so few rows cost next to nothing */

static __attribute__((cold, noinline)) abi_result close_gpu(const char *what, const char *path, int error) {
    char text[PATH_MAX + 256];
    int length = snprintf(text, sizeof text,
                          "cotenant: this container's GPU grant cannot be read, so the GPU stays closed: %s %s%s%s\n",
                          what, path, error ? ": " : "", error ? strerror(error) : "");
    if (length > 0) (void)!write(STDERR_FILENO, text, (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    return ABI_ERROR_NOT_PERMITTED;
}

static abi_result map_page(struct cot_grant_path *place) {
    const char *path = cot_path_in_grant(place, "/limits");
    struct stat info;
    if (!path) return close_gpu("path too long:", place->path, 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return close_gpu("no limits page at", path, errno);
    abi_result result = ABI_SUCCESS;
    struct cot_limits_page_header header = {0};
    if (cot_fstat(fd, &info) != 0 || pread(fd, &header, sizeof header, 0) != (ssize_t)sizeof header) {
        result = close_gpu("cannot read", path, errno);
    } else if (header.magic != COT_LIMITS_PAGE_MAGIC || !cot_limits_page_known(header.version)) {
        result = close_gpu("not a limits page of a known version:", path, 0);
    } else if (!cot_ledger_known(cot_ledger_version(&header))) {
        result = close_gpu("the ledger has an unknown version, according to", path, 0);
    } else if (header.gpu_count > COT_MAX_GPUS || header.slot_count == 0 || header.slot_count > COT_MAX_SLOTS ||
               (uint64_t)info.st_size < cot_limits_page_bytes(header.slot_count, header.gpu_count)) {
        result = close_gpu("GPU or slot count does not fit the size of", path, 0);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            result = close_gpu("cannot map", path, errno);
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

/* Sizes come from the limits page: the ledger's header is writable by every process of the container. */
static abi_result map_ledger(struct cot_grant_path *place) {
    const char *path = cot_path_in_grant(place, "/ledger");
    struct stat info;
    uint64_t bytes = cot_ledger_bytes(cot->at.slot_count, cot->at.gpu_count);
    if (!path) return close_gpu("path too long:", place->path, 0);
    cot->at.ledger_fd = cot_open_high(path, O_RDWR);
    if (cot->at.ledger_fd < 0) return close_gpu("no ledger at", path, errno);
    cot->at.slot_bytes = cot_slot_bytes(cot->at.gpu_count);
    if (cot_fstat(cot->at.ledger_fd, &info) != 0 || (uint64_t)info.st_size < bytes) {
        close(cot->at.ledger_fd);
        return close_gpu("too short:", path, 0);
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cot->at.ledger_fd, 0);
    if (map == MAP_FAILED) {
        close(cot->at.ledger_fd);
        return close_gpu("cannot map", path, errno);
    }
    cot->at.ledger = map;
    cot->slot_lock.ledger_device = info.st_dev;
    cot->slot_lock.ledger_inode = info.st_ino;
    return ABI_SUCCESS;
}

/* Random bytes that the kernel makes at each exec; the same for all copies of this object in one program. */
static uint64_t program_image(void) {
    uint64_t image = 0;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random) memcpy(&image, random, sizeof image);
    return image;
}

static void note_slot_used(uint32_t slot) {
    struct cot_ledger_header *header = (struct cot_ledger_header *)cot->at.ledger;
    uint32_t used = __atomic_load_n(&header->slots_used, __ATOMIC_RELAXED);
    while (used <= slot && !__atomic_compare_exchange_n(&header->slots_used, &used, slot + 1, false, __ATOMIC_SEQ_CST,
                                                        __ATOMIC_RELAXED)) {
    }
}

/* Every request reads the rows of dead processes as well, so these are freed before the rows in use double; and what
 * they exported, before this process may seem to have it. */
static void free_dead_rows(void) {
    uint32_t used = cot_slots_used(), gpus = cot->at.gpu_count;
    for (uint32_t i = 0; i < used * gpus; i++) {
        if (!__atomic_load_n(&cot_row(i / gpus, i % gpus)->shared, __ATOMIC_RELAXED)) continue;
        cot_reap();
        break;
    }
    if (used < FEW_ROWS || (used & (used - 1)) != 0) return;
    for (uint32_t i = 0; i < used; i++) {
        if (__atomic_load_n(&cot_slot_at(i)->stamp, __ATOMIC_ACQUIRE) == 0) return;
    }
    cot_reap();
}

static void write_engine(struct cot_slot *slot) {
    __atomic_store_n(&slot->engine, atomic_load(&cot->engine), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->engine_refused, atomic_load(&cot->engine_refused), __ATOMIC_RELAXED);
}

void cot_record_engine(void) {
    if (cot_attached()) write_engine(cot_slot_at(cot->at.slot));
}

/* Opens the ledger once more, for the lock of the slot, which must last as long as the memory of this process. A
 * mapping keeps the file open whatever happens to the descriptor; exec and exit end it. A process that exits loses its
 * mappings before its descriptors, and the kernel closes files in reverse order: the driver's first, this one after
 * them. Forked children inherit it as they inherit the driver's descriptors, with which they keep the memory of a
 * parent that has died: its slot stays charged until they end or execute a program. */
static abi_result open_slot_lock(struct cot_grant_path *place, int *fd) {
    const char *path = cot_path_in_grant(place, "/ledger");
    if (!path) return close_gpu("path too long:", place->path, 0);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return close_gpu("no ledger at", path, errno);
    void *map = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_SHARED, *fd, 0);
    if (map == MAP_FAILED) return close_gpu("cannot map", path, errno);
    cot->slot_lock.mapping = map;
    return ABI_SUCCESS;
}

/* Frees the slots that this process held before an exec: that program and its memory are gone. */
static void free_slots_before_exec(int lock_fd, uint32_t pid, uint64_t start, uint64_t space) {
    for (uint32_t i = 0; i < cot_slots_used(); i++) {
        struct cot_slot *slot = cot_slot_at(i);
        if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) == 0 || slot->pid != pid ||
            slot->start_ticks - start + 1 > 2 || slot->pid_namespace != space || slot->image == program_image() ||
            !cot_lock_slot(lock_fd, i))
            continue;
        memset(slot + 1, 0, cot->at.slot_bytes - sizeof *slot);
        __atomic_store_n(&slot->pid, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&slot->stamp, 0, __ATOMIC_SEQ_CST);
        cot_unlock_slot(lock_fd, i);
    }
}

/* Takes a free slot for the open file `lock_fd`. The byte lock comes first: only its holder may set or clear the
 * stamp. A second copy of this object in the program (dlmopen) has a slot of its own. */
static bool take_slot(int lock_fd) {
    free_dead_rows();
    uint32_t pid = (uint32_t)getpid();
    uint64_t start = cot_start_ticks(pid), space = cot_pid_namespace();
    uint64_t stamp = cot_boottime_ns() | 1;
    free_slots_before_exec(lock_fd, pid, start, space);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < cot->at.slot_count; i++) {
            struct cot_slot *slot = cot_slot_at(i);
            if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) != 0 || !cot_lock_slot(lock_fd, i)) continue;
            if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) != 0) {
                cot_unlock_slot(lock_fd, i); /* its process died while taking it: left to cot_reap */
                continue;
            }
            note_slot_used(i);
            memset(slot + 1, 0, cot->at.slot_bytes - sizeof *slot);
            slot->pid = 0;
            slot->state = COT_SLOT_LIVE;
            __atomic_store_n(&slot->stamp, stamp, __ATOMIC_SEQ_CST);
            slot->start_ticks = start;
            slot->pid_namespace = space;
            slot->image = program_image();
            slot->lock_stamp = stamp;
            slot->observers = cot_observers();
            write_engine(slot);
            __atomic_store_n(&slot->pid, pid, __ATOMIC_SEQ_CST);
            cot->at.slot = i;
            return true;
        }
        if (!cot_reap()) return false;
    }
    return false;
}

/* Which device ordinal is which GPU of the grant, by UUID: CUDA_VISIBLE_DEVICES may change the order. */
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

static void detach(void) {
    cot_services->watch(NULL, NULL, NULL);
    cot_hooks.detach();
    if (cot->slot_lock.mapping) munmap(cot->slot_lock.mapping, PAGE_BYTES);
    if (cot->at.ledger) munmap(cot->at.ledger, cot_ledger_bytes(cot->at.slot_count, cot->at.gpu_count));
    if (cot->at.page) munmap((void *)cot->at.page, cot_limits_page_bytes(cot->at.slot_count, cot->at.gpu_count));
    if (cot->at.ledger_fd >= 0) close(cot->at.ledger_fd);
    cot->slot_lock.mapping = NULL;
    cot->at.ledger = NULL;
    cot->at.page = NULL;
    cot->at.ledger_fd = -1;
}

/* A word that is 0 now and in every forked child to come. */
static uint32_t *wiped_word(void) {
    if (cot_services->bytes >= sizeof *cot_services && cot_services->fork_zeroed_word)
        return cot_services->fork_zeroed_word;
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return NULL;
    if (madvise(page, PAGE_BYTES, MADV_WIPEONFORK) == 0) return page;
    munmap(page, PAGE_BYTES);
    return NULL;
}

static abi_result join(void) {
    struct cot_grant_path place;
    int lock_fd = -1;
    if (!cot_services->has_driver()) return (abi_result)cot_missing(); /* without a driver there is nothing to limit */
    if (!cot_find_grant_folder(&place)) return close_gpu("this library cannot find its own path:", "?", 0);
    cot_read_boottime_offset();
    cot_reset_reaper();
    cot->slot_lock.mapping = NULL; /* the parent's, whose slot stays locked in its children */
    if (cot->at.ledger) detach();  /* the parent's */
    cot->at.ledger_fd = -1;
    cot->given_up = (struct cot_given_up_memory){0}; /* the parent's */
    abi_result result = map_page(&place);
    if (result == ABI_SUCCESS) result = map_ledger(&place);
    if (result == ABI_SUCCESS) result = map_devices();
    if (result == ABI_SUCCESS) result = open_slot_lock(&place, &lock_fd);
    place.path[place.folder_length] = 0;
    if (result == ABI_SUCCESS && !take_slot(lock_fd)) result = close_gpu("every slot is taken in", place.path, 0);
    if (lock_fd >= 0) close(lock_fd);
    if (result == ABI_SUCCESS && !cot_hooks.attach())
        result = close_gpu("no lease page in the ledger at", place.path, errno);
    if (result != ABI_SUCCESS) {
        detach();
        return result;
    }
    uint32_t *alive = wiped_word();
    if (!alive) {
        detach();
        return close_gpu("this kernel cannot zero a page in forked children:", place.path, errno);
    }
    const struct cot_limits_page_header *header = &cot->at.page->header;
    struct cot_ledger_header *counts = (struct cot_ledger_header *)cot->at.ledger;
    cot_services->watch(&header->gate, &header->heartbeat_ns, &counts->unknown);
    cot->at.alive = alive;
    __atomic_store_n(alive, 1, __ATOMIC_RELEASE); /* a child attaches by this alone, as its parent was attached */
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

abi_result cot_cuInit(unsigned flags) {
    struct cot_visible_devices change = {0};
    if (!cot_attached()) cot_visible_devices_begin(&change); /* else the driver has its list */
    abi_result result = CALL_REAL(cuInit, (unsigned), flags);
    cot_visible_devices_end(&change);
    return result == ABI_SUCCESS ? cot_attach() : result;
}
