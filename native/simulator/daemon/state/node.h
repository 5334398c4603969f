/* The state of a simulated node: GPUs, clients, blocks of memory, groups, the time line. One thread owns all of it.
 *
 * Invariants: a GPU's used_bytes is the sum of its clients' bytes[GPU][kind], including clients that have ended and
 * whose memory is not released yet; used_bytes + reserved_bytes <= total_bytes; every block has one owner and is
 * counted there once, however many references other clients have. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "../../protocol.h"

#define SIM_DEFAULT_CUDA 13000u
#define SIM_SAMPLES 72 /* the driver's utilization ring: 72 samples over 10 s */
#define SIM_SAMPLE_NS (10000000000ull / SIM_SAMPLES)
#define SIM_MAX_LIMITS 1024
#define SIM_EVENTS 64 /* kept for clients that have not read them yet */

struct client;
struct group;

struct sample {
    uint64_t at_us;   /* wall clock, computed once; 0 = never written */
    pid_t pid;        /* the process that ran last when the sample was taken; 0 = none */
    uint32_t percent; /* of the sample period in which any kernel ran */
};

/* One process's work on one GPU, as the daemon sees it. */
struct channel {
    struct sim_channel *shared;
    int memfd;
    struct queues *queues; /* what was taken off the ring and is not complete (queues.h) */
    uint64_t sm_ns;
};

struct gpu {
    uint32_t index;
    uint64_t context_bytes;
    uint32_t temperature_c, power_mw;
    bool lost, hides_process_memory;
    struct sim_health health;
    char profiles[256]; /* of the MIG instances to create: "1g.10gb+3g.40gb" */
    /* time line */
    uint64_t now_ns;        /* simulated up to this time */
    struct client *running; /* the client with the current time slice */
    uint64_t slice_left_ns;
    uint64_t next_sample_ns, busy_in_sample_ns, energy_mj;
    pid_t last_pid;
    struct sim_counters counters;
    uint32_t active_percent[SIM_ACTIVE_COUNT]; /* while a kernel runs, where counters.configured has its bit */
    struct sample samples[SIM_SAMPLES];
    uint32_t sample_next;
};

struct client {
    struct client *next;
    int fd; /* -1 once the process has ended and only its memory remains */
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
    uint64_t limit_group[SIM_MAX_GPUS]; /* inode of the cgroup whose limit applies; 0 = none */
    bool root;
    uint32_t contexts[SIM_MAX_GPUS];
    struct channel channel[SIM_MAX_GPUS];
};

/* References of one client to a block. The first client that has any owns the block. */
struct reference {
    struct reference *next;
    struct client *client;
    uint32_t count;
};

struct block {
    uint64_t id; /* 0 = free entry; low half index + 1, high half generation */
    uint32_t gpu, kind;
    uint64_t bytes;
    uint64_t device, inode; /* of the memfd behind a SIM_KIND_VMM block */
    int shared_fd;          /* file of a block shared by its ID; -1 = none */
    struct reference *references;
    uint64_t expires_ns; /* released, but still counted until then; 0 = live */
    struct client *owner;
    bool checkpointed; /* out of its GPU while its process is checkpointed */
    bool inherited;    /* its owner did not ask for it: it got it from the process that did, or with a green context */
};

/* A process and its descendants, watched for their peak memory. */
struct group {
    struct group *next;
    pid_t root;
    uint64_t bytes[SIM_MAX_GPUS], peak[SIM_MAX_GPUS];
    uint64_t inherited[SIM_MAX_GPUS], own_peak[SIM_MAX_GPUS]; /* inherited part of bytes; peak without it */
};

/* Memory limit of one cgroup on one GPU. */
struct limit {
    uint32_t gpu;
    uint64_t group; /* inode of its folder */
    uint64_t soft, hard;
};

struct node {
    const char *dir;
    struct sim_facts *facts; /* shared with every client */
    int facts_fd;            /* read-only descriptor of it, for clients */
    int doorbell_fd;
    int listen_fd, epoll_fd;
    struct gpu gpus[SIM_MAX_GPUS];
    struct client *clients;
    struct group *groups;
    struct block *blocks;
    size_t block_count, block_capacity, block_free;
    uint64_t slice_ns;
    uint64_t process_list_delay_us;
    bool ignore_limits;
    uint64_t perturb;                           /* 0 = off, else the seed */
    struct sim_driver_event events[SIM_EVENTS]; /* event N at N % SIM_EVENTS */
    uint64_t max_release_delay_ns;              /* longest time between a release and its effect */
    bool padded_arrays;                         /* an array takes one granule more than its layout */
    uint64_t random;
    bool stopping;
    struct limit limits[SIM_MAX_LIMITS];
    size_t limit_count;
    uint32_t flags[SIM_FLAGS]; /* that kernels set and wait for */
    bool flags_changed;        /* kernels on other GPUs may wait for them */
};

/* clock.c */
uint64_t node_now_ns(void);  /* monotonic */
uint64_t node_wall_us(void); /* since 1970 */
uint64_t node_random(struct node *node);

/* gpus.c */
bool gpu_add(struct node *node, const char *text); /* false: an error was printed */
bool gpus_finish(struct node *node);               /* instances come after all GPUs; likewise */
void gpus_perturb(struct node *node);
uint64_t gpu_usable(const struct node *node, uint32_t gpu);

/* memory_accounting.c: results are abi_result values */
int memory_allocate(struct node *node, struct client *client, uint32_t gpu, uint64_t bytes, uint32_t kind,
                    struct block **out);
struct block *memory_find(struct node *node, uint64_t id);
int memory_retain(struct client *client, struct block *block);
int memory_release(struct node *node, struct client *client, struct block *block);
int memory_share(struct client *client, struct block *block, int fd); /* keeps a duplicate of fd */
/* A block without bytes, whose file other processes may open. */
int memory_share_file(struct node *node, struct client *client, uint32_t gpu, int fd, struct block **out);
int memory_open_shared(struct client *client, struct block *block, bool by_itself); /* by the process that shared it */
int memory_new_context(struct node *node, struct client *client, uint32_t gpu, struct block **out);
struct block *memory_find_file(struct node *node, uint64_t device, uint64_t inode);
void memory_release_all(struct node *node, struct client *client); /* the process has ended: drops all its references */
uint64_t memory_expire(struct node *node,
                       uint64_t now_ns); /* returns when the next block expires; UINT64_MAX = never */
/* A checkpoint takes all memory of a process out of its GPUs; a restore brings all of it back, or nothing. */
int memory_checkpoint(struct node *node, struct client *client);
int memory_restore(struct node *node, struct client *client);

/* The payload of a reply is one record. */
static inline void reply_record(struct sim_reply *reply, char *payload, const void *record, size_t bytes) {
    memcpy(payload, record, bytes);
    reply->payload_bytes = (uint32_t)bytes;
}

/* cgroup_limits.c */
/* How much the client may still allocate under its limit, and the limit itself; UINT64_MAX: no limit. */
uint64_t limits_available(struct node *node, struct client *client, uint32_t gpu, uint64_t *hard);
void answer_limits(struct node *node, const struct client *caller, const struct sim_request *request,
                   struct sim_reply *reply);

/* timeline.c */
void timeline_advance(struct node *node, struct gpu *gpu, uint64_t now_ns);
uint64_t timeline_next_wake(struct node *node,
                            struct gpu *gpu); /* UINT64_MAX: nothing to do until the doorbell rings */
void timeline_remove(struct gpu *gpu, struct client *client);

/* clients.c: the table of clients */
void clients_accept(struct node *node);
void client_free(struct node *node, struct client *client);
uint32_t pid_seen_by(const struct client *caller, const struct client *client); /* 0 = not visible */
struct group *group_of(struct node *node, pid_t pid);                           /* the watched group of a process */
uint64_t client_bytes(const struct client *client, uint32_t gpu, bool with_managed);
int channel_open(struct channel *channel); /* descriptor of the new channel; -1: there is one already, or no memory */
void channel_close(struct channel *channel);

/* gpm_counters.c */
void counters_advance(struct gpu *gpu, uint64_t ns, uint32_t sms, uint32_t sm_count);
bool counters_set(struct gpu *gpu, uint64_t state, uint64_t value); /* false: not an activity, or not a percentage */

/* health.c */
void health_report_event(struct node *node, uint32_t gpu, uint64_t xid);
bool health_set(struct gpu *gpu, uint64_t state, uint64_t value); /* false: not a health state */
void answer_health(const struct node *node, const struct sim_request *request, struct sim_reply *reply, char *payload);
