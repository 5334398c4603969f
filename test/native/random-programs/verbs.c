/* The table of verbs: how often each is drawn, and steps out of numbers. */
#include "worker.h"

const struct verb verbs[] = {
    {"alloc", 10, false, false, verb_alloc},
    {"pitch", 3, false, false, verb_pitch},
    {"managed", 4, false, false, verb_managed},
    {"free", 14, false, false, verb_free},
    {"free-ordered", 3, false, false, verb_free_ordered},
    {"free-wrong", 1, false, false, verb_free_wrong},
    {"info", 4, false, false, verb_info},
    {"share", 2, false, false, verb_share},
    {"open", 2, false, false, verb_open},
    {"pool-alloc", 8, false, false, verb_pool_alloc},
    {"pool-free", 6, false, false, verb_pool_free},
    {"pool-create", 3, false, false, verb_pool_create},
    {"pool-destroy", 2, false, false, verb_pool_destroy},
    {"pool-set", 2, false, false, verb_pool_set},
    {"pool-trim", 2, false, false, verb_pool_trim},
    {"pool-share", 2, false, false, verb_pool_share},
    {"pool-open", 2, false, false, verb_pool_open},
    {"synchronize", 3, false, false, verb_synchronize},
    {"stream", 3, false, false, verb_stream},
    {"physical", 6, false, false, verb_physical},
    {"map", 7, false, false, verb_map},
    {"unmap", 6, false, false, verb_unmap},
    {"release", 6, false, false, verb_release},
    {"retain", 2, false, false, verb_retain},
    {"export", 3, false, false, verb_export},
    {"import", 3, false, false, verb_import},
    {"import-own", 1, false, false, verb_import_own},
    {"array", 8, false, false, verb_array},
    {"array-destroy", 5, false, false, verb_array_destroy},
    {"tiles", 6, false, false, verb_tiles},
    {"external", 3, false, false, verb_external},
    {"external-of", 2, false, false, verb_external_of},
    {"external-destroy", 3, false, false, verb_external_destroy},
    {"external-view", 1, false, false, verb_external_view},
    {"graph", 5, false, false, verb_graph},
    {"capture", 2, false, false, verb_capture},
    {"instantiate", 6, false, false, verb_instantiate},
    {"launch", 9, false, false, verb_launch},
    {"graph-destroy", 6, false, false, verb_graph_destroy},
    {"graph-free", 3, false, false, verb_graph_free},
    {"graph-trim", 2, false, false, verb_graph_trim},
    {"context", 3, false, false, verb_context},
    {"primary", 6, false, false, verb_primary},
    {"hidden", 1, true, true, verb_hidden},
    {"context-end", 4, false, false, verb_context_end},
    {"reset", 1, true, false, verb_reset},
    {"enter", 4, false, false, verb_enter},
    {"green", 2, false, false, verb_green},
    {"limit", 4, false, false, verb_limit},
    {"checkpoint", 3, true, false, verb_checkpoint},
    {"module", 2, false, false, verb_module},
    {"fork", 1, true, false, verb_fork},
};
const unsigned verb_count = sizeof verbs / sizeof *verbs;

static const char *const CONDUCTED[VERB_FIRST] = {"kill", "bear", "exec", "exit"};
#define EACH 1 /* weight of those */

const char *verb_name(uint32_t verb) {
    return verb < VERB_FIRST ? CONDUCTED[verb] : verbs[verb - VERB_FIRST].name;
}

uint64_t mix_of(uint64_t seed, uint64_t number, uint64_t which) {
    uint64_t mix =
        seed * 0x9e3779b97f4a7c15ull ^ (number + 1) * 0xbf58476d1ce4e5b9ull ^ (which + 1) * 0x94d049bb133111ebull;
    for (int i = 0; i < 3; i++) {
        mix ^= mix >> 31;
        mix *= 0xd6e8feb86659fd93ull;
    }
    return mix ^ mix >> 32;
}

struct step step_of(uint64_t seed, uint64_t number) {
    static const int RESULTS[] = {ABI_ERROR_OUT_OF_MEMORY, ABI_ERROR_INVALID_VALUE,   ABI_ERROR_ILLEGAL_ADDRESS,
                                  ABI_ERROR_UNKNOWN,       ABI_ERROR_INVALID_CONTEXT, ABI_ERROR_NOT_SUPPORTED};
    struct step step = {.number = number, .process = (uint32_t)(mix_of(seed, number, 0) % PROCESSES)};
    unsigned sum = VERB_FIRST * EACH;
    for (unsigned i = 0; i < verb_count; i++) sum += verbs[i].weight;
    uint64_t drawn = mix_of(seed, number, 1) % sum, fault = mix_of(seed, number, 2);
    while (step.verb < VERB_FIRST && drawn >= EACH) {
        drawn -= EACH;
        step.verb++;
    }
    while (step.verb >= VERB_FIRST && drawn >= verbs[step.verb - VERB_FIRST].weight)
        drawn -= verbs[step.verb++ - VERB_FIRST].weight;
    for (unsigned i = 0; i < 6; i++) step.random[i] = mix_of(seed, number, 3 + i);
    unsigned kind = fault % 100;
    bool unnoticed = step.verb >= VERB_FIRST && verbs[step.verb - VERB_FIRST].unnoticed;
    if (kind < 24 && !unnoticed) {
        step.fault = kind < 12 ? SIM_PLAN_FAIL : kind < 23 ? SIM_PLAN_PAUSE : SIM_PLAN_DIE;
        step.fault_at = 1 + (uint32_t)(fault / 100 % (fault / 1000 % 4 ? 6 : 24));
        step.fault_result = RESULTS[fault / 4000 % 6];
    }
    return step;
}
