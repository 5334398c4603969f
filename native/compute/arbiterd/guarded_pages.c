/* Reads pages that a tenant can truncate or overwrite at any moment. Each access to a mapped page is guarded, and a
 * truncated page is given up for good. */
#include "guarded_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Looks for ended processes. The kernel walks all record locks of a file for each, and a tenant can take any number. */
#define MOST_SLOTS 64u /* in one visit */
#define MOST_LOOKS 16u
#define MOST_LOOKS_NS 200000ull /* then the visit ends */
#define LOOKS_PART 100u         /* they take one part in so many of the time, per page */
#define MOST_LOOK_NS 20000000ull

/* Threads of one container that an order wakes: others look themselves within 20 ms. */
#define MOST_WOKEN 64

static _Thread_local sigjmp_buf *volatile guard;

static void on_bus_error(int number) {
    if (guard) siglongjmp(*guard, 1);
    signal(number, SIG_DFL); /* not a guarded access: the default action follows */
}

void install_page_guard(void) {
    /* SA_NODEFER: the handler never returns, so the signal would stay blocked. */
    struct sigaction action = {.sa_handler = on_bus_error, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
}

static bool broke(struct page *page) {
    guard = NULL;
    page->broken = "the file was truncated";
    return false;
}
/* First line of every function that touches a mapping; `guard = NULL` is the last. */
#define GUARDED(page)                                \
    sigjmp_buf here;                                 \
    if ((page)->broken) return false;                \
    if (sigsetjmp(here, 0) != 0) return broke(page); \
    guard = &here

struct page *page_open(const char *id, const char *path, uint32_t slot_count, uint32_t gpu_count, const char **why) {
    struct stat info;
    uint64_t at = cot_lease_page_offset_for(slot_count, gpu_count), bytes = cot_lease_page_bytes(slot_count, gpu_count);
    *why = NULL;
    struct page *page = calloc(1, sizeof *page);
    if (!page) abort();
    strncpy(page->id, id, sizeof page->id - 1);
    page->slot_count = slot_count;
    page->gpu_count = gpu_count;
    for (uint32_t gpu = 0; gpu < COT_MAX_GPUS; gpu++) page->member[gpu] = -1;
    page->dead = calloc(slot_count, sizeof *page->dead);
    if (!page->dead) abort();
    page->ledger = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (page->ledger < 0 || fstat(page->ledger, &info) != 0) *why = strerror(errno);
    else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size < at + bytes)
        *why = "the ledger is too small to contain a lease page";
    if (!*why) {
        page->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->ledger, (off_t)at);
        if (page->map == MAP_FAILED) *why = strerror(errno);
    }
    if (!*why) return page;
    page->map = NULL;
    page_close(page);
    return NULL;
}

void page_close(struct page *page) {
    if (page->map) munmap(page->map, cot_lease_page_bytes(page->slot_count, page->gpu_count));
    if (page->ledger >= 0) close(page->ledger);
    free(page->dead);
    free(page);
}

bool page_bell(struct page *page, uint32_t *bell) {
    GUARDED(page);
    *bell = __atomic_load_n(&cot_lease_reports_at(page->map)->bell, __ATOMIC_SEQ_CST);
    guard = NULL;
    return true;
}

bool page_digest(struct page *page, uint32_t gpu, struct cot_digest *digest) {
    GUARDED(page);
    cot_digest(page->map, page->slot_count, page->gpu_count, gpu, page->dead, digest);
    guard = NULL;
    /* The waits of ended processes may disappear with their rows. */
    if (digest->throttled_ns > page->last[gpu].throttled_ns)
        page->throttled_ns[gpu] += digest->throttled_ns - page->last[gpu].throttled_ns;
    if (digest->relieved > page->last[gpu].relieved) page->relieved[gpu] += digest->relieved - page->last[gpu].relieved;
    page->last[gpu] = *digest;
    return true;
}

bool page_read_record(struct page *page, uint32_t gpu, struct cot_lease_record *record) {
    GUARDED(page);
    bool found = cot_lease_order_read_record(cot_lease_order_at(page->map, gpu), record);
    guard = NULL;
    return found;
}

bool page_publish(struct page *page, uint32_t gpu, struct cot_arbiter *arbiter) {
    GUARDED(page);
    struct cot_lease_order *order = cot_lease_order_at(page->map, gpu);
    bool wakes = cot_arbiter_publish(arbiter, page->gpu[gpu], (uint32_t)page->member[gpu], order);
    guard = NULL;
    if (wakes) syscall(SYS_futex, &order->wake, FUTEX_WAKE, MOST_WOKEN, NULL, NULL, 0);
    return true;
}

bool page_heartbeat(struct page *page, uint64_t now_ns) {
    GUARDED(page);
    cot_lease_page_beat((struct cot_lease_page_header *)page->map, now_ns);
    guard = NULL;
    return true;
}

bool page_announce_idle(struct page *page, uint64_t until_ns) {
    GUARDED(page);
    cot_lease_page_rest((struct cot_lease_page_header *)page->map, until_ns);
    guard = NULL;
    return true;
}

bool page_is_busy(struct page *page, uint32_t gpu, bool *busy) {
    GUARDED(page);
    struct cot_digest digest;
    cot_digest(page->map, page->slot_count, page->gpu_count, gpu, page->dead, &digest);
    guard = NULL;
    *busy = digest.inflight != 0;
    return true;
}

bool page_record(struct page *page, uint32_t gpu, const struct cot_lease_record *record) {
    GUARDED(page);
    cot_lease_order_record(cot_lease_order_at(page->map, gpu), *record);
    guard = NULL;
    return true;
}

bool page_has_order(struct page *page, uint32_t gpu, const struct cot_member *member) {
    GUARDED(page);
    uint64_t lease = __atomic_load_n(&cot_lease_order_at(page->map, gpu)->lease, __ATOMIC_RELAXED);
    guard = NULL;
    return member->dirty || lease == cot_lease(member->epoch, member->state);
}

/* ---- ended processes ---- */

/* The stamp of a slot's row on any GPU with work in flight; 0: there is none. */
static bool busy_stamp(struct page *page, uint32_t slot, uint64_t *stamp) {
    GUARDED(page);
    *stamp = 0;
    for (uint32_t gpu = 0; gpu < page->gpu_count; gpu++) {
        const struct cot_lease_row *row = cot_lease_row_at(page->map, page->gpu_count, slot, gpu);
        uint64_t of_row = __atomic_load_n(&row->stamp, __ATOMIC_ACQUIRE);
        bool busy =
            __atomic_load_n(&row->inflight, __ATOMIC_RELAXED) || __atomic_load_n(&row->waiting, __ATOMIC_RELAXED);
        if (of_row && busy && page->dead[slot] != of_row) *stamp = of_row;
    }
    guard = NULL;
    return true;
}

static bool used_slots(struct page *page, uint32_t *used) {
    GUARDED(page);
    *used = __atomic_load_n(&cot_lease_reports_at(page->map)->slots_used, __ATOMIC_RELAXED);
    guard = NULL;
    if (*used > page->slot_count) *used = page->slot_count;
    return true;
}

/* A process that has a slot holds the lock on its byte of the ledger, with its stamp in it, before its row has a
 * stamp. */
static bool lives(const struct page *page, uint32_t slot, uint64_t stamp) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    uint64_t holder = 0;
    off_t at = (off_t)(cot_ledger_slots_offset(page->gpu_count) + slot * cot_slot_bytes(page->gpu_count));
    if (fcntl(page->ledger, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return false;
    return pread(page->ledger, &holder, sizeof holder, at) == (ssize_t)sizeof holder && holder == stamp;
}

/* Of this thread, so that a machine that pauses does not count as a slow look. */
static uint64_t processor_time_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t page_find_dead(struct page *page, uint64_t now_ns) {
    uint32_t used = 0;
    if (now_ns < page->look_ns || !used_slots(page, &used)) return 0;
    uint64_t from = processor_time_ns(), took = 0;
    for (uint32_t i = 0, looks = 0; i < used && i < MOST_SLOTS && looks < MOST_LOOKS && took < MOST_LOOKS_NS; i++) {
        uint32_t slot = page->next_slot++ % used;
        uint64_t stamp;
        if (!busy_stamp(page, slot, &stamp)) return took;
        if (stamp == 0) continue;
        looks++;
        if (!lives(page, slot, stamp)) {
            page->dead[slot] = stamp;
            page->rung = true;
        }
        took = processor_time_ns() - from;
    }
    page->look_ns = now_ns + took * LOOKS_PART;
    if (took > MOST_LOOK_NS) page->broken = "its ledger has too many record locks";
    return took;
}
