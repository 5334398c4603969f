/* The protocol between the simulated driver's libraries (driver/, nvml/) and the simulated kernel driver (daemon/).
 *
 * One daemon is one node. It owns the GPUs, the accounting of their memory and the time line. A library connects to
 * DIR/node.sock (DIR/lib holds the libraries; the library's own path leads to the socket, so no environment is needed),
 * and the connection lives exactly as long as the process: when the process dies, its memory is released. Its host PID
 * comes from the socket's peer credentials, never from a message.
 *
 * Requests and replies are one SEQPACKET message each, one reply per request, in order. Kernels are not sent as
 * messages: each (process, GPU) has a channel in shared memory, a ring that the process fills and the daemon empties,
 * like a GPU's push buffer. The daemon validates everything that it reads from it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SIM_PROTOCOL 1u
#define SIM_MAX_GPUS 16
#define SIM_SOCKET_NAME "node.sock"
#define SIM_GPUS_NAME "gpus"
#define SIM_IMEX_NAME "imex-channels"
#define SIM_IMEX_CHANNELS 16
/* DIR for libraries that are mounted into one of the loader's own folders, as in a container. */
#define SIM_DEFAULT_DIR "/usr/local/simulated"
#define SIM_UUID_TEXT 41 /* "GPU-" or "MIG-", 36 characters, NUL */

enum sim_op {
    SIM_HELLO = 1,   /* arg[0] role, arg[1] SIM_TYPE_* bits and SIM_VIDEO; reply fds: facts page, doorbell */
    SIM_CONTEXT_NEW, /* GPU; reply arg[0] context ID; fd: the channel, if it is this process's first on the GPU */
    SIM_CONTEXT_END, /* arg[0] context ID */
    SIM_ALLOCATE,    /* GPU, arg[0] bytes, arg[1] SIM_KIND_*; fd for SIM_KIND_VMM; reply arg[0] block ID, [1] bytes */
    SIM_RELEASE,     /* arg[0] block ID: drops one reference */
    SIM_RETAIN,      /* arg[0] block ID: adds one reference */
    SIM_IMPORT,      /* fd of another process's block; reply arg[0] block ID, arg[1] bytes, arg[2] GPU */
    SIM_MEMORY,      /* GPU; reply arg[0] used, arg[1] free (allocating that much would succeed), arg[2] usable, or the
                        memory limit of the caller's cgroup */
    SIM_RESIDUAL, /* GPU, arg[0] bytes by which the context grew (code, local memory); as SIM_ALLOCATE, freed with it */
    SIM_SHARE,    /* arg[0] block ID, fd: its contents are in this file now, and other processes may open it */
    SIM_SHARE_FILE,  /* GPU, fd: a file without memory of the GPU, for SIM_OPEN_SHARED; reply arg[0] its block ID */
    SIM_OPEN_SHARED, /* arg[0] ID of a block that another process shared, or if arg[1] is not 0 this one; reply as
                        SIM_IMPORT, and its fd */
    SIM_HOST_DONE,   /* GPU, arg[0] number of a SIM_ITEM_HOST: its work is done */
    SIM_PROCESS,     /* arg[0] PID as the caller sees it, arg[1] SIM_PROCESS_*; reply arg[0] ABI_PROCESS_* afterwards */
    /* NVML role */
    SIM_PROCESSES = 32, /* GPU, arg[0] SIM_TYPE_* bit; payload sim_process[] visible to the caller */
    SIM_UTILIZATION,    /* GPU, arg[0] last seen us; reply arg[0] newest us; payload sim_process_utilization[] */
    SIM_GPU_STATE,      /* GPU; payload sim_gpu_state */
    SIM_ACCOUNTING,     /* GPU, arg[0] PID; payload sim_accounting */
    SIM_RING,           /* GPU, arg[0] last seen us; payload sim_ring_sample[], oldest first */
    SIM_LIMIT_SET,      /* GPU, arg[0] inode of a cgroup's folder, arg[1] soft bytes, arg[2] hard bytes; root only */
    SIM_LIMIT_GET,      /* GPU, arg[0] inode of a cgroup's folder; reply arg[0] soft, arg[1] hard, arg[2] used bytes */
    SIM_HEALTH,         /* GPU; payload sim_health */
    SIM_COUNTERS,       /* GPU; payload sim_counters */
    SIM_EVENT,          /* arg[0] number of the last event seen; payload sim_driver_event, the next one, or nothing */
    /* control role */
    SIM_USAGE = 64,            /* payload: GPUs, processes and their memory as JSON */
    SIM_WATCH,                 /* arg[0] host PID: record the peak memory of it and its descendants as a group */
    SIM_SET_STATE,             /* GPU, arg[0] SIM_STATE_*, arg[1] value */
    SIM_PROCESS_LIST_DELAY_US, /* arg[0]: duration of every process list; stands in for a slow or hung driver */
    SIM_PROCESS_USAGE, /* arg[0] root of a group; payload sim_process_usage[] of all processes; reply arg[0..3] the
                          group's peak on GPUs 0 to 3, without what it inherited */
    SIM_REPORT_XID,    /* GPU, arg[0] the Xid */
    SIM_IGNORE_LIMITS, /* arg[0] not 0: memory limits are set and read as before, but not enforced */
};

enum { SIM_ROLE_CUDA = 1, SIM_ROLE_NVML = 2, SIM_ROLE_CONTROL = 3 };
enum { SIM_TYPE_COMPUTE = 1, SIM_TYPE_GRAPHICS = 2, SIM_TYPE_MPS = 4 };
/* How busy a process keeps the video engines while it has a context, in percent, beside its SIM_TYPE_* bits. */
#define SIM_VIDEO(encoder, decoder) ((uint64_t)(encoder) << 8 | (uint64_t)(decoder) << 16)
#define SIM_VIDEO_ENCODER(bits) ((uint32_t)((bits) >> 8) & 0xff)
#define SIM_VIDEO_DECODER(bits) ((uint32_t)((bits) >> 16) & 0xff)
enum {
    SIM_KIND_CONTEXT,
    SIM_KIND_LINEAR,
    SIM_KIND_POOL,
    SIM_KIND_VMM,
    SIM_KIND_MANAGED,
    SIM_KIND_CODE,
    SIM_KIND_GRAPH,  /* reserved for the memory nodes of graphs */
    SIM_KIND_LIMITS, /* heap, stack and printf buffer of a context, beyond their defaults */
    SIM_KIND_ARRAY,
    SIM_KIND_EXTERNAL,
    SIM_KIND_GREEN, /* what green contexts take beside the primary one */
    SIM_KIND_COUNT
};
enum { SIM_PROCESS_GET_STATE, SIM_PROCESS_LOCK, SIM_PROCESS_CHECKPOINT, SIM_PROCESS_RESTORE, SIM_PROCESS_UNLOCK };
/* The value is set, or added where the name ends in _MORE. */
enum {
    SIM_STATE_TEMPERATURE,
    SIM_STATE_POWER_MW,
    SIM_STATE_LOST,
    SIM_STATE_HIDDEN,              /* not 0: NVML does not count the GPU, and answers as for a lost one */
    SIM_STATE_HIDE_PROCESS_MEMORY, /* not 0: process lists have all ones in place of each process's memory */
    SIM_STATE_THROTTLE,
    SIM_STATE_ECC_CORRECTED_MORE,
    SIM_STATE_ECC_UNCORRECTED_MORE,
    SIM_STATE_ROWS_CORRECTED_MORE,
    SIM_STATE_ROWS_UNCORRECTED_MORE,
    SIM_STATE_ROWS_PENDING,
    SIM_STATE_ROWS_FAILED,
    SIM_STATE_PCIE_RECEIVED_MORE,
    SIM_STATE_PCIE_SENT_MORE,
    SIM_STATE_NVLINK_RECEIVED_MORE,
    SIM_STATE_NVLINK_SENT_MORE,
    SIM_STATE_RESET,
    SIM_STATE_ACTIVE, /* this and the following SIM_ACTIVE_COUNT - 1 values: percent */
};
/* How busy kernels keep these units must be configured: kernels compute nothing. */
enum { SIM_ACTIVE_OCCUPANCY, SIM_ACTIVE_TENSOR, SIM_ACTIVE_DRAM, SIM_ACTIVE_FP32, SIM_ACTIVE_COUNT };

struct sim_request {
    uint32_t op;
    uint32_t gpu;
    uint64_t arg[4];
};

struct sim_reply {
    int32_t result; /* an abi_result for CUDA operations, an NVML return for NVML ones */
    uint32_t payload_bytes;
    uint64_t arg[4];
};

#define SIM_MAX_PAYLOAD (160u << 10)
#define SIM_SAMPLES_MAX 72 /* a utilization reply has at most one row per sample */

struct sim_process {
    uint32_t pid; /* in the caller's PID namespace */
    uint32_t gpu;
    uint64_t bytes;
};

/* Memory of one process on one GPU by kind, and how much of it another process allocated that has ended or released
 * it. */
struct sim_process_usage {
    uint32_t pid; /* in the daemon's PID namespace */
    uint32_t gpu;
    uint64_t bytes[SIM_KIND_COUNT], inherited[SIM_KIND_COUNT];
};

struct sim_process_utilization {
    uint32_t pid; /* in the caller's namespace, or the host PID where the caller cannot see the process (as the real
                     driver does) */
    uint32_t sm_percent;
    uint32_t memory_percent;
    uint16_t encoder_percent, decoder_percent;
    uint64_t timestamp_us;
};

struct sim_ring_sample {
    uint64_t timestamp_us;
    uint64_t percent;
};

struct sim_gpu_state {
    uint64_t used_bytes;
    uint32_t sm_percent; /* share of the last sample period in which a kernel ran */
    uint32_t memory_percent;
    uint32_t temperature_c;
    uint32_t power_mw;
    uint64_t energy_mj;
    uint32_t sm_mhz, memory_mhz;
    uint32_t lost;
    uint32_t pad;
};

/* Errors and wear. GPUs before Ampere retire pages where later ones remap rows; both are `rows` here. */
struct sim_health {
    uint64_t throttle;                       /* NVML's bits */
    uint64_t ecc[2][2];                      /* corrected, uncorrected; each volatile, aggregate */
    uint64_t pcie_bytes[2], nvlink_bytes[2]; /* received, sent */
    uint32_t rows[2];                        /* by cause: corrected, uncorrected errors */
    uint32_t rows_pending, rows_failed;
};

/* Nanoseconds since the node's start: elapsed; with a kernel running; that time weighted by the part of the SMs in use;
 * and weighted by each configured activity. */
struct sim_counters {
    uint64_t at_ns, busy_ns, sm_ns, active_ns[SIM_ACTIVE_COUNT];
    uint32_t configured; /* one bit per configured activity */
    uint32_t pad;
};

struct sim_driver_event {
    uint32_t number; /* counted from 1 over all GPUs */
    uint32_t gpu;
    uint64_t type, data; /* NVML's type; the Xid */
};

struct sim_accounting {
    uint64_t max_bytes, lifetime_ms, start_us;
    uint32_t sm_percent, running;
};

/* What every process may know of a GPU. Clients map it read-only; `used_bytes` is live. */
struct sim_gpu_facts {
    char name[64];
    unsigned char uuid[16];
    uint64_t total_bytes;     /* what NVML calls total */
    uint64_t reserved_bytes;  /* by the driver itself; usable = total - reserved */
    uint64_t granule_bytes;   /* physical memory is allocated in pieces of this size */
    uint64_t pool_step_bytes; /* pools grow in pieces of this size */
    uint32_t sm_count, cc_major, cc_minor;
    uint32_t sm_mhz, memory_mhz, bus_bits, l2_kib, power_limit_mw;
    uint32_t pci_domain, pci_bus, pci_device, pci_id;
    uint32_t numa, pcie_switch;     /* where it is attached */
    uint32_t nvswitch_links;        /* NVLinks to NVSwitches */
    uint32_t nvlinks[SIM_MAX_GPUS]; /* NVLinks to that GPU */
    uint32_t pad1;
    /* A GPU divided by MIG has nothing for clients; each of its instances is a GPU of the node itself. */
    uint32_t divided;
    uint32_t parent; /* of an instance: its GPU's index + 1; 0 = none */
    uint32_t gpu_instance, compute_instance, slices;
    _Atomic uint64_t used_bytes; /* clients' bytes, without reserved */
    _Atomic uint32_t hidden;     /* NVML does not count it */
    uint32_t pad;
};

struct sim_facts {
    uint32_t protocol, gpu_count;
    uint32_t cuda_version;         /* 1000 x major + 10 x minor */
    _Atomic uint32_t newest_event; /* its number; clients may wait on this futex */
    _Atomic uint32_t limits;       /* number of memory limits of all cgroups on all GPUs */
    uint32_t pad;
    char driver_version[32];
    uint64_t kernel_ns;       /* duration of a kernel whose image names none */
    uint64_t code_free_bytes; /* code up to this size is part of the context's own bytes */
    uint64_t pitch_bytes;     /* rows of pitched memory are multiples of this */
    struct sim_gpu_facts gpus[SIM_MAX_GPUS];
};

/* ---- channel ---- */
#define SIM_RING_ENTRIES 4096u
#define SIM_CELLS 65536u
/* Queues of one process on one GPU; the first ones are legacy default streams of its contexts. */
#define SIM_LEGACY_QUEUES 64u
#define SIM_QUEUES 192u
#define SIM_FLAGS 65536u

/* SIM_ITEM_HOST stands for work of the process itself, and is complete when the process says so. */
enum { SIM_ITEM_KERNEL = 1, SIM_ITEM_STAMP = 2, SIM_ITEM_WAIT = 3, SIM_ITEM_HOST = 4 };

struct sim_item {
    uint64_t submit_ns;   /* CLOCK_MONOTONIC */
    uint64_t duration_ns; /* SIM_ITEM_KERNEL: on the SMs that its grid wants */
    uint32_t kind;
    uint32_t cell;   /* SIM_ITEM_STAMP: cell for the completion time */
    int32_t error;   /* SIM_ITEM_KERNEL: sticky error at its end; 0 = none */
    uint32_t blocks; /* SIM_ITEM_KERNEL: blocks of its grid */
    uint16_t queue;
    bool blocking; /* of a stream that synchronizes with the legacy default stream of its context */
    bool awaits;   /* SIM_ITEM_KERNEL: it does not end before the flag has reached the value */
    uint32_t adds; /* SIM_ITEM_KERNEL: to the flag, at its start */
    uint32_t flag, value;
    /* SIM_ITEM_WAIT: until that item, of that queue and GPU of the process, is complete */
    uint16_t wait_queue, wait_gpu;
    uint16_t legacy; /* queue of that default stream */
    uint64_t wait_number;
};

/* Items are numbered from 1 in the order of submission. Those of one queue complete in that order: item k of queue q is
 * complete when done[q] >= k. */
struct sim_channel {
    _Atomic uint64_t put; /* written by the process: items submitted */
    uint64_t pad0[7];
    _Atomic uint64_t completed;  /* all items up to this one; this and the next members are written by the daemon */
    _Atomic uint32_t done_futex; /* changes whenever an item that a thread waits for is complete */
    _Atomic int32_t error;       /* sticky error of this process on this GPU */
    _Atomic uint32_t sleeping;   /* 1: ring the doorbell after a submission or before a wait */
    uint32_t pad1;
    _Atomic uint64_t sm_ns; /* measured SM time of this process */
    uint64_t pad2[4];
    _Atomic uint64_t done[SIM_QUEUES];
    _Atomic uint64_t wait_for[SIM_QUEUES]; /* written by the process: smallest item that a thread waits for; 0 = none */
    struct sim_item ring[SIM_RING_ENTRIES];
    _Atomic uint64_t cells[SIM_CELLS]; /* completion times, ns; 0 = not complete */
};

_Static_assert(sizeof(struct sim_item) == 64, "one cache line per item");
