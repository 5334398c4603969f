/* Virtual time: a heap of events, run in order of time and then of insertion; and random numbers from seeds. */
#include <math.h>
#include <stdlib.h>

#include "lab.h"

struct event {
    uint64_t time_ns, order, number;
    handler run;
    void *about;
};
static struct event *heap;
static uint64_t count, capacity, order;
uint64_t now_ns;

static bool before(const struct event *a, const struct event *b) {
    return a->time_ns != b->time_ns ? a->time_ns < b->time_ns : a->order < b->order;
}

void at(uint64_t time_ns, handler run, void *about, uint64_t number) {
    if (count == capacity) {
        capacity = capacity ? 2 * capacity : 4096;
        struct event *larger = realloc(heap, capacity * sizeof *heap);
        if (!larger) abort();
        heap = larger;
    }
    struct event event = {time_ns > now_ns ? time_ns : now_ns, order++, number, run, about};
    uint64_t i = count++;
    for (; i > 0 && before(&event, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = event;
}

static struct event take(void) {
    struct event first = heap[0], last = heap[--count];
    uint64_t i = 0;
    for (;;) {
        uint64_t child = 2 * i + 1;
        if (child >= count) break;
        if (child + 1 < count && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

void run_until(uint64_t end_ns) {
    while (count > 0 && heap[0].time_ns <= end_ns) {
        struct event event = take();
        now_ns = event.time_ns;
        event.run(event.about, event.number);
    }
    now_ns = end_ns;
}

static uint64_t next(struct random *random) {
    uint64_t z = (random->state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
double uniform(struct random *random) {
    return (double)((next(random) >> 11) + 1) / 9007199254740993.0;
}
double normal(struct random *random) {
    double radius = sqrt(-2 * log(uniform(random)));
    return radius * cos(6.283185307179586 * uniform(random));
}
uint64_t exponential(struct random *random, double mean) {
    return (uint64_t)(-mean * log(uniform(random)));
}
