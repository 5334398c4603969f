/* What one thread of a process has of the driver, by kind. Several lanes of a process know nothing of each other. */
#pragma once

#include "random_programs.h"

#define MOST_BLOCKS 64
#define MOST 24
#define PAGE (2ull << 20) /* of address ranges */
#define RANGE_PAGES 16

enum context_kind { PRIMARY, MADE, GREEN };
struct context {
    abi_context handle;
    int device;
    enum context_kind kind;
    abi_green_context green;
};
enum block_kind { LINEAR, MANAGED, OPENED, VIEW };
struct block {
    abi_devptr at;
    uint64_t bytes;
    int device;
    abi_context context;
    enum block_kind kind;
};
struct pool {
    abi_pool handle;
    int device;
    bool exportable, imported, lent; /* lent: the device's own */
};
struct piece { /* of a pool */
    abi_devptr at;
    int device;
    abi_pool pool; /* NULL: opened by a pointer */
    bool left;     /* its pool is destroyed, and ends with the last of these */
};
struct physical {
    abi_vmm_handle handle;
    uint64_t bytes;
    int device; /* -1: the host's */
    int types;  /* of handles by which it can be exported */
};
struct range {
    abi_devptr at;
    uint32_t mapped; /* a bit per page */
};
enum array_kind { PLAIN, SPARSE, DEFERRED };
struct array {
    void *handle;
    enum array_kind kind;
    bool chain;
    int device;
    abi_context context;
};
struct external {
    abi_external handle;
    abi_context context;
};
struct graph {
    abi_graph graph;
    abi_graph_exec exec;
    abi_devptr memory[4];
    unsigned memories;
    uint64_t need[GPUS];
    bool dead; /* the context that it belonged to is gone */
};
struct stream {
    abi_stream handle;
    abi_context context;
    int device;
};

#define TABLE(type, most) \
    struct {              \
        type at[most];    \
        unsigned count;   \
    }
struct lane {
    unsigned index, lanes;
    abi_context current;
    TABLE(struct context, 6) contexts;
    TABLE(struct block, MOST_BLOCKS) blocks;
    TABLE(struct pool, 6) pools;
    TABLE(struct piece, MOST) pieces;
    bool pool_left;    /* one was destroyed: it may still have memory */
    bool ordered_left; /* linear memory was freed in stream order: the GPU may still have it */
    TABLE(struct physical, MOST) physicals;
    TABLE(struct range, 6) ranges;
    TABLE(struct array, MOST) arrays;
    TABLE(struct external, 8) externals;
    TABLE(struct graph, 8) graphs;
    TABLE(struct stream, 4) streams;
    TABLE(abi_module, 4) modules;
    struct answer answer;
};

#define FULL(table) ((table).count == sizeof(table).at / sizeof *(table).at)
#define ADD(table, ...) ((table).at[(table).count++] = __VA_ARGS__)
#define REMOVE(table, index) ((table).at[index] = (table).at[--(table).count])
/* One of the table by a random number; NULL: it is empty. */
#define ANY(table, number) ((table).count ? &(table).at[(number) % (table).count] : NULL)
#define INDEX(table, entry) ((unsigned)((entry) - (table).at))

extern struct shared *shared;
extern int gpu_of[GPUS]; /* by device */

void *driver_find(const char *name);
#define CU(name, types, ...)                                                                           \
    ({                                                                                                 \
        static _Atomic(void *) known_;                                                                 \
        void *entry_ = atomic_load_explicit(&known_, memory_order_relaxed);                            \
        if (!entry_) atomic_store_explicit(&known_, entry_ = driver_find(name), memory_order_relaxed); \
        ((abi_result(*) types)entry_)(__VA_ARGS__);                                                    \
    })
/* The simulated driver's own, past whatever is in front of it: what a runtime does by tables of its own. */
void *driver_behind(const char *name);

bool worker_injected(void); /* a failure was injected into this step */
int other_device(const struct lane *lane, uint64_t number);
/* The device of the current context; -1: there is none. */
int current_device(const struct lane *lane);
/* Notes what a request for `need` bytes of the device's GPU came to; true: it was granted. */
bool granted(struct lane *lane, abi_result result, int device, uint64_t need);
uint64_t whole(int device, uint64_t bytes); /* in granules */
/* All that goes with a context. */
void context_gone(struct lane *lane, abi_context handle);
/* What a green context leaves to the primary one. */
void context_left(struct lane *lane, abi_context handle, abi_context successor);
void go_to(struct lane *lane, abi_context handle);
bool settle(struct lane *lane); /* updates the ledger with what pools and graphs reserve now */
/* Any of a kind, and its file, if it has one, in this process; the caller closes it. False: there is none. */
bool letter_any(enum letter_kind kind, uint64_t number, struct letter *copy, int *fd);
void letter_put(uint64_t number, enum letter_kind kind, int fd, uint64_t bytes, const void *text, size_t size);

void verb_alloc(struct lane *, const struct step *);
void verb_pitch(struct lane *, const struct step *);
void verb_managed(struct lane *, const struct step *);
void verb_free(struct lane *, const struct step *);
void verb_free_ordered(struct lane *, const struct step *);
void verb_free_wrong(struct lane *, const struct step *);
void verb_info(struct lane *, const struct step *);
void verb_share(struct lane *, const struct step *);
void verb_open(struct lane *, const struct step *);
void verb_pool_alloc(struct lane *, const struct step *);
void verb_pool_free(struct lane *, const struct step *);
void verb_pool_create(struct lane *, const struct step *);
void verb_pool_destroy(struct lane *, const struct step *);
void verb_pool_set(struct lane *, const struct step *);
void verb_pool_trim(struct lane *, const struct step *);
void verb_pool_share(struct lane *, const struct step *);
void verb_pool_open(struct lane *, const struct step *);
void verb_synchronize(struct lane *, const struct step *);
void verb_stream(struct lane *, const struct step *);
void verb_physical(struct lane *, const struct step *);
void verb_map(struct lane *, const struct step *);
void verb_unmap(struct lane *, const struct step *);
void verb_release(struct lane *, const struct step *);
void verb_retain(struct lane *, const struct step *);
void verb_export(struct lane *, const struct step *);
void verb_import(struct lane *, const struct step *);
void verb_import_own(struct lane *, const struct step *);
void verb_array(struct lane *, const struct step *);
void verb_array_destroy(struct lane *, const struct step *);
void verb_tiles(struct lane *, const struct step *);
void verb_external(struct lane *, const struct step *);
void verb_external_of(struct lane *, const struct step *);
void verb_external_destroy(struct lane *, const struct step *);
void verb_external_view(struct lane *, const struct step *);
void verb_graph(struct lane *, const struct step *);
void verb_capture(struct lane *, const struct step *);
void verb_instantiate(struct lane *, const struct step *);
void verb_launch(struct lane *, const struct step *);
void verb_graph_destroy(struct lane *, const struct step *);
void verb_graph_free(struct lane *, const struct step *);
void verb_graph_trim(struct lane *, const struct step *);
void verb_context(struct lane *, const struct step *);
void verb_primary(struct lane *, const struct step *);
void verb_hidden(struct lane *, const struct step *);
void verb_context_end(struct lane *, const struct step *);
void verb_reset(struct lane *, const struct step *);
void verb_enter(struct lane *, const struct step *);
void verb_green(struct lane *, const struct step *);
void verb_limit(struct lane *, const struct step *);
void verb_checkpoint(struct lane *, const struct step *);
void verb_module(struct lane *, const struct step *);
void verb_fork(struct lane *, const struct step *);
