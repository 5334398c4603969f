/* Shared by the simulated libcuda.so.1. Memory accounting and the time line are the daemon's (../protocol.h); this
 * library has what a user-space driver has: contexts, address space, sub-allocation, modules, streams.
 *
 * Locking: `sim.lock` guards all tables of the process; it is never held while waiting for the GPU, but held during
 * requests to the daemon, which answers at once. A forked child must not use any of it: its sim_alive points at 0. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "objects.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_PAGE (2ull << 20) /* unit of the address space */
#define SIM_THREADS_PER_SM 2048
#define SIM_SMALL_UNIT 512u /* small allocations are multiples of this */

struct sim_state {
    pthread_mutex_t lock;
    _Atomic int ready; /* cuInit has succeeded */
    int fd, doorbell;
    const struct sim_facts *facts;
    int device_count;
    uint32_t gpu_of[SIM_MAX_GPUS]; /* ordinal -> GPU */
    struct sim_channel *channel[SIM_MAX_GPUS];
    pthread_mutex_t queue_lock[SIM_MAX_GPUS];
    struct sim_queue queues[SIM_MAX_GPUS][SIM_QUEUES];
    struct sim_stream *streams;
    uint32_t cell_next[SIM_MAX_GPUS], *cell_free[SIM_MAX_GPUS], cell_free_count[SIM_MAX_GPUS];
    struct sim_context *contexts;
    struct sim_context *_Atomic primary[SIM_MAX_GPUS]; /* by ordinal; written under the lock */
    unsigned primary_retains[SIM_MAX_GPUS];
    struct sim_module *modules;
    struct sim_physical *physicals;
    uint64_t next_id;
};
extern struct sim_state sim;
extern const int sim_library_cuda;         /* 1000 x major + 10 x minor */
extern const volatile uint32_t *sim_alive; /* points at 1; at 0 in a forked child */

/* entry/start.c */
int sim_start(void);

/* connect.c */
int sim_request(struct sim_request *request, int passed_fd, struct sim_reply *reply, int *fd_out);
int sim_simple(uint32_t op, uint32_t gpu, uint64_t a, uint64_t b, uint64_t *out);
int sim_enter_slow(const char *name);

/* process_lock.c */
void sim_wait_for_unlock(const char *name); /* waits while the process is locked, unless `name` is a checkpoint call */
void sim_lock_process(bool now);
bool sim_is_process_locked(void);

/* context.c: the calling thread's current context, or an error */
int sim_current(struct sim_context **context);
struct sim_context *sim_stack_top(void); /* the current context, which may have ended; NULL: none */
bool sim_is_on_other_stacks(const struct sim_context *context);
int sim_create(abi_context *out, unsigned flags, abi_device device);
int sim_destroy(abi_context handle);
int sim_usable(struct sim_context *context); /* its sticky error, if any */
bool sim_is_context(struct sim_context *context);
enum sim_context_kind { SIM_OWN_CONTEXT, SIM_PRIMARY_CONTEXT, SIM_GREEN_CONTEXT };
/* Under sim.lock. A green one needs its device's primary context. */
int sim_context_new(struct sim_context **out, unsigned flags, abi_device device, enum sim_context_kind kind);
int sim_context_finish(struct sim_context *context);
void sim_limits_begin(struct sim_context *context); /* sets the limits that a new context has */
/* Takes the heap and the printf buffer for a module that is loaded. */
int sim_limits_use(struct sim_context *context, bool heap, bool printf_buffer);
/* A kernel is launched, after which these limits (one bit each) cannot be set any more. */
void sim_limits_fix(struct sim_context *context, unsigned limits);
/* The context whose limits it has and with whose events and functions it works together: a green one's is the primary
 * one. */
struct sim_context *sim_root(struct sim_context *context);
int sim_primary_retain(int device, struct sim_context **out);
int sim_primary_release(int device);

/* What a part of the driver does with its objects when their context ends. Called under sim.lock; members may be
 * NULL. */
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

/* memory/arena.c and memory/linear.c; all under sim.lock unless stated otherwise */
int sim_arena_start(uint64_t bytes);
bool sim_in_arena(abi_devptr pointer);
struct sim_region *sim_region_at(abi_devptr pointer);
bool sim_small_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes);
int sim_region_new(enum sim_region_kind kind, uint64_t bytes, uint64_t alignment, struct sim_region **out);
void sim_region_end(struct sim_region *region);
bool sim_region_extend(struct sim_region *region, uint64_t pages); /* false: others have the addresses behind it */
void sim_arena_forget(uint64_t page, uint64_t count); /* drops the contents of these pages and their mappings */
/* The next region from *index on, or NULL; regions may end in between. */
struct sim_region *sim_region_next(uint32_t *index);
abi_devptr sim_region_address(const struct sim_region *region);
/* Once that item of the stream's queue is complete; sim_linear_collect gives to the GPU what is so far. */
int sim_linear_free_ordered(abi_devptr pointer, struct sim_context *context, uint32_t queue, uint64_t reached);
void sim_linear_collect(void);

/* memory/host.c; takes the lock */
bool sim_is_page_locked(abi_devptr pointer);

/* memory/pool.c */
bool sim_chunk_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes);
int sim_chunk_free(struct sim_region *region, abi_devptr pointer);
void sim_pools_trim(void); /* takes the lock; releases unused chunks, as synchronization does */

/* memory/graph_memory.c: addresses of memory nodes, and the memory reserved for them; all under sim.lock */
int sim_graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out);
void sim_graph_memory_retain(struct sim_graph_memory *memory);
void sim_graph_memory_release(struct sim_graph_memory *memory);
abi_devptr sim_graph_memory_address(const struct sim_graph_memory *memory);
uint64_t sim_graph_memory_bytes(const struct sim_graph_memory *memory);
/* An executable graph uses it from claim to unclaim; ensure_backing allocates memory of the GPU for it. */
void sim_graph_memory_claim(struct sim_graph_memory *memory);
void sim_graph_memory_unclaim(struct sim_graph_memory *memory);
int sim_graph_memory_ensure_backing(struct sim_graph_memory *memory);
/* A free node of it was added to a graph, or ended with it: false where both its own graph and another one would free
 * it. The graph that allocates it is its own; NULL: that one has ended. */
bool sim_graph_memory_add_free(struct sim_graph_memory *memory, const struct sim_graph *graph);
void sim_graph_memory_drop_free(struct sim_graph_memory *memory, const struct sim_graph *graph);
void sim_graph_memory_set_graph(struct sim_graph_memory *memory, const struct sim_graph *graph);
/* Allocated from begin to free, and busy until item `number` is complete. */
bool sim_graph_memory_live(const struct sim_graph_memory *memory);
void sim_graph_memory_begin(struct sim_graph_memory *memory);
void sim_graph_memory_busy(struct sim_graph_memory *memory, uint64_t number);
int sim_graph_memory_free(struct sim_graph_memory *memory, abi_devptr pointer);

/* graph/capture.c: true if the call is recorded or refused instead of executed; *result is its result then */
bool sim_capture_step(struct sim_stream *stream, struct sim_step *step, int *result);
bool sim_capture_alloc(struct sim_stream *stream, uint64_t bytes, abi_devptr *pointer, int *result);
bool sim_capture_free(struct sim_stream *stream, abi_devptr pointer, int *result);
bool sim_capture_event(struct sim_stream *stream, struct sim_event *event, int *result);
bool sim_capture_wait(struct sim_stream *stream, struct sim_event *event, unsigned flags, int *result);
void sim_capture_end_with_stream(struct sim_stream *stream);

/* event_state.c; record and await: in a stream that does not capture */
bool sim_cell_take(const struct sim_context *context, uint32_t *cell);
void sim_cell_leave(const struct sim_event *event);
int sim_event_record(struct sim_event *event, struct sim_context *context, struct sim_stream *stream);
int sim_event_await(const struct sim_event *event, struct sim_context *context, struct sim_stream *stream);
bool sim_event_is_done(const struct sim_event *event);
int sim_event_synchronize(const struct sim_event *event);
void sim_event_add(struct sim_event *event); /* to the list of all events */
/* Gives it what other processes can open, or what another process has given to its own; and takes it away. */
bool sim_event_share(struct sim_event *event);
bool sim_event_map(struct sim_event *event, int fd);
void sim_event_unshare(struct sim_event *event);

/* capture_rules.c: an error if captures forbid the call; those that do become invalid. `stream` NULL: the legacy
 * default stream. */
int sim_capture_forbids_sync(struct sim_context *context, struct sim_stream *stream); /* waits or asks for a stream */
int sim_capture_forbids_legacy(struct sim_context *context);  /* uses the legacy default stream */
int sim_capture_forbids_context(struct sim_context *context); /* waits for a whole context */
int sim_capture_forbids_event(struct sim_event *event);       /* waits or asks for an event */
int sim_capture_forbids_unsafe(void);                         /* "potentially unsafe" calls */

/* memory/transfer.c: without waiting for earlier submissions */
int sim_copy_now(abi_devptr to, abi_devptr from, size_t bytes);
int sim_fill_now(const abi_memset_node *fill);
/* Check the ranges alone. */
/* Usable device memory, or host memory (then *device is false). */
int sim_check_range(abi_devptr pointer, uint64_t bytes, bool *device);
int sim_copy_usable(abi_devptr to, abi_devptr from, size_t bytes);
int sim_fill_usable(const abi_memset_node *fill);

/* fill.c */
void sim_fill_there(const abi_memset_node *fill); /* that range was checked */

/* memory/vmm.c */
enum { SIM_HOST = -1, SIM_UNKNOWN_LOCATION = -2, SIM_NO_DEVICE = -3 };
/* The device's ordinal, or one of these. */
int sim_device_of_location(const abi_location *location);
struct sim_physical *sim_physical_of(abi_vmm_handle handle);    /* NULL: not a handle */
void sim_physical_end_if_unused(struct sim_physical *physical); /* frees it when nothing refers to it any more */

/* memory/fabric.c. What must be so for memory of that device to have fabric handles; export is under sim.lock. NVIDIA
 * names no least compute capability: Hopper was the first with NVLink beyond a node. */
#define SIM_FABRIC_CC 9u
int sim_fabric_allowed(int device);
int sim_fabric_export(struct sim_physical *physical, void *out);
int sim_fabric_import(const void *from, struct sim_reply *reply, int *memfd);
int sim_fabric_export_pool(int device, void *out);
int sim_fabric_import_pool(const void *from, uint32_t *gpu);

/* memory/arrays.c */
/* A mipmapped array over memory of another object. */
int sim_array_view(struct sim_context *context, const abi_array3d_shape *shape, unsigned levels, uint64_t capacity,
                   abi_mipmapped *out);
/* First byte and pitch of the rows of a single-level, single-slice array; false: not such an array. */
size_t sim_array_element_bytes(void *handle);
bool sim_array_rows(void *array, char **rows, size_t *pitch, size_t *width_bytes, size_t *height);

/* memory/ipc.c */
struct sim_shared_address { /* the contents of an IPC handle: a block and an offset in it */
    uint64_t magic, block, offset;
};
int sim_share(abi_devptr pointer, struct sim_shared_address *place);
int sim_open(const struct sim_shared_address *place, bool pooled, abi_devptr *pointer);
int sim_close(struct sim_region *region);

/* channel.c: items of a queue complete in the order of their submission; `number` counts those of the GPU from 1 */
int sim_submit(struct sim_context *context, struct sim_stream *stream, struct sim_item *item, uint64_t *number);
int sim_wait(struct sim_context *context, uint32_t queue, uint64_t number);
bool sim_is_done(const struct sim_context *context, uint32_t queue, uint64_t number);
void sim_want(const struct sim_context *context, uint32_t queue, uint64_t number); /* wakes waiters of done_futex */
/* A queue that is empty and of no stream, or else one that is shared, as on hardware, whose queues are few; under
 * sim.lock. */
uint32_t sim_queue_take(struct sim_context *context, bool legacy);
int sim_wait_all(struct sim_context *context); /* all that the process has on the GPU */
int sim_wait_context(struct sim_context *context);
/* What the legacy default stream encompasses: its own work and that of the context's blocking streams. */
int sim_wait_legacy(struct sim_context *context);
bool sim_is_legacy_done(struct sim_context *context);
void sim_ring_doorbell(void); /* has the daemon advance the time line to now */

/* host_work.c: steps that the process does itself, when the time line has reached them. Copies and fills are done at
 * once unless such a step is pending, which they may have to follow. */
int sim_host_work(struct sim_context *context, struct sim_stream *stream, const struct sim_step *step,
                  uint64_t *number);
bool sim_is_host_work_pending(void);
extern _Atomic int sim_host_calls;          /* functions of the program that are running */
extern _Thread_local bool sim_in_host_call; /* the thread runs one, which may not call the driver */

/* stream_state.c */
int sim_stream_context(abi_stream handle, struct sim_context **context, struct sim_stream **object);
int sim_stream_new(struct sim_context *context, abi_stream *out, unsigned flags, int priority);
void sim_stream_end(struct sim_stream *stream);
static inline uint32_t sim_queue_of(const struct sim_context *context, const struct sim_stream *stream) {
    return stream ? stream->queue : context->legacy;
}
static inline bool sim_has_work_of(const struct sim_queue *queue, const struct sim_context *context) {
    const struct sim_context *of = queue->context;
    return !of || of == context;
}
/* A primary context comprises the green ones of its device. */
static inline bool sim_comprises(const struct sim_context *context, const struct sim_queue *queue) {
    const struct sim_context *of = queue->context;
    return !of || of == context || (context->primary && of->green);
}
/* In the per-thread forms NULL is the thread's own default stream. */
static inline abi_stream sim_own(abi_stream stream) {
    return stream ? stream : ABI_STREAM_PER_THREAD;
}

/* entry/streams.c */
int sim_wait_stream(abi_stream handle);
void sim_release_unused(void); /* after a synchronization; takes the lock */

/* modules/module.c */
unsigned sim_occupancy(unsigned threads); /* blocks of that size on one SM */
/* Of one launch. An error: the kernel needs parameters and has none. */
int sim_kernel(const struct sim_function *function, uint64_t blocks, void *const *parameters, struct sim_item *item);

#define SIM_CONTEXT_MAGIC 0x43545821u
#define SIM_MODULE_MAGIC 0x4d4f4421u
#define SIM_FUNCTION_MAGIC 0x46554e21u
#define SIM_STREAM_MAGIC 0x53545221u
#define SIM_EVENT_MAGIC 0x45565421u

/* Returns an error from the calling function. */
#define SIM_TRY(call)                               \
    do {                                            \
        int failed_ = (call);                       \
        if (failed_ != ABI_SUCCESS) return failed_; \
    } while (0)
/* The result of a call under sim.lock. */
#define SIM_LOCKED(call)                 \
    ({                                   \
        pthread_mutex_lock(&sim.lock);   \
        int result_ = (call);            \
        pthread_mutex_unlock(&sim.lock); \
        result_;                         \
    })
/* Declare the current context, and the context and the stream of a handle; or return the error. */
#define SIM_CURRENT(context)     \
    struct sim_context *context; \
    SIM_TRY(sim_current(&context))
/* In calls of which contexts of the first form have an older one. */
#define SIM_LATER_FORM()                                            \
    do {                                                            \
        struct sim_context *context_;                               \
        SIM_TRY(sim_current(&context_));                            \
        if (context_->first_form) return ABI_ERROR_INVALID_CONTEXT; \
    } while (0)
#define SIM_STREAM(handle, context, stream) \
    struct sim_context *context;            \
    struct sim_stream *stream;              \
    SIM_TRY(sim_stream_context(handle, &context, &stream))

/* First line of every entry point: injected faults, calls before cuInit, calls in a forked child. */
#define SIM_ENTER(name)                                                                                     \
    do {                                                                                                    \
        if (__builtin_expect(sim_faults_armed | !atomic_load_explicit(&sim.ready, memory_order_acquire) |   \
                                 !*sim_alive | atomic_load_explicit(&sim_host_calls, memory_order_relaxed), \
                             0)) {                                                                          \
            int early = sim_enter_slow(name);                                                               \
            if (early) return early;                                                                        \
        }                                                                                                   \
    } while (0)

/* An entry point that another function serves, and one that is the same as another entry point. */
#define SIM_ROW(name, parameters, call)     \
    SIM_EXPORT abi_result name parameters { \
        SIM_ENTER(#name);                   \
        return call;                        \
    }
#define SIM_SAME(name, parameters, call)    \
    SIM_EXPORT abi_result name parameters { \
        return call;                        \
    }
