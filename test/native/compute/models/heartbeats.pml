/* An arbiter that stops and comes back, or never does: two containers on one GPU, the second with two processes.
 * Checked by test/native/compute/waits.test.ts: every interleaving.
 *
 * A process announces its launch, then reads the heartbeat. If that is stale, it goes by its container's own credit;
 * else by the lease. An arbiter that is back beats, closes the lease that it finds open, and then reads what is in
 * flight: what was launched without it drains before it grants a turn (lease_page.h, arbiter.h; that it waits for no
 * longer than a bound is left out).
 *
 * Held: once it has granted a turn again, no process launches by the rule for its absence, and nothing of another
 * container is in flight. Under weak fairness all launches are made, whether it comes back or not. Time is abstract: it
 * may be away whenever it waits for nothing. With one of these defined the model is wrong on purpose, and must fail:
 *   READ_FIRST   a process reads the heartbeat before it announces its launch
 *   BEAT_LATE    an arbiter that is back reads what is in flight before it beats
 *   NO_CREDIT    a process waits for the lease alone
 *   NO_DRAIN     an arbiter that is back grants a turn without waiting for what was launched without it */
#define PROCESSES 3
#define LAUNCHES 2
#define NONE 255

bool stale;                   /* the heartbeat */
bool lease[2];
byte announced[PROCESSES], running[PROCESSES], made[PROCESSES];
byte count[2];                /* launches of each container */
bool settled;                 /* a turn was granted since it was away last */
byte done;

#define CONTAINER(p) (p == 0 -> 0 : 1)
#define DRAINED (announced[0] == 0 && announced[1] == 0 && announced[2] == 0)
#define IN_FLIGHT(c) (c == 0 -> announced[0] > 0 : announced[1] > 0 || announced[2] > 0)
#define RUNNING(c) (c == 0 -> running[0] > 0 : running[1] > 0 || running[2] > 0)
#define WANTS(c) (c == 0 -> made[0] < LAUNCHES : made[1] < LAUNCHES || made[2] < LAUNCHES)

proctype process(byte p) {
    bool away;
    do
    :: made[p] == LAUNCHES -> break
    :: else ->
#ifdef READ_FIRST
       away = stale;
       announced[p] = 1;
#else
       announced[p] = 1;
       away = stale;
#endif
#ifdef NO_CREDIT
       away = false;
#endif
       if
       :: away ->
          assert(!settled);
          running[p] = 1
       :: else ->
          if
          :: atomic { lease[CONTAINER(p)] -> running[p] = 1; assert(!settled || !RUNNING(1 - CONTAINER(p))) }
          :: !lease[CONTAINER(p)] -> skip
          fi
       fi;
       if
       :: running[p] -> atomic { running[p] = 0; made[p]++; count[CONTAINER(p)]++; announced[p] = 0 }
       :: else ->
          announced[p] = 0;
#ifdef NO_CREDIT
          (lease[CONTAINER(p)])
#else
          (lease[CONTAINER(p)] || stale)
#endif
       fi
    od;
    done++
}

active proctype arbiter() {
    byte holder = NONE, next, before;
    byte absences = 2;
    atomic { run process(0); run process(1); run process(2) };
    do
    :: done == PROCESSES -> break
    /* Another container's turn: the lease of the one before is closed first. */
    :: done < PROCESSES ->
       if
       :: holder != 0 && WANTS(0) -> next = 0
       :: holder != 1 && WANTS(1) -> next = 1
       :: else -> next = holder
       fi;
       if
       :: next != holder && holder != NONE ->
          lease[holder] = false;
          !IN_FLIGHT(holder)
       :: else
       fi;
       holder = next;
       if
       :: holder != NONE -> before = count[holder]; lease[holder] = true; settled = true
       :: else
       fi;
       /* The turn lasts until a launch was made, if there is one to make. */
       if
       :: holder == NONE || !WANTS(holder) -> skip
       :: absences > 0 ->
          absences--;
          settled = false;
          stale = true;
          if
          :: true -> goto lost
          :: true -> skip
          fi;
#ifdef BEAT_LATE
          if
          :: holder != NONE -> lease[holder] = false
          :: else
          fi;
          DRAINED;
          stale = false
#else
          stale = false;
          if
          :: holder != NONE -> lease[holder] = false
          :: else
          fi;
#ifndef NO_DRAIN
          DRAINED
#else
          skip
#endif
#endif
          ;
          holder = NONE
       :: holder != NONE && count[holder] != before -> skip
       fi
    od;
lost:
    skip
}

ltl ends { <> (done == PROCESSES) }
