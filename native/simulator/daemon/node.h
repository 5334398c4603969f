/* The simulated node's state: GPUs, clients, blocks of memory, groups, the time line. One thread owns all of it.
 *
 * Invariants: a GPU's used_bytes is the sum over its clients' bytes[GPU][kind], the dead ones that still linger
 * included; used_bytes + reserved_bytes <= total_bytes; every block belongs to one client and is counted there once,
 * however many references other clients hold. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../protocol.h"

#define SIM_DEFAULT_CUDA 13000u
#define SIM_SAMPLES 72 /* the driver's utilization ring: 72 samples over 10 s */
#define SIM_SAMPLE_NS (10000000000ull / SIM_SAMPLES)
#define SIM_RETIRED_PIDS 128
#define SIM_MOST_LIMITS 1024
#define SIM_EVENTS 64 /* as many are kept for those who have not asked yet */

struct client;
struct group;

struct sample {
    uint64_t at_us;   /* on the wall clock, so that every answer tells the same; 0 = never written */
    pid_t pid;        /* the process that ran last when the sample was taken; 0 = none */
    uint32_t percent; /* of the sample period in which any kernel ran */
};

/* One process's queue on one GPU, as the daemon sees it. */
struct channel {
    struct sim_channel *shared;
    int memfd;
    uint64_t taken;       /* items taken off the ring */
    struct sim_item item; /* the one under way, copied out of the ring; duration_ns counts down */
    bool busy;
    uint64_t sm_ns;
};

struct gpu {
    uint32_t index;
    uint64_t context_bytes;
    uint32_t temperature_c, power_mw;
    bool lost, untold;
    struct sim_health health;
    char profiles[256]; /* of the instances that it is to be divided into: "1g.10gb+3g.40gb" */
    /* time line */
    uint64_t now_ns;        /* simulated up to here */
    struct client *running; /* whose turn it is */
    uint64_t slice_left_ns;
    uint64_t next_sample_ns, busy_in_sample_ns, energy_mj;
    pid_t last_pid;
    struct sim_counters counters;
    uint32_t active_percent[SIM_ACTIVE_COUNT]; /* while a kernel runs, as far as counters.said */
    struct sample samples[SIM_SAMPLES];
    uint32_t sample_next;
};

struct client {
    struct client *next;
    int fd;    /* -1 once the process is gone and only its memory lingers */
    int pidfd; /* -1 where the kernel has none */
    uint32_t role, types;
    uint32_t encoder_percent, decoder_percent;
    int process_state; /* ABI_PROCESS_* */
    pid_t pid;         /* in the daemon's PID namespace */
    uint64_t started_us;
    uint64_t pid_namespace;
    char command[16];
    struct group *group;
    uint64_t bytes[SIM_MAX_GPUS][SIM_KIND_COUNT];
    uint64_t peak[SIM_MAX_GPUS];
    uint64_t limit_group[SIM_MAX_GPUS]; /* whose limit it goes by; 0 = none */
    bool root;
    uint32_t contexts[SIM_MAX_GPUS];
    struct channel channel[SIM_MAX_GPUS];
    uint64_t linger_until_ns; /* when fd is -1 */
};

/* One reference holder of a block. The first holder of a block pays for it. */
struct holding {
    struct holding *next;
    struct client *client;
    uint32_t count;
};

struct block {
    uint64_t id; /* 0 = free entry; low half index + 1, high half generation */
    uint32_t gpu, kind;
    uint64_t bytes;
    uint64_t device, inode; /* of the memfd behind a SIM_KIND_VMM block */
    int shared_fd;          /* the file of a block that was shared by its id; -1 = none */
    struct holding *holders;
    uint64_t linger_until_ns; /* given back, not yet gone from the books; 0 = live */
    struct client *payer;
    bool away;      /* out of its GPU with its checkpointed process */
    bool inherited; /* by its payer, from the process that made it */
};

/* A process and its descendants, watched for the most that they held at once. */
struct group {
    struct group *next;
    pid_t root;
    uint64_t bytes[SIM_MAX_GPUS], peak[SIM_MAX_GPUS];
    uint64_t inherited[SIM_MAX_GPUS], made_peak[SIM_MAX_GPUS]; /* part of bytes; the peak of all but that part */
};

/* Of one group's memory on one GPU. */
struct limit {
    uint32_t gpu;
    uint64_t group; /* number of its folder */
    uint64_t soft, hard;
};

struct node {
    const char *dir;
    struct sim_facts *facts; /* shared with every client */
    int facts_fd;            /* read-only copy of its descriptor, for clients */
    int doorbell_fd;
    int listen_fd, epoll_fd;
    struct gpu gpus[SIM_MAX_GPUS];
    struct client *clients;
    struct group *groups;
    struct block *blocks;
    size_t block_count, block_capacity, block_free;
    uint64_t slice_ns;
    uint64_t list_cost_us;
    bool limits_ignored;
    uint64_t perturb;                     /* 0 = off, else the seed */
    struct sim_raised events[SIM_EVENTS]; /* number N at N % SIM_EVENTS */
    uint64_t late_ns;                     /* the longest that released memory stays in the books */
    bool fat_arrays;                      /* an array takes one granule more than its layout */
    uint64_t random;
    bool stopping;
    struct limit limits[SIM_MOST_LIMITS];
    size_t limit_count;
};

/* clock.c */
uint64_t node_now_ns(void);
uint64_t node_random(struct node *node);

/* node_folder.c: false when an error was printed */
bool folder_create(struct node *node);
bool folder_share_facts(struct node *node);

/* event_loop.c */
bool event_loop_open(struct node *node); /* false: errno says why */
void event_loop_run(struct node *node);  /* until SIGTERM or SIGINT */

/* gpus.c */
bool gpu_add(struct node *node, const char *text); /* false: says on stderr what is wrong with it */
bool gpus_divide(struct node *node);               /* instances come behind all GPUs; likewise */
void gpus_perturb(struct node *node);
uint64_t gpu_usable(const struct node *node, uint32_t gpu);

/* books.c: results are abi_result values */
int books_take(struct node *node, struct client *client, uint32_t gpu, uint64_t bytes, uint32_t kind,
               struct block **out);
struct block *books_find(struct node *node, uint64_t id);
int books_keep(struct client *client, struct block *block);
int books_give(struct node *node, struct client *client, struct block *block);
int books_share(struct client *client, struct block *block, int fd); /* keeps a copy of fd */
int books_open(struct client *client, struct block *block);
int books_context(struct node *node, struct client *client, uint32_t gpu, struct block **out);
struct block *books_find_file(struct node *node, uint64_t device, uint64_t inode);
void books_bury(struct node *node, struct client *client); /* the process is gone: all its references go */
uint64_t books_expire(struct node *node, uint64_t now_ns); /* returns when the next thing expires; UINT64_MAX = never */
/* A checkpoint takes all that a process holds out of its GPUs; a restore brings all of it back, or nothing. */
int books_take_away(struct node *node, struct client *client);
int books_bring_back(struct node *node, struct client *client);

/* limits.c */
/* What the client may still take as far as limits go, and the limit itself; UINT64_MAX: none. */
uint64_t limits_room(struct node *node, struct client *client, uint32_t gpu, uint64_t *hard);
void limits_answer(struct node *node, const struct client *caller, const struct sim_request *request,
                   struct sim_reply *reply);

/* timeline.c */
void timeline_advance(struct node *node, struct gpu *gpu, uint64_t now_ns);
uint64_t timeline_next_wake(struct node *node, struct gpu *gpu); /* UINT64_MAX: nothing to do until the doorbell */
void timeline_forget(struct gpu *gpu, struct client *client);

/* clients.c: the table of clients */
void clients_accept(struct node *node);
void client_free(struct node *node, struct client *client);
uint32_t pid_seen_by(const struct client *caller, const struct client *client); /* 0 = not visible */
struct group *group_of(struct node *node, pid_t pid);                           /* the watched group of a process */
uint64_t client_bytes(const struct client *client, uint32_t gpu, bool with_managed);
int channel_open(struct channel *channel); /* the new channel's file; -1: there is one already, or no memory */
void channel_close(struct channel *channel);

/* dispatch.c */
void client_readable(struct node *node, struct client *client);
void client_gone(struct node *node, struct client *client);

/* nvml_answers.c and control_answers.c: requests of the NVML and control roles; fill the payload and the reply */
void answer_nvml(struct node *node, struct client *caller, const struct sim_request *request, struct sim_reply *reply,
                 char *payload);
void answer_control(struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload);

/* counters.c */
void counters_pass(struct gpu *gpu, uint64_t ns, const struct sim_item *kernel, uint32_t sm_count);
bool counters_set(struct gpu *gpu, uint64_t state, uint64_t value); /* false: no such state, or no percent */
void counters_answer(const struct gpu *gpu, struct sim_reply *reply, char *payload);

/* health.c */
void health_raise(struct node *node, uint32_t gpu, uint64_t xid);
bool health_set(struct gpu *gpu, uint64_t state, uint64_t value); /* false: no such state */
void health_answer(const struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload);
