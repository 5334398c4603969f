/* Containers with several cards. Their programs may need all of them at once (a collective's kernels wait for one
 * another), so they get their cards together: taken in the order of cards, kept without use until the last one is
 * there, given back together. Taking in one order means that no circle of waits can close. */
#include "internal.h"

static struct cot_member *on_card(struct cot_arbiter *arbiter, uint32_t at, uint32_t container) {
    struct cot_card *card = &arbiter->cards[at];
    for (uint32_t i = 0; i < card->count; i++) {
        struct cot_member *member = &card->members[i];
        if (member->present && member->container == container) return member;
    }
    return NULL;
}

static bool holds(struct cot_arbiter *arbiter, uint32_t at, const struct cot_member *member) {
    const struct cot_card *card = &arbiter->cards[at];
    return card->phase == COT_PHASE_HELD && &card->members[card->holder] == member;
}

/* After a container joined or left a card. */
void cot_count_cards(struct cot_arbiter *arbiter, uint32_t container) {
    uint32_t cards = 0;
    for (uint32_t at = 0; at < COT_ARBITER_CARDS; at++) cards += on_card(arbiter, at, container) != NULL;
    for (uint32_t at = 0; at < COT_ARBITER_CARDS; at++) {
        struct cot_member *there = on_card(arbiter, at, container);
        if (there) there->gang = cards > 1;
    }
}

/* Wanting one card is wanting all. */
bool cot_container_wants(struct cot_arbiter *arbiter, uint32_t card, const struct cot_member *member) {
    if (member->share.native) return false;
    if (member->digest.waiting > 0) return true;
    if (!member->gang) return false;
    for (uint32_t at = 0; at < COT_ARBITER_CARDS; at++) {
        struct cot_member *there = at == card ? NULL : on_card(arbiter, at, member->container);
        if (there && !there->share.native && there->digest.waiting > 0) return true;
    }
    return false;
}

bool cot_may_acquire(struct cot_arbiter *arbiter, uint32_t card, const struct cot_member *member) {
    if (!member->gang) return true;
    for (uint32_t at = 0; at < card; at++) {
        struct cot_member *there = on_card(arbiter, at, member->container);
        if (there && !there->share.native && !holds(arbiter, at, there)) return false;
    }
    return true;
}

/* Whether its last card has been taken. */
bool cot_has_all(struct cot_arbiter *arbiter, const struct cot_member *member) {
    return cot_may_acquire(arbiter, COT_ARBITER_CARDS, member);
}

void cot_each_card(struct cot_arbiter *arbiter, struct cot_member *member, cot_visit visit) {
    if (!member->gang) {
        for (uint32_t at = 0; at < COT_ARBITER_CARDS; at++) {
            struct cot_card *card = &arbiter->cards[at];
            if (member >= card->members && member < card->members + COT_ARBITER_MEMBERS) visit(arbiter, card, member);
        }
        return;
    }
    for (uint32_t at = 0; at < COT_ARBITER_CARDS; at++) {
        struct cot_member *there = on_card(arbiter, at, member->container);
        if (there && !there->share.native) visit(arbiter, &arbiter->cards[at], there);
    }
}
