/* A random program of several processes in one grant, and its account: what a step is, what a process answers, and what
 * they share. Every step follows from the seed and its own number alone, and means something whatever became of the
 * steps before it: so any part of a program is a program, and a failure can be shrunk.
 *
 * main.c conducts the processes of processes.c, check.c compares the usage ledger with the GPUs, worker.c and the verbs
 * are what each process does. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../../../native/abi/cuda.h"
#include "../../../native/abi/cuda_arrays.h"
#include "../../../native/simulator/client/client.h"

#define GPUS 2u
#define FABRIC_GPU 1 /* test/support/native/random-programs.ts */
#define PROCESSES 6u
#define LANES 3u
#define LETTERS 48u

/* ---- what all processes share: a file ---- */

enum letter_kind { NO_LETTER, HANDLE_LETTER, FABRIC_LETTER, IPC_LETTER, POOL_LETTER };
/* Something that one process gives to the others. */
struct letter {
    _Atomic uint32_t version; /* odd while it is written, for ever if its writer is killed meanwhile */
    uint32_t kind;
    pid_t pid;
    int fd; /* in that process */
    uint64_t bytes;
    unsigned char text[128];
};
struct shared {
    uint64_t seed;
    uint64_t grant[GPUS], context[GPUS], granule[GPUS];
    uint64_t left[GPUS];          /* left of the grant when the step began; 0 where that is not known */
    _Atomic uint32_t wrong_forks; /* forked children that had CUDA */
    bool at_once;                 /* a burst: the other processes go on meanwhile */
    uint64_t verbs;               /* a bit for each that is done; the others are left out */
    struct letter letters[LETTERS];
};

/* ---- a step ---- */

struct step {
    uint64_t number;
    uint32_t process, verb;
    uint64_t random[6];
    uint32_t fault_at; /* the driver's call counted from the step's first one; 0 = none */
    uint32_t fault;    /* SIM_PLAN_* */
    int32_t fault_result;
};
struct step step_of(uint64_t seed, uint64_t number);
uint64_t mix_of(uint64_t seed, uint64_t number, uint64_t which);

/* What only the conductor does comes first. */
enum { VERB_KILL, VERB_BEAR, VERB_EXEC, VERB_EXIT, VERB_FIRST };

/* ---- what the conductor asks, and what a process answers ---- */

enum order { DO_STEP, DO_BURST, DO_SETTLE };
struct request {
    uint32_t order;
    struct step step;
    uint64_t first, count; /* DO_BURST: these steps, shared out among the lanes */
    uint32_t lanes;
    char socket[96]; /* VERB_BEAR: where the child reports */
};
struct answer {
    int32_t result;
    bool refused;  /* out of memory that was not injected: `need` bytes of `gpu` were asked for */
    bool unjudged; /* whether that was right cannot be seen from outside */
    bool stale;    /* memory may have been given back since the ledger was last updated */
    bool away;     /* checkpointed */
    uint32_t gpu;
    uint64_t need[GPUS];
    bool informed; /* cuMemGetInfo said so of `gpu` */
    uint64_t free_bytes, total_bytes;
    uint64_t steps; /* done, of a burst */
    uint64_t refusals;
    pid_t born;
};

/* ---- worker.c ---- */
int worker_main(int argc, char **argv);

/* ---- verbs ---- */
struct lane;
struct verb {
    const char *name;
    unsigned weight;
    bool alone;     /* only where the process has one lane */
    bool unnoticed; /* takes memory in a way that is charged at its end only: nothing happens within */
    void (*run)(struct lane *lane, const struct step *step);
};
extern const struct verb verbs[];
extern const unsigned verb_count;
const char *verb_name(uint32_t verb);

/* ---- check.c ---- */
struct subject {
    pid_t pid;   /* 0: none */
    bool stale;  /* it may hold less than it is charged for */
    bool unsure; /* the driver did not answer it: it may be charged for too much */
};
bool check_open(const char *node, const char *grant, pid_t root, const uint64_t limits[GPUS]);
/* Reads what is in use on the GPUs, then the ledger; false: they could not be read. */
bool check_read(void);
/* NULL: all is as it must be; else what is not. */
const char *check_all(const struct subject *subjects, unsigned count);
/* What the container's processes are to pay, all of them or one, as last read. */
uint64_t check_charged(uint32_t gpu, pid_t pid);
/* Bytes that the container's processes have exported: they may be charged after their owner gave them up. */
uint64_t check_exported(uint32_t gpu);
