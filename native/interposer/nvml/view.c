#include "view.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../shim.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const struct cot_page *page;
static const char *ledger;
static int ledger_fd = -1;
static uint64_t own_namespace;
static uint32_t card_count, slot_count;

/* Maps a file whole. Its descriptor stays open: closing it would drop the record lock that the CUDA object of this same
 * process holds on the ledger. */
static const void *map_file(const char *folder, const char *name, uint64_t least, int *fd) {
    char path[PATH_MAX];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return NULL;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &info) != 0 || (uint64_t)info.st_size < least) return NULL;
    void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, *fd, 0);
    return map == MAP_FAILED ? NULL : map;
}

static void join(void) {
    char folder[PATH_MAX];
    if (!shim_own_folder(folder, sizeof folder)) return;
    int page_fd;
    const struct cot_page *limits = map_file(folder, "limits", sizeof *limits, &page_fd);
    if (!limits || limits->header.magic != COT_PAGE_MAGIC || limits->header.version != COT_PAGE_VERSION) return;
    card_count = limits->header.card_count;
    slot_count = limits->header.slot_count;
    if (card_count > COT_MAX_CARDS || slot_count > COT_MAX_SLOTS) return;
    ledger = map_file(folder, "ledger", cot_ledger_bytes(slot_count, card_count), &ledger_fd);
    if (!ledger) return;
    struct stat info;
    if (stat("/proc/self/ns/pid", &info) == 0) own_namespace = info.st_ino;
    page = limits;
}

bool view_ready(void) {
    pthread_once(&once, join);
    return page != NULL;
}

uint32_t view_card_count(void) {
    return view_ready() ? card_count : 0;
}

bool view_uuid_of(uint32_t card, char *text) {
    if (card >= view_card_count()) return false;
    const uint8_t *u = page->cards[card].uuid;
    sprintf(text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
            u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return true;
}

bool view_find(const char *uuid, uint32_t *card) {
    char text[48];
    for (uint32_t i = 0; view_uuid_of(i, text); i++) {
        if (strcmp(text, uuid) != 0) continue;
        *card = i;
        return true;
    }
    return false;
}

static const struct cot_slot *slot_at(uint32_t slot) {
    return (const struct cot_slot *)(ledger + cot_ledger_slots_offset(card_count) + slot * cot_slot_bytes(card_count));
}

static uint32_t slots_used(void) {
    uint32_t used = __atomic_load_n(&((const struct cot_ledger_header *)ledger)->slots_used, __ATOMIC_ACQUIRE);
    return used < slot_count ? used : slot_count;
}

/* A dead process's slot stays until somebody needs its room; it holds nothing all the same. Its lock is free and its
 * start time gone. */
static bool is_dead(uint32_t index, const struct cot_slot *slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)index, .l_len = 1};
    if (slot->stamp == 0) return true;
    if (ledger_fd < 0 || slot->pid_namespace != own_namespace || fcntl(ledger_fd, F_GETLK, &lock) != 0) return false;
    return lock.l_type == F_UNLCK && cot_start_ticks(slot->pid) != slot->start_ticks;
}

void view_card_now(uint32_t card, struct view_card *out) {
    struct cot_page_card entry = {0};
    for (int tries = 0; tries < 1000; tries++) {
        memcpy(&entry, (const void *)&page->cards[card], sizeof entry);
        if (entry.check == cot_check(&entry, COT_CARD_WORDS)) break;
        entry.memory_bytes = 0;
    }
    *out =
        (struct view_card){.memory_bytes = entry.memory_bytes, .isolate = page->header.flags & COT_PAGE_ISOLATE_MEMORY};
    for (uint32_t i = 0, used = slots_used(); i < used; i++) {
        if (is_dead(i, slot_at(i))) continue;
        const struct cot_slot_card *row = (const struct cot_slot_card *)(slot_at(i) + 1) + card;
        uint64_t held = __atomic_load_n(&row->held, __ATOMIC_RELAXED);
        out->held_bytes += held;
        if (!(page->header.flags & COT_PAGE_HAS_FEEDBACK)) continue;
        struct cot_page_feedback seen = page->feedback[i * card_count + card];
        bool valid =
            seen.stamp != 0 && seen.stamp == slot_at(i)->stamp && seen.check == cot_check(&seen, COT_FEEDBACK_WORDS);
        if (valid && seen.residual_bytes > 0) out->held_bytes += (uint64_t)seen.residual_bytes;
    }
    if (out->held_bytes > out->memory_bytes) out->held_bytes = out->memory_bytes;
}

bool view_has_pid(uint32_t pid) {
    for (uint32_t i = 0, used = slots_used(); i < used; i++) {
        const struct cot_slot *slot = slot_at(i);
        if (__atomic_load_n(&slot->stamp, __ATOMIC_ACQUIRE) && __atomic_load_n(&slot->pid, __ATOMIC_RELAXED) == pid)
            return true;
    }
    return false;
}
