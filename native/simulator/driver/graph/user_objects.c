/* User objects: what a program has destroyed when the last graph, executable graph and caller has released it. Their
 * destructor counts as a function of the host, which may not call CUDA. */
#include <stdlib.h>

#include "graph.h"

#define OBJECT_MAGIC 0x4f424a21u
enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };

struct object {
    uint32_t magic;
    uint64_t references;
    void (*destroy)(void *);
    void *data;
};
/* Of a graph or an executable graph: so many references. */
struct sim_reference {
    struct object *object;
    unsigned count;
    struct sim_reference *next;
};

static struct object *object_of(void *handle) {
    struct object *object = handle;
    return object && object->magic == OBJECT_MAGIC ? object : NULL;
}

/* Under sim.lock. */
static void release(struct object *object, unsigned count) {
    object->references -= count < object->references ? count : object->references;
    if (object->references) return;
    object->magic = 0;
    sim_in_host_call = true;
    atomic_fetch_add(&sim_host_calls, 1);
    object->destroy(object->data);
    atomic_fetch_sub(&sim_host_calls, 1);
    sim_in_host_call = false;
    free(object);
}

/* Under sim.lock. */
static bool refer(struct sim_reference **list, struct object *object, unsigned count) {
    struct sim_reference *reference = malloc(sizeof *reference);
    if (!reference) return false;
    *reference = (struct sim_reference){object, count, *list};
    *list = reference;
    return true;
}

void sim_objects_release(struct sim_reference **list) {
    for (struct sim_reference *reference; (reference = *list);) {
        *list = reference->next;
        release(reference->object, reference->count);
        free(reference);
    }
}

void sim_objects_copy(struct sim_reference **to, const struct sim_reference *from) {
    for (; from; from = from->next)
        if (refer(to, from->object, 1)) from->object->references++;
}

SIM_EXPORT abi_result cuUserObjectCreate(void **out, void *data, void (*destroy)(void *), unsigned count,
                                         unsigned flags) {
    SIM_ENTER("cuUserObjectCreate");
    if (!out || !destroy || !count || count > INT32_MAX || flags != NO_DESTRUCTOR_SYNC) return ABI_ERROR_INVALID_VALUE;
    struct object *object = malloc(sizeof *object);
    if (!object) return ABI_ERROR_OUT_OF_MEMORY;
    *object = (struct object){OBJECT_MAGIC, count, destroy, data};
    *out = object;
    return ABI_SUCCESS;
}

static int change(void *handle, unsigned count, bool more) {
    struct object *object = object_of(handle);
    if (!object || !count || count > INT32_MAX) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    if (more) object->references += count;
    else release(object, count);
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}
SIM_ROW(cuUserObjectRetain, (void *object, unsigned count), change(object, count, true))
SIM_ROW(cuUserObjectRelease, (void *object, unsigned count), change(object, count, false))

SIM_EXPORT abi_result cuGraphRetainUserObject(abi_graph handle, void *of, unsigned count, unsigned flags) {
    SIM_ENTER("cuGraphRetainUserObject");
    struct sim_graph *graph = sim_graph_of(handle);
    struct object *object = object_of(of);
    if (!graph || !object || !count || count > INT32_MAX || flags & ~(unsigned)MOVE) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    bool done = refer(&graph->objects, object, count);
    if (done && !(flags & MOVE)) object->references += count;
    pthread_mutex_unlock(&sim.lock);
    return done ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORT abi_result cuGraphReleaseUserObject(abi_graph handle, void *of, unsigned count) {
    SIM_ENTER("cuGraphReleaseUserObject");
    struct sim_graph *graph = sim_graph_of(handle);
    if (!graph || !object_of(of) || !count) return ABI_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.lock);
    for (struct sim_reference **place = &graph->objects, *reference; count && (reference = *place);) {
        unsigned some = reference->object == of ? (count < reference->count ? count : reference->count) : 0;
        count -= some;
        reference->count -= some;
        if (some) release(reference->object, some);
        if (reference->count) {
            place = &reference->next;
        } else {
            *place = reference->next;
            free(reference);
        }
    }
    pthread_mutex_unlock(&sim.lock);
    return ABI_SUCCESS;
}
