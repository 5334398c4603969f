/* The protocol between a lease page's two halves (native/shared-memory/lease_page.h), with two containers on one GPU, a thread each,
 * and the agent. Checked by test/native/lease.test.ts: every interleaving, every statement in the order in which the
 * code's sequentially consistent accesses are.
 *
 * Held: work of both containers is never under way at once; terms that a thread used belong to one another and to the
 * lease that it met; no process sleeps for ever. With one of these defined the model is wrong on purpose, and must fail:
 *   LOOKS_FIRST     a thread looks at the lease before it announces
 *   AGENT_FIRST     the agent looks at what is under way before it closes
 *   NO_SECOND_LOOK  a reader does not look at the lease again after it read the terms
 *   WAKES_FIRST     the agent changes the futex word before the lease */
#define CONTAINERS 2
#define THREADS 2
#define LAUNCHES 2
#define HASTE 1    /* turns that the agent may end before anybody used them */

#define CLOSED 0
#define GRANTED 1

byte state[CONTAINERS], epoch[CONTAINERS];          /* the lease word: read and written as one */
byte limit[CONTAINERS], depth[CONTAINERS];          /* terms: each written as what belongs to that epoch */
byte wake[CONTAINERS], waiting[CONTAINERS], inflight[CONTAINERS];
byte under_way[CONTAINERS];                         /* what really runs */
bool bell;
byte ended, progress, haste = HASTE;

inline look(c) {
    do
    :: d_step { seen_state = state[c]; seen_epoch = epoch[c] };
       seen_limit = limit[c];
       seen_depth = depth[c];
#ifndef NO_SECOND_LOOK
       if
       :: d_step { state[c] == seen_state && epoch[c] == seen_epoch -> skip }; break
       :: else
       fi
#else
       break
#endif
    od
}

proctype thread(byte c) {
    byte launches = 0, seen_state, seen_epoch, seen_limit, seen_depth, seen_wake;
    bool waits = false;
    do
    :: launches == LAUNCHES -> break
    :: else ->
       seen_wake = wake[c];
#ifdef LOOKS_FIRST
       look(c);
       inflight[c]++;
#else
       inflight[c]++;
       look(c);
#endif
       if
       :: seen_state == GRANTED ->
          assert(seen_limit == seen_epoch && seen_depth == seen_epoch);
          if
          :: waits -> waiting[c]--; waits = false
          :: else
          fi;
          under_way[c]++;
          assert(under_way[1 - c] == 0);
          under_way[c]--;
          inflight[c]--;
          progress++;
          bell = true;
          launches++
       :: else ->
          inflight[c]--;
          if
          :: !waits -> waiting[c]++; waits = true
          :: else
          fi;
          bell = true;
          (wake[c] != seen_wake)                    /* the futex: sleeps only while it has that value */
       fi
    od;
    ended++;
    bell = true
}

inline grant(c) {
    d_step { state[c] = CLOSED; epoch[c]++ };
    limit[c] = epoch[c] + 1;
    depth[c] = epoch[c] + 1;
#ifdef WAKES_FIRST
    wake[c]++;
#endif
    d_step { state[c] = GRANTED; epoch[c]++ };
#ifndef WAKES_FIRST
    wake[c]++
#endif
}

/* Closes, then waits until a look from after that finds nothing under way. */
inline take_back(c) {
#ifdef AGENT_FIRST
    (inflight[c] == 0);
    d_step { state[c] = CLOSED; epoch[c]++ }
#else
    d_step { state[c] = CLOSED; epoch[c]++ };
    (inflight[c] == 0)
#endif
}

active proctype agent() {
    byte c, done;
    atomic { run thread(0); run thread(1) };
    do
    :: bell = false;                                /* heard, then looks at everything: not the other way round */
       if
       :: ended == THREADS -> break
       :: waiting[0] -> c = 0
       :: waiting[1] -> c = 1
       :: else -> c = CONTAINERS
       fi;
       if
       :: c < CONTAINERS ->
          done = progress;
          grant(c);
          if
          :: haste > 0 -> haste--
          :: haste > 0 -> haste--; grant(c); (progress != done) /* other terms for the same holder */
          :: progress != done                       /* a turn ends when a process has used it */
          fi;
          take_back(c)
       :: else -> (bell)
       fi
    od
}
