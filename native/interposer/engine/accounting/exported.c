/* The charge of exported memory after its owner has given it up. Another process of the container may have it open, and
 * the driver counts it for that one then, but neither the driver nor a descriptor says so. So it stays charged to its
 * owner until the agent has measured the owner's row since, because that measurement has counted it wherever it is.
 *
 * It is released at once if it cannot be elsewhere: no other process of the container uses CUDA, and the descriptor by
 * which it was exported is closed here. Without an agent it is released after half a minute. What a dead process had
 * exported stays charged in its slot, by the same rule (slot_locks.c). */
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "../../clock.h"
#include "../core/spin_lock.h"
#include "exported.h"
#include "slots.h"

/* Only memory that is still held: a word that the container overwrote must not wrap. */
static void share_less(uint32_t gpu, uint64_t bytes) {
    uint64_t *shared = &cot_own_row(gpu)->shared, seen = __atomic_load_n(shared, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(shared, &seen, seen > bytes ? seen - bytes : 0, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED)) {
    }
}

void cot_exported_add(uint32_t gpu, uint64_t bytes) {
    __atomic_fetch_add(&cot_own_row(gpu)->shared, bytes, __ATOMIC_SEQ_CST);
}

static bool has_descriptor(const struct cot_given_up *entry) {
    return entry->file >= 0 && fcntl(entry->file, F_GETSIG) == entry->mark && fcntl(entry->file, F_GETOWN) == getpid();
}

/* Has the agent measured this process's row as it is now? */
static bool is_measured(uint32_t gpu) {
    const struct cot_slot *slot = cot_slot_at(cot->at.slot);
    struct cot_limits_page_feedback seen = cot->at.page->feedback[cot->at.slot * cot->at.gpu_count + gpu];
    return seen.stamp == slot->stamp && seen.check == cot_check(&seen, COT_FEEDBACK_WORDS) &&
           seen.signature == cot_signature_now(cot_own_row(gpu));
}

static void end(const struct cot_given_up *entry) {
    struct cot_slot_gpu *own = cot_own_row(entry->gpu);
    share_less(entry->gpu, entry->bytes);
    __atomic_fetch_add(&own->freed, entry->bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&own->held, entry->bytes, __ATOMIC_SEQ_CST);
}

void cot_exported_settle(void) {
    struct cot_given_up_memory *all = &cot->given_up;
    bool measured[COT_MAX_GPUS];
    /* A checkpointed process has no charge; it has that of such memory again when it is restored. */
    if (!__atomic_load_n(&all->count, __ATOMIC_ACQUIRE) || atomic_load(&cot->checkpoint.active)) return;
    bool others = cot_other_process(cot->at.slot);
    cot_spin_lock(&all->lock);
    uint64_t now = cot_monotonic_ns(); /* no entry is of a later time */
    for (uint32_t gpu = 0; gpu < cot->at.gpu_count; gpu++) measured[gpu] = is_measured(gpu);
    for (uint32_t i = 0; i < all->count;) {
        const struct cot_given_up *entry = &all->list[i];
        if (!measured[entry->gpu] && (others || has_descriptor(entry)) && now - entry->since < COT_EXPORTED_LIMIT_NS) {
            i++;
            continue;
        }
        end(entry);
        all->list[i] = all->list[--all->count];
    }
    cot_spin_unlock(&all->lock);
}

void cot_exported_release(uint32_t gpu, uint64_t bytes, int file, int mark) {
    struct cot_given_up_memory *all = &cot->given_up;
    struct cot_given_up entry = {.gpu = gpu, .file = file, .mark = mark, .bytes = bytes, .since = cot_monotonic_ns()};
    if (!has_descriptor(&entry) && !cot_other_process(cot->at.slot)) {
        end(&entry);
        return;
    }
    /* Counts as a change of the row, so that an earlier measurement is void. */
    __atomic_fetch_add(&cot_own_row(gpu)->changes, 1, __ATOMIC_SEQ_CST);
    cot_spin_lock(&all->lock);
    if (all->count == COT_MOST_GIVEN_UP) { /* joins the last one of its GPU, and lasts as long as that */
        uint32_t i = all->count - 1;
        while (i > 0 && all->list[i].gpu != gpu) i--;
        if (all->list[i].gpu == gpu) {
            all->list[i].bytes += bytes;
            all->list[i].since = entry.since;
        } else {
            end(&entry);
        }
    } else {
        all->list[all->count] = entry;
        __atomic_store_n(&all->count, all->count + 1, __ATOMIC_RELEASE);
    }
    cot_spin_unlock(&all->lock);
}

uint64_t cot_exported_pending(uint32_t gpu) {
    struct cot_given_up_memory *all = &cot->given_up;
    uint64_t bytes = 0;
    cot_spin_lock(&all->lock);
    for (uint32_t i = 0; i < all->count; i++) bytes += all->list[i].gpu == gpu ? all->list[i].bytes : 0;
    cot_spin_unlock(&all->lock);
    for (uint32_t i = 0, used = cot_slots_used(); i < used; i++) {
        if (__atomic_load_n(&cot_slot_at(i)->state, __ATOMIC_ACQUIRE) == COT_SLOT_REAPING)
            bytes += cot_clamp_bytes(__atomic_load_n(&cot_row(i, gpu)->held, __ATOMIC_RELAXED));
    }
    return bytes;
}
