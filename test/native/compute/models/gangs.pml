/* Turns of gangs: two containers that need both GPUs at once, and one that needs GPU 1. Checked by
 * test/native/compute/waits.test.ts: every interleaving.
 *
 * The work of a gang on GPU 0 ends when it was launched on GPU 1 too, so it needs both. A container has ROUNDS turns, or
 * stops waiting at any moment before one, as it is killed. Held, under weak fairness: all of them come to their end.
 *
 * The rules are those of native/compute/arbiter (multi_gpu.c, scheduler.c, selection.c): all GPUs of a gang are claimed
 * at once, each is kept unused until the last one is there, and the claim ends with the gang's wish. With one of these
 * defined the model is wrong on purpose, and must fail:
 *   PIECEMEAL  a gang takes one GPU after the other
 *   KEPT       a claim stays when its gang stops waiting */
#define ROUNDS 2
#define NONE 0
#define CONTAINERS 3                       /* 1 and 2 are gangs, 3 is alone on GPU 1 */
#define ON(c, g) (c != 3 || g == 1)

byte holder[2], claimed[2];                /* of each GPU: a container, or NONE */
bool reserved[2];                          /* the holder may not launch yet */
bool waits[CONTAINERS + 1];
byte inflight[2], ended;
byte last;                                 /* had the last turn: others come first */

#define MAY_HAVE(c, g) (!ON(c, g) || claimed[g] == NONE || claimed[g] == c)
#define HAS(c, g) (!ON(c, g) || holder[g] == c)
#define OPEN(c, g) (holder[g] == c && !reserved[g])
#define OTHERS_WAIT(c) ((c != 1 && waits[1]) || (c != 2 && waits[2]) || (c != 3 && waits[3]))
#define TURN_OF(c) (last != c || !OTHERS_WAIT(c))

proctype container(byte c) {
    byte turns = 0;
    bool dies;                             /* while it waits */
    if :: dies = true :: dies = false fi;
    do
    :: turns == ROUNDS -> break
    :: else ->
        waits[c] = true;
        if
        :: c != 3 ->
            if
            :: OPEN(c, 0) -> inflight[0] = c; OPEN(c, 1) -> inflight[1] = c
            :: atomic { dies && !OPEN(c, 0) && !OPEN(c, 1) -> waits[c] = false; turns = ROUNDS - 1 }
            fi
        :: else -> OPEN(c, 1) -> inflight[1] = c
        fi;
        atomic {
            waits[c] = false;
            if :: inflight[0] == c -> inflight[0] = NONE :: else fi;
            if :: inflight[1] == c -> inflight[1] = NONE :: else fi
        };
        turns++
    od;
    ended++
}

inline release(g) {
    last = holder[g];
    holder[g] = NONE;
    reserved[g] = false
}

inline drop(c) {
    if :: claimed[0] == c -> claimed[0] = NONE; if :: reserved[0] -> release(0) :: else fi :: else fi;
    if :: claimed[1] == c -> claimed[1] = NONE; if :: reserved[1] -> release(1) :: else fi :: else fi
}

/* All that it needs is claimed, or nothing. */
inline claim(c) {
    if :: ON(c, 0) -> claimed[0] = c :: else fi;
    claimed[1] = c
}

#define MAY_CLAIM(c) (waits[c] && TURN_OF(c) && MAY_HAVE(c, 0) && MAY_HAVE(c, 1) && claimed[1] != c && \
                      holder[1] != c)
#ifdef PIECEMEAL
#define MAY_TAKE(c, g) (waits[c] && ON(c, g) && holder[g] == NONE)
#else
#define MAY_TAKE(c, g) (waits[c] && ON(c, g) && holder[g] == NONE && claimed[g] == c)
#endif

proctype arbiter_of(byte c) {
    do
    :: ended == CONTAINERS -> break
#ifndef PIECEMEAL
    :: atomic { MAY_CLAIM(c) -> claim(c) }
#endif
    :: atomic { MAY_TAKE(c, 0) -> holder[0] = c; reserved[0] = true }
    :: atomic { MAY_TAKE(c, 1) -> holder[1] = c; reserved[1] = true }
    :: atomic {
           HAS(c, 0) && HAS(c, 1) && reserved[1] && holder[1] == c ->
           if :: holder[0] == c -> reserved[0] = false; claimed[0] = NONE :: else fi;
           reserved[1] = false;
           claimed[1] = NONE
       }
#ifndef KEPT
    :: atomic { !waits[c] && (claimed[0] == c || claimed[1] == c) -> drop(c) }
#endif
    /* The turn is over, on all of its GPUs: nothing of it waits or is in flight. */
    :: atomic {
           !waits[c] && holder[1] == c && !reserved[1] && inflight[0] != c && inflight[1] != c ->
           if :: holder[0] == c -> release(0) :: else fi;
           release(1)
       }
#ifdef PIECEMEAL
    :: atomic { !waits[c] && holder[0] == c && holder[1] != c -> release(0) }
    :: atomic { !waits[c] && holder[1] == c && reserved[1] -> release(1) }
#endif
    od
}

init {
    atomic {
        byte c;
        for (c : 1 .. CONTAINERS) {
            run container(c);
            run arbiter_of(c)
        }
    }
}

ltl ends { <> (ended == CONTAINERS) }
