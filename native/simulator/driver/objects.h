/* The objects of the simulated driver: contexts, memory, modules, streams, events, and the steps of graphs. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../abi/cuda.h"
#include "../../abi/cuda_arrays.h"
#include "../client/client.h"

struct sim_context {
    uint32_t magic;
    int device;      /* ordinal */
    uint32_t gpu;    /* the node's index */
    unsigned uses;   /* its creation and cuCtxAttach */
    bool first_form; /* of cuCtxCreate as of CUDA 2.0 */
    bool primary;
    _Atomic bool alive; /* changes under sim.lock; also read without it */
    unsigned flags;
    uint64_t block; /* block ID of the context's own memory */
    uint64_t id;
    uint32_t legacy; /* queue of its legacy default stream */
    size_t limits[8];
    uint64_t limit_blocks[5]; /* by limit: memory beyond what its default takes */
    bool uses_heap, uses_printf;
    unsigned fixed_limits; /* one bit each: they were used, and cannot be set any more */
    bool green;
    abi_resource sms;          /* of a green one */
    struct sim_stream *awaits; /* what it awaits, all streams await, also those that are made later; NULL: nothing */
    _Atomic unsigned stacked;  /* on how many threads' stacks of current contexts it is */
    struct sim_context *next;
};

/* A range of pages of the address space. */
enum sim_region_kind {
    SIM_FREE,
    SIM_LARGE,
    SIM_FREED, /* SIM_LARGE, freed in stream order: the GPU has yet to get it back */
    SIM_SMALLS,
    SIM_MANAGED,
    SIM_CHUNK,
    SIM_RESERVED,
    SIM_GRAPH,
    SIM_OPENED,  /* another process's memory, opened by its IPC handle */
    SIM_VIEW,    /* of imported memory, which has the block */
    SIM_GLOBALS, /* of a module, whose code has the block */
};
struct sim_region {
    enum sim_region_kind kind;
    uint64_t page, pages; /* first page and number of pages in the arena */
    uint64_t bytes;       /* as requested; SIM_SMALLS and SIM_CHUNK: of the block */
    uint64_t block;       /* block ID of the daemon */
    uint64_t serial;      /* of no other region of the process */
    struct sim_context *context;
    int device;
    /* SIM_SMALLS: length in units of the allocation at each unit, 0 = none starts there; one bit per used unit */
    uint16_t *units;
    uint64_t *used;
    uint32_t *unit_ids, ids_given; /* of that allocation, in the region */
    uint32_t unit_count, units_used, hint;
    struct sim_region *next_small;
    /* SIM_CHUNK */
    struct sim_pool *pool;
    struct sim_segment *segments;
    struct sim_region *next_chunk;
    /* SIM_RESERVED: the physical block behind each page, or NULL */
    struct sim_physical **mapped;
    bool *starts;          /* first page of a mapping: only whole mappings can be unmapped */
    unsigned char *access; /* of the region's own device, by page: ABI_ACCESS_* */
    /* SIM_GRAPH */
    struct sim_graph_memory *graph_memory;
    bool shared;               /* its contents are in a file that other processes can open */
    unsigned opens;            /* SIM_OPENED */
    bool pooled;               /* SIM_OPENED: by a pool's pointer, closed by cuMemFree */
    struct sim_advice *advice; /* SIM_MANAGED: by page, or NULL */
    bool sync_memops;          /* as the program set it */
};

struct sim_physical {
    struct sim_physical *next;
    uint64_t block, bytes;
    int memfd, device;
    unsigned handles, maps;
    bool shared; /* by a fabric handle */
    abi_vmm_prop prop;
};

struct sim_function {
    uint32_t magic;
    struct sim_module *module;
    char *name;
    uint64_t duration_ns;
    int error; /* sticky error at the end of a launch */
    /* To a flag of the node, and whether it waits for one: its first two parameters are the flag and the value. */
    uint32_t adds;
    bool awaits;
    unsigned fixed_limits;               /* by a launch */
    unsigned parameters, dynamic_shared; /* number of them; bytes that a launch may ask for */
    struct sim_function *next;
};
/* A variable that an image declares for all of its kernels. */
struct sim_global {
    char *name;
    uint64_t offset, bytes; /* among the globals of the image */
    unsigned char *first;   /* first value; NULL: zeros */
    bool managed;
    struct sim_global *next;
};
/* Code and globals of an image in a context. */
struct sim_loaded {
    struct sim_context *context;
    uint64_t block;             /* of the daemon; 0 = no more than a context contains anyway */
    struct sim_region *globals; /* NULL: none */
    struct sim_loaded *next;
};
struct sim_module {
    uint32_t magic;
    struct sim_context *context; /* NULL for a library */
    struct sim_function *functions;
    bool any_name; /* the image's kernels are unknown: every name is found */
    struct sim_global *globals;
    uint64_t code_bytes, global_bytes;
    struct sim_loaded *loaded; /* of a module: one; of a library: one for each context that has used it */
    struct sim_module *next;
};

/* Nodes that a capture goes on after. */
struct sim_nodes {
    abi_graph_node *list;
    size_t count;
};

#define SIM_STREAM_ATTRIBUTES 4
struct sim_stream {
    uint32_t magic;
    struct sim_context *context;
    unsigned flags;
    int priority;
    uint64_t id;
    uint32_t queue;
    _Atomic uint64_t last;    /* number of the last item submitted to it */
    _Atomic uint64_t capture; /* ID of its capture; 0 = none */
    struct sim_nodes after;   /* in it */
    unsigned char attributes[SIM_STREAM_ATTRIBUTES][64];
    struct sim_stream *next_own;      /* of a thread's default stream: that of another context */
    struct sim_stream *next, *before; /* of all that were not destroyed */
};
/* A queue of the channel: one stream's, or several where a process has very many. */
struct sim_queue {
    uint32_t streams;                    /* under sim.lock */
    struct sim_context *_Atomic context; /* of its streams; NULL: of several, or of none yet */
    _Atomic uint64_t last;               /* number of the last item submitted to it */
    _Atomic uint64_t last_blocking;      /* the same, of streams that synchronize with the legacy default stream */
};
/* Of an event that other processes can open: how often it was recorded, and the last complete record. */
struct sim_shared_event {
    _Atomic uint64_t records, complete;
};
struct sim_event {
    uint32_t magic;
    struct sim_context *context;
    unsigned flags;
    uint32_t cell, queue;
    uint64_t item;    /* 0 = never recorded */
    uint64_t capture; /* of the capture in which it was recorded */
    struct sim_nodes after;
    struct sim_shared_event *shared; /* of an event that other processes can open: all that is above is unused */
    uint64_t shared_block;           /* its ID for other processes; 0: it has none */
    int shared_fd;
    struct sim_event *next, **place;
};

/* What one node of a graph does when it is executed. */
struct sim_step {
    int type;             /* ABI_NODE_* */
    uint64_t node, shape; /* of an executable graph: which node it was, and the edges that led to it */
    bool disabled;
    struct sim_item item;
    unsigned fixed_limits; /* ABI_NODE_KERNEL: by its function */
    abi_devptr to, from;
    uint64_t bytes;
    abi_memset_node fill;
    struct sim_graph_memory *memory;
    abi_location location;    /* of that memory, as the program specified it */
    struct sim_graph *child;  /* of a conditional node its body, which runs if `bytes` is not 0 */
    struct sim_event *event;  /* ABI_NODE_EVENT_RECORD, ABI_NODE_WAIT_EVENT */
    void (*function)(void *); /* ABI_NODE_HOST */
    void *data;
};
/* Beside the types of nodes: until the 32 or 64 bits at `to` meet `bytes` as `fill.element` says
 * (CU_STREAM_WAIT_VALUE_*); fill.width: 4 or 8. And: raises the 64 bits at `to` to `bytes`. */
enum { SIM_STEP_WAIT_VALUE = 1000, SIM_STEP_RAISE };
