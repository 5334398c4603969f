/* Predicts how long launches take: a table of running means, by kind of launch and by family. A kind that was not
 * measured yet is expected to take as long as its family, or as all launches of the process. The table forgets what was
 * not looked up for longest, so that more kinds than it has places make predictions less accurate, not launches slower.
 * A torn or lost update does no more than that either. */
#include "internal.h"

#define PROBES 8u
#define PREDICTION_LAUNCHES 10u /* launches that a prediction averages */
#define MEAN_LAUNCHES 256u      /* launches that a mean averages */
#define MAX_GUESS_NS 1000000000ull

#define STORE(word, value) __atomic_store_n(&(word), value, __ATOMIC_RELAXED)

static uint32_t place_of(uint64_t key) {
    key ^= key >> 33;
    key *= 0xff51afd7ed558ccdull;
    return (uint32_t)(key >> 40) % COT_GATE_KINDS;
}

static struct cot_duration *find(struct cot_gate *gate, uint64_t key, uint64_t now_ns) {
    uint64_t now_ms = now_ns / 1000000;
    if (key == 0) return NULL;
    for (uint32_t place = place_of(key), i = 0; i < PROBES; i++) {
        struct cot_duration *duration = &gate->durations[(place + i) % COT_GATE_KINDS];
        uint64_t seen = LOAD(duration->key);
        if (seen == 0) return NULL;
        if (seen != key) continue;
        if (LOAD(duration->used_ms) != now_ms) STORE(duration->used_ms, now_ms);
        return duration;
    }
    return NULL;
}

static struct cot_duration *find_or_make(struct cot_gate *gate, uint64_t key, uint64_t now_ns) {
    struct cot_duration *found = find(gate, key, now_ns), *oldest = NULL;
    if (found || key == 0) return found;
    for (uint32_t place = place_of(key), i = 0; i < PROBES; i++) {
        struct cot_duration *duration = &gate->durations[(place + i) % COT_GATE_KINDS];
        bool free = LOAD(duration->key) == 0;
        if (!oldest || free || LOAD(duration->used_ms) < LOAD(oldest->used_ms)) oldest = duration;
        if (free) break;
    }
    STORE(oldest->length_ns, 0);
    STORE(oldest->mean_ns, 0);
    STORE(oldest->count, 0);
    STORE(oldest->blocks, 0);
    STORE(oldest->used_ms, now_ns / 1000000);
    STORE(oldest->key, key);
    return oldest;
}

/* The first launch of a kind is taken for one of its family, or of the process. Further ones before it was measured
 * may be many: they count for as much longer as their grid is larger, and where not even the family is known, one of
 * them holds back all others. */
static struct cot_predicted guess(struct cot_gate *gate, const struct cot_launch_kind *kind, bool launched,
                                  uint64_t now_ns) {
    const struct cot_duration *of = find(gate, kind->family, now_ns);
    bool knows_family = of && LOAD(of->length_ns);
    if (!knows_family) of = &gate->all;
    if (!knows_family && launched) return (struct cot_predicted){0};
    uint64_t late = LOAD(of->length_ns), blocks = LOAD(of->blocks);
    if (launched && blocks && kind->blocks > blocks) {
        unsigned __int128 longer = (unsigned __int128)late * kind->blocks / blocks;
        late = longer < MAX_GUESS_NS ? (uint64_t)longer : MAX_GUESS_NS;
    }
    return (struct cot_predicted){.late_ns = late, .mean_ns = LOAD(of->mean_ns)};
}

struct cot_predicted cot_predict_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns) {
    const struct cot_duration *own = find(gate, kind->key, now_ns);
    if (!own || LOAD(own->length_ns) == 0) return guess(gate, kind, own != NULL, now_ns);
    return (struct cot_predicted){.late_ns = LOAD(own->length_ns), .mean_ns = LOAD(own->mean_ns), .measured = true};
}

void cot_note_launched(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t now_ns) {
    find_or_make(gate, kind->key, now_ns);
}

static uint64_t towards(uint64_t mean, uint64_t value, uint64_t parts) {
    return value > mean ? mean + (value - mean) / parts : mean - (mean - value) / parts;
}

static void record(struct cot_duration *duration, uint64_t length_ns, uint32_t launches, uint64_t blocks) {
    uint64_t late = LOAD(duration->length_ns), mean = LOAD(duration->mean_ns), count = LOAD(duration->count);
    uint64_t usual = LOAD(duration->blocks);
    if (late == 0) late = length_ns;
    if (usual == 0) usual = blocks;
    /* A batch of many launches counts as many batches of one. */
    for (uint32_t i = 0; i < launches; i++) {
        if (count < MEAN_LAUNCHES) count++;
        late = towards(late, length_ns, PREDICTION_LAUNCHES);
        mean = towards(mean, length_ns, count);
        usual = towards(usual, blocks, PREDICTION_LAUNCHES);
    }
    STORE(duration->count, count);
    STORE(duration->blocks, usual);
    STORE(duration->mean_ns, mean);
    STORE(duration->length_ns, late);
}

void cot_record_duration(struct cot_gate *gate, const struct cot_launch_kind *kind, uint64_t length_ns,
                         uint32_t launches, uint64_t now_ns) {
    if (length_ns == 0) length_ns = 1;
    struct cot_duration *family = find_or_make(gate, kind->family, now_ns);
    record(find_or_make(gate, kind->key, now_ns), length_ns, launches, kind->blocks);
    if (family) record(family, length_ns, launches, kind->blocks);
    record(&gate->all, length_ns, launches, 0);
}
