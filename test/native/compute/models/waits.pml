/* Launches that wait, and kernels that wait for launches: two containers, two GPUs, three processes. Checked by
 * test/native/compute/waits.test.ts: every interleaving.
 *
 *   process 0  container 0, GPU 0: its kernel ends when process 1 has launched
 *   process 1  container 0, GPU 1: its kernel ends when process 2 has launched
 *   process 2  container 1, GPU 1: its kernel ends when process 0 has launched
 *
 * so no kernel ends before all three were launched, and each needs a GPU that a kernel in flight may hold.
 *
 * Held, under weak fairness: all launches go and all kernels end. The rules are those of native/compute (the table in
 * docs/develop/interposer.md). Time is abstract: `overdue` may happen at any moment at which a kernel is in flight,
 * `bound` at any at which a launch waits. With one of these defined the model is wrong on purpose, and must fail:
 *   NO_BOUND    credit that work in flight uses up is waited for without a bound
 *   NO_OVERDUE  a GPU whose holder has work in flight is not given to another container
 *   SHARED_DEPTH  a launch waits for work in flight of other processes of its container */
#define PROCESSES 3
#define FREE 255

byte holder[2] = FREE;              /* of each GPU: a container */
byte inflight[PROCESSES], launched[PROCESSES];
bool waits[PROCESSES], bound[PROCESSES];
bool overdue[PROCESSES];
byte credit[2] = 1;                 /* launches that each container's limit allows without a wait */
byte gone;

#define CONTAINER(p) (p == 2 -> 1 : 0)
#define GPU(p) (p == 0 -> 0 : 1)
#define NEXT(p) (p == 2 -> 0 : p + 1)
#define OTHERS_INFLIGHT(p) ((p != 0 && CONTAINER(0) == CONTAINER(p) && inflight[0]) || \
                            (p != 1 && CONTAINER(1) == CONTAINER(p) && inflight[1]))

/* Work of the holder that keeps the GPU: none, or only overdue work, lets it go. */
#define KEEPS(p, g, c) (GPU(p) == g && CONTAINER(p) == c && inflight[p] && !overdue[p])
#ifdef NO_OVERDUE
#define DRAINED(g) (!(GPU(0) == g && CONTAINER(0) == holder[g] && inflight[0]) && \
                    !(GPU(1) == g && CONTAINER(1) == holder[g] && inflight[1]) && \
                    !(GPU(2) == g && CONTAINER(2) == holder[g] && inflight[2]))
#else
#define DRAINED(g) (!KEEPS(0, g, holder[g]) && !KEEPS(1, g, holder[g]) && !KEEPS(2, g, holder[g]))
#endif

proctype process(byte p) {
    waits[p] = true;
    atomic {
        (holder[GPU(p)] == CONTAINER(p)
#ifdef SHARED_DEPTH
         && !OTHERS_INFLIGHT(p)
#endif
         && (credit[CONTAINER(p)] > 0 || bound[p]));
        if
        :: credit[CONTAINER(p)] > 0 -> credit[CONTAINER(p)]--
        :: else /* a debt */
        fi;
        waits[p] = false;
        launched[p] = 1;
        inflight[p] = 1;
        gone++
    }
    (launched[NEXT(p)]);             /* the kernel ends */
    inflight[p] = 0
}

/* A completion thread, and time. */
proctype overdue_of(byte p) {
    (inflight[p] || launched[p]);
    overdue[p] = true
}
proctype bound_of(byte p) {
    (waits[p] || launched[p]);
    bound[p] = true
}

/* A turn lasts until a launch was made, if one waits. */
#define UNUSED(g) ((GPU(0) == g && CONTAINER(0) == holder[g] && waits[0]) || \
                   (GPU(1) == g && CONTAINER(1) == holder[g] && waits[1]) || \
                   (GPU(2) == g && CONTAINER(2) == holder[g] && waits[2]))
#define MAY_GIVE(g) (holder[g] == FREE || (DRAINED(g) && !UNUSED(g)))

active proctype arbiter() {
    byte p = 0;
    atomic {
        do
        :: p == PROCESSES -> break
        :: else ->
           run process(p);
           run overdue_of(p);
#ifndef NO_BOUND
           run bound_of(p);
#endif
           p++
        od
    };
    do
    :: gone == PROCESSES -> break
    :: waits[0] && holder[0] != 0 && MAY_GIVE(0) -> holder[0] = 0
    :: waits[1] && holder[1] != 0 && MAY_GIVE(1) -> holder[1] = 0
    :: waits[2] && holder[1] != 1 && MAY_GIVE(1) -> holder[1] = 1
    od
}

ltl ends { <> (gone == PROCESSES && inflight[0] == 0 && inflight[1] == 0 && inflight[2] == 0) }
