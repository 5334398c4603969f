/* Policies: turn the requests of a GPU's containers into a guarantee and a limit for each. */
#include "arbiter.h"

#define LEAST_PPM 10000u /* a container without a request must not starve */

static uint32_t at_most(uint64_t ppm) {
    return ppm > COT_PPM ? COT_PPM : (uint32_t)ppm;
}

void cot_policy_shares(uint32_t instances, const struct cot_request *requests, uint32_t count,
                       struct cot_share *shares) {
    uint64_t weights = 0, asked = 0, sum = 0;
    uint32_t silent = 0;
    for (uint32_t i = 0; i < count; i++) {
        weights += requests[i].weight ? requests[i].weight : 1;
        asked += requests[i].share_ppm;
        silent += requests[i].share_ppm == 0;
    }
    /* Containers that request no amount share what is not requested. */
    uint64_t rest = asked < COT_PPM && silent ? (COT_PPM - asked) / silent : 0;
    if (instances < count) instances = count;
    for (uint32_t i = 0; i < count; i++) {
        const struct cot_request *request = &requests[i];
        enum cot_policy policy = request->policy;
        uint64_t guarantee = request->share_ppm ? request->share_ppm : rest > LEAST_PPM ? rest : LEAST_PPM;
        if (policy == COT_POLICY_AVERAGE) guarantee = COT_PPM / instances;
        if (policy == COT_POLICY_PREEMPTIVE) guarantee = COT_PPM / count;
        if (policy == COT_POLICY_WEIGHTED)
            guarantee = COT_PPM * (uint64_t)(request->weight ? request->weight : 1) / weights;
        guarantee = at_most(guarantee ? guarantee : 1);
        bool lends = policy == COT_POLICY_SOFT || policy == COT_POLICY_WEIGHTED || policy == COT_POLICY_PREEMPTIVE;
        uint64_t limit = lends ? COT_PPM : guarantee;
        bool amounts = policy == COT_POLICY_FIXED || policy == COT_POLICY_SOFT;
        if (amounts && !request->share_ppm) limit = COT_PPM;
        if (amounts && request->limit_ppm) limit = request->limit_ppm > guarantee ? request->limit_ppm : guarantee;
        if (request->high) limit = request->high_cap_ppm ? request->high_cap_ppm : COT_PPM;
        shares[i] = (struct cot_share){
            .guarantee_ppm = (uint32_t)guarantee,
            .limit_ppm = at_most(limit),
            .high = request->high,
            .native = policy == COT_POLICY_NATIVE,
        };
        sum += guarantee;
    }
    for (uint32_t i = 0; sum > COT_PPM && i < count; i++) {
        uint64_t scaled = shares[i].guarantee_ppm * (uint64_t)COT_PPM / sum;
        shares[i].guarantee_ppm = scaled ? (uint32_t)scaled : 1;
    }
}
