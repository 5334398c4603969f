/* Predicts how long launches take: a table by kind of launch with a running mean. Entries are replaced, never freed; a
 * torn or lost update only makes a prediction less accurate. */
#include "internal.h"

#define PROBES 8u
#define PREDICTION_LAUNCHES 10u /* launches that a prediction averages */
#define MEAN_LAUNCHES 256u      /* launches that a mean averages */

static uint32_t place_of(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    return (uint32_t)(key >> 40) % COT_GATE_KINDS;
}

static struct cot_launch_kind *find(struct cot_gate *gate, uint64_t key, bool make) {
    uint32_t place = place_of(key);
    for (uint32_t i = 0; i < PROBES; i++) {
        struct cot_launch_kind *kind = &gate->kinds[(place + i) % COT_GATE_KINDS];
        uint64_t seen = __atomic_load_n(&kind->key, __ATOMIC_RELAXED);
        if (seen == key) return kind;
        if (seen != 0 || !make) continue;
        if (__atomic_compare_exchange_n(&kind->key, &seen, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
            seen == key) {
            return kind;
        }
    }
    if (!make) return NULL;
    struct cot_launch_kind *kind = &gate->kinds[(place + key % PROBES) % COT_GATE_KINDS];
    __atomic_store_n(&kind->length_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->count, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->key, key, __ATOMIC_RELAXED);
    return kind;
}

struct cot_predict_duration cot_predict_duration(struct cot_gate *gate, uint64_t key) {
    const struct cot_launch_kind *kind = find(gate, key, false);
    if (!kind) return (struct cot_predict_duration){0};
    return (struct cot_predict_duration){
        .late_ns = __atomic_load_n(&kind->length_ns, __ATOMIC_RELAXED),
        .mean_ns = __atomic_load_n(&kind->mean_ns, __ATOMIC_RELAXED),
    };
}

static uint64_t towards(uint64_t mean, uint64_t value, uint64_t parts) {
    return value > mean ? mean + (value - mean) / parts : mean - (mean - value) / parts;
}

void cot_record_duration(struct cot_gate *gate, uint64_t key, uint64_t length_ns, uint32_t launches) {
    struct cot_launch_kind *kind = find(gate, key, true);
    uint64_t late = __atomic_load_n(&kind->length_ns, __ATOMIC_RELAXED);
    uint64_t mean = __atomic_load_n(&kind->mean_ns, __ATOMIC_RELAXED);
    uint64_t count = __atomic_load_n(&kind->count, __ATOMIC_RELAXED);
    if (length_ns == 0) length_ns = 1;
    if (late == 0) late = length_ns;
    /* A batch of many launches counts as many batches of one. */
    for (uint32_t i = 0; i < launches; i++) {
        if (count < MEAN_LAUNCHES) count++;
        late = towards(late, length_ns, PREDICTION_LAUNCHES);
        mean = towards(mean, length_ns, count);
    }
    __atomic_store_n(&kind->count, count, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->mean_ns, mean, __ATOMIC_RELAXED);
    __atomic_store_n(&kind->length_ns, late, __ATOMIC_RELAXED);
}
