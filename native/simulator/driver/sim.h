/* Inside of the simulated libcuda.so.1. What is the daemon's (the books, the time line) is in ../protocol.h; this
 * library holds what a user-space driver holds: contexts, address space, sub-allocation, modules, streams.
 *
 * Locking: `sim.lock` guards all tables of the process; it is never held while waiting for the GPU, and held across
 * requests to the daemon, which answers at once. A forked child must not use any of it: it sees sim_alive as 0. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../abi/cuda.h"
#include "../../abi/cuda_arrays.h"
#include "../client/client.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_PAGE (2ull << 20) /* unit of the address space */
#define SIM_THREADS_PER_SM 2048
#define SIM_SMALL_UNIT 512u /* small allocations are multiples of this */

struct sim_context {
    uint32_t magic;
    int device;    /* ordinal */
    uint32_t gpu;  /* the node's index of it */
    unsigned refs; /* primary: retains; else 1 */
    bool primary;
    _Atomic bool alive; /* changes under sim.lock; read without it, too */
    unsigned flags;
    uint64_t block; /* the daemon's id of the context's own memory */
    uint64_t id;
    size_t limits[8];
    uint64_t limit_blocks[3]; /* what heap, stack and printf buffer take beyond the context's own bytes */
    bool green;
    _Atomic unsigned stacked; /* in how many slots of the threads' stacks of current contexts it is */
    struct sim_context *next;
};

/* A run of pages of the address space. */
enum sim_region_kind {
    SIM_FREE,
    SIM_LARGE,
    SIM_SMALLS,
    SIM_MANAGED,
    SIM_CHUNK,
    SIM_RESERVED,
    SIM_GRAPH,
    SIM_OPENED, /* another process's, opened by the handle that it gave */
    SIM_VIEW,   /* of imported memory, which holds the block */
};
struct sim_region {
    enum sim_region_kind kind;
    uint64_t page, pages; /* first page and number of pages in the arena */
    uint64_t bytes;       /* as asked; SIM_SMALLS and SIM_CHUNK: the block's size */
    uint64_t block;       /* the daemon's id */
    struct sim_context *context;
    int device;
    /* SIM_SMALLS: units taken from each start, 0 = not a start; one bit per unit that is in use */
    uint16_t *units;
    uint64_t *used;
    uint32_t unit_count, units_used, hint;
    struct sim_region *next_small;
    /* SIM_CHUNK */
    struct sim_pool *pool;
    struct sim_segment *segments;
    struct sim_region *next_chunk;
    /* SIM_RESERVED: the physical block behind each page, or NULL */
    struct sim_physical **mapped;
    bool *starts; /* of a mapping; only what is mapped at once can be unmapped */
    /* SIM_GRAPH */
    struct sim_graph_memory *graph_memory;
    bool shared;    /* its contents lie in a file that other processes can open */
    unsigned opens; /* SIM_OPENED */
    bool pooled;    /* SIM_OPENED: by a pool's pointer, which cuMemFree ends */
};

struct sim_physical {
    struct sim_physical *next;
    uint64_t block, bytes;
    int memfd, device;
    unsigned handles, maps;
    abi_vmm_prop prop;
};

struct sim_function {
    uint32_t magic;
    struct sim_module *module;
    char *name;
    uint64_t duration_ns;
    int error; /* sticky error that a launch ends with */
    unsigned parameters;
    struct sim_function *next;
};
struct sim_module {
    uint32_t magic;
    struct sim_context *context; /* NULL for a library */
    struct sim_function *functions;
    bool any_name; /* an image whose kernels cannot be listed: every name is found */
    uint64_t block;
    struct sim_module *next;
};

struct sim_stream {
    uint32_t magic;
    struct sim_context *context;
    unsigned flags;
    int priority;
    uint64_t id;
    _Atomic uint64_t last;    /* number of the last item submitted through it */
    _Atomic uint64_t capture; /* id of the capture that it is part of; 0 = it runs what it is given */
};
struct sim_event {
    uint32_t magic;
    struct sim_context *context;
    unsigned flags;
    uint32_t cell;
    uint64_t item;    /* 0 = never recorded */
    uint64_t capture; /* it was recorded into this one */
    struct sim_event *next, **place;
};

/* What one node of a graph does when its turn comes. */
struct sim_step {
    int type; /* ABI_NODE_* */
    struct sim_item item;
    abi_devptr to, from;
    uint64_t bytes;
    abi_memset_node fill;
    struct sim_graph_memory *memory;
    abi_location location; /* of that memory, as the program named it */
    struct sim_graph *child;
};

struct sim_state {
    pthread_mutex_t lock;
    _Atomic int ready; /* cuInit has succeeded */
    int fd, doorbell;
    const struct sim_facts *facts;
    int device_count;
    uint32_t gpu_of[SIM_MAX_GPUS]; /* ordinal -> GPU */
    struct sim_channel *channel[SIM_MAX_GPUS];
    pthread_mutex_t queue_lock[SIM_MAX_GPUS];
    uint32_t cell_next[SIM_MAX_GPUS], *cell_free[SIM_MAX_GPUS], cell_free_count[SIM_MAX_GPUS];
    struct sim_context *contexts;
    struct sim_context *primary[SIM_MAX_GPUS];
    struct sim_module *modules;
    struct sim_physical *physicals;
    uint64_t next_id;
};
extern struct sim_state sim;
extern const int sim_library_cuda;         /* 1000 x major + 10 x minor */
extern const volatile uint32_t *sim_alive; /* points at 1; at 0 in a forked child */

/* connect.c */
int sim_start(void);
int sim_request(struct sim_request *request, int passed_fd, struct sim_reply *reply, int *fd_out);
int sim_simple(uint32_t op, uint32_t gpu, uint64_t a, uint64_t b, uint64_t *out);
int sim_enter_slow(const char *name);

/* process_lock.c */
void sim_wait_for_unlock(const char *name); /* waits while the process is locked, unless `name` is a checkpoint call */
void sim_lock_process(bool now);
bool sim_is_process_locked(void);

/* context.c: the calling thread's current context, or an error */
int sim_current(struct sim_context **context);
int sim_usable(struct sim_context *context); /* its sticky error, if any */
bool sim_is_context(struct sim_context *context);
int sim_context_new(struct sim_context **out, unsigned flags, abi_device device, bool primary); /* under sim.lock */
int sim_context_finish(struct sim_context *context);
void sim_limits_begin(struct sim_context *context); /* sets the limits that a new context has */
int sim_primary_retain(int device, struct sim_context **out);
int sim_primary_release(int device);
bool sim_primary_of(int device, struct sim_context **context);

/* What a part of the driver does with its objects when their context ends. Called under sim.lock; members may be NULL.
 */
struct sim_context_end_hooks {
    void (*inherit)(struct sim_context *from, struct sim_context *to); /* a green context ends before its primary one */
    void (*release)(struct sim_context *context);
    void (*release_device)(int device); /* no context is left on the GPU */
    struct sim_context_end_hooks *next;
};
void sim_on_context_end(struct sim_context_end_hooks *hooks);
#define SIM_ON_CONTEXT_END(...)                                                 \
    static struct sim_context_end_hooks context_end_hooks = {__VA_ARGS__};      \
    __attribute__((constructor)) static void register_context_end_hooks(void) { \
        sim_on_context_end(&context_end_hooks);                                 \
    }

/* arena.c and memory.c; all under sim.lock unless said otherwise */
int sim_arena_start(uint64_t bytes);
bool sim_in_arena(abi_devptr pointer);
struct sim_region *sim_region_at(abi_devptr pointer);
int sim_region_new(enum sim_region_kind kind, uint64_t bytes, uint64_t alignment, struct sim_region **out);
void sim_region_end(struct sim_region *region);
void sim_arena_forget(uint64_t page, uint64_t count); /* what these pages held, and what they were views of */
/* The next one from *index on, or NULL; regions may end meanwhile. */
struct sim_region *sim_region_next(uint32_t *index);
abi_devptr sim_region_address(const struct sim_region *region);
/* Takes the lock. The range is usable device memory, or host memory (then *device is false). */
int sim_check_range(abi_devptr pointer, uint64_t bytes, bool *device);
bool sim_small_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes);

/* pool.c */
struct sim_pool *sim_default_pool(int device);
bool sim_chunk_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes);
int sim_chunk_free(struct sim_region *region, abi_devptr pointer);
void sim_pools_settle(void); /* takes the lock: gives unused chunks back, as synchronizing does */

/* graph_memory.c: addresses of memory nodes, and what the GPU has reserved for them; all under sim.lock */
int sim_graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out);
void sim_graph_memory_keep(struct sim_graph_memory *memory);
void sim_graph_memory_drop(struct sim_graph_memory *memory);
abi_devptr sim_graph_memory_address(const struct sim_graph_memory *memory);
uint64_t sim_graph_memory_bytes(const struct sim_graph_memory *memory);
/* An executable graph uses it from claim to leave; back puts bytes of the GPU behind it. */
void sim_graph_memory_claim(struct sim_graph_memory *memory);
void sim_graph_memory_leave(struct sim_graph_memory *memory);
int sim_graph_memory_back(struct sim_graph_memory *memory);
/* Allocated from begin to free, and busy until item `number` is done. */
bool sim_graph_memory_live(const struct sim_graph_memory *memory);
void sim_graph_memory_begin(struct sim_graph_memory *memory);
void sim_graph_memory_busy(struct sim_graph_memory *memory, uint64_t number);
int sim_graph_memory_free(struct sim_graph_memory *memory, abi_devptr pointer);

/* graph.c; all under sim.lock */
struct sim_graph *sim_graph_new(void);
void sim_graph_end(struct sim_graph *graph);
int sim_graph_add(struct sim_graph *graph, const struct sim_step *step, abi_graph_node *out);
abi_graph_node *sim_graph_last(struct sim_graph *graph);
int sim_graph_alloc_step(int device, uint64_t bytes, struct sim_step *step);
int sim_graph_free_step(abi_devptr pointer, struct sim_step *step);

/* capture.c: true when the call is recorded (or refused) instead of run; *result is then its answer */
bool sim_captured(struct sim_stream *stream, const struct sim_step *step, int *result);
bool sim_captured_alloc(struct sim_stream *stream, uint64_t bytes, abi_devptr *pointer, int *result);
bool sim_captured_free(struct sim_stream *stream, abi_devptr pointer, int *result);
bool sim_captured_event(struct sim_stream *stream, struct sim_event *event);
void sim_capture_joins(struct sim_stream *stream, const struct sim_event *event);
/* A call that would wait for a stream that is being captured: refused, and the capture is void. */
bool sim_capture_breaks(struct sim_stream *stream);
void sim_capture_stream_gone(struct sim_stream *stream);

/* copy.c: without waiting for what was submitted before */
int sim_copy_now(abi_devptr to, abi_devptr from, size_t bytes);
int sim_fill_now(const abi_memset_node *fill);

/* vmm.c */
enum { SIM_HOST = -1, SIM_UNKNOWN_LOCATION = -2, SIM_NO_DEVICE = -3 };
/* The ordinal of the device, or one of these. */
int sim_device_of_location(const abi_location *location);
void sim_unmap_pages(struct sim_region *region, uint64_t first, uint64_t count);
struct sim_physical *sim_physical_of(abi_vmm_handle handle); /* NULL: no handle */
void sim_physical_settle(struct sim_physical *physical);     /* ends it when nothing refers to it any more */

/* arrays.c */
/* A chain over memory that something else holds. */
int sim_array_view(struct sim_context *context, const abi_array3d_shape *shape, unsigned levels, uint64_t room,
                   abi_mipmapped *out);
/* First byte and length of a row of an array without further levels and slices; false: no such array. */
bool sim_array_rows(void *array, char **rows, size_t *pitch, size_t *width_bytes, size_t *height);

/* sharing.c */
struct sim_place { /* what travels between processes: a block of the books and a place in it */
    uint64_t magic, block, offset;
};
int sim_share(abi_devptr pointer, struct sim_place *place);
int sim_open(const struct sim_place *place, bool pooled, abi_devptr *pointer);
int sim_close(struct sim_region *region);

/* channel.c: items of a GPU complete in the order of their submission; `number` counts them from 1 */
int sim_submit(struct sim_context *context, struct sim_stream *stream, struct sim_item *item, uint64_t *number);
int sim_wait(struct sim_context *context, uint64_t number);
int sim_wait_all(struct sim_context *context);
void sim_ring_doorbell(void); /* has the daemon bring the time line up to now */

/* stream_state.c */
int sim_stream_context(abi_stream handle, struct sim_context **context, struct sim_stream **object);
int sim_stream_new(struct sim_context *context, abi_stream *out, unsigned flags, int priority);

/* streams.c */
int sim_wait_stream(abi_stream handle);

/* module.c */
struct sim_item sim_kernel(const struct sim_function *function, uint64_t blocks); /* a launch of it */

#define SIM_CONTEXT_MAGIC 0x43545821u
#define SIM_MODULE_MAGIC 0x4d4f4421u
#define SIM_FUNCTION_MAGIC 0x46554e21u
#define SIM_STREAM_MAGIC 0x53545221u
#define SIM_EVENT_MAGIC 0x45565421u

/* First line of every entry point: injected faults, use before cuInit, use in a forked child. */
#define SIM_ENTER(name)                                                                                                \
    do {                                                                                                               \
        if (__builtin_expect(sim_faults_armed | !atomic_load_explicit(&sim.ready, memory_order_acquire) | !*sim_alive, \
                             0)) {                                                                                     \
            int early = sim_enter_slow(name);                                                                          \
            if (early) return early;                                                                                   \
        }                                                                                                              \
    } while (0)
