/* A graph and its nodes, shared by the files of this folder. All under sim.lock. */
#pragma once

#include "../sim.h"

struct sim_graph_node {
    uint32_t magic;
    struct sim_graph *graph;
    uint64_t id, origin;         /* of no other node; of the node that it is a clone of, or 0 */
    uint64_t visit;              /* the last walk through the graph that came here */
    size_t place;                /* in the order of that walk */
    struct sim_graph_node *twin; /* in the graph's newest clone */
    struct sim_step step;
    struct sim_graph_node **after; /* what it depends on */
    size_t after_count;
    struct sim_graph_node *next;
};

struct sim_graph {
    uint32_t magic;
    bool owned;                          /* child of another graph's node */
    struct sim_graph_node *first, *last; /* in the order of their addition */
    size_t count;
    struct sim_exec *exec; /* of a graph with memory nodes, which can have only one */
    struct sim_reference *objects;
};

struct sim_exec {
    uint32_t magic;
    struct sim_graph *graph; /* NULL once it was destroyed */
    uint64_t flags;          /* ABI_INSTANTIATE_* */
    /* The end of its last launch: GPU, queue and item. */
    uint32_t last_gpu, last_queue;
    uint64_t last_item;
    /* In an order that the dependencies allow; each knows its node. */
    struct sim_step *steps;
    size_t count;
    struct sim_reference *objects;
};

#define SIM_GRAPH_MAGIC 0x47524121u
#define SIM_NODE_MAGIC 0x4e4f4421u
/* NULL: not a graph, not a node. */
static inline struct sim_graph *sim_graph_of(abi_graph handle) {
    struct sim_graph *graph = (struct sim_graph *)handle;
    return graph && graph->magic == SIM_GRAPH_MAGIC ? graph : NULL;
}
static inline struct sim_graph_node *sim_node_of(abi_graph_node handle) {
    struct sim_graph_node *node = (struct sim_graph_node *)handle;
    return node && node->magic == SIM_NODE_MAGIC ? node : NULL;
}

struct sim_graph *sim_graph_new(void);
void sim_graph_end(struct sim_graph *graph);
/* All are nodes of the graph, and none of them twice. */
bool sim_graph_can_follow(const struct sim_graph *graph, const abi_graph_node *after, size_t count);
/* After these nodes of the graph; takes over what belongs to the step, also when it fails. */
int sim_graph_add(struct sim_graph *graph, struct sim_step *step, const abi_graph_node *after, size_t count,
                  abi_graph_node *out);
int sim_graph_alloc_step(int device, uint64_t bytes, struct sim_step *step);
int sim_graph_free_step(abi_devptr pointer, struct sim_step *step);
/* What a node of this kind does; its memory and child belong to the step from then on. */
int sim_step_of(abi_node_params *params, struct sim_step *step);
/* NULL: no memory. Memory and conditional nodes cannot be cloned: ask sim_graph_is_fixed first. */
struct sim_graph *sim_graph_clone(const struct sim_graph *graph);
bool sim_graph_is_fixed(const struct sim_graph *graph);
/* Or is that node. */
bool sim_node_depends_on(struct sim_graph_node *node, const struct sim_graph_node *other);
void sim_node_end(struct sim_graph_node *node);
/* Calls `visit` for each node after all that it depends on; false: they depend on each other. */
bool sim_graph_walk(struct sim_graph *graph, void (*visit)(struct sim_graph_node *node, void *data), void *data);

/* exec.c */
struct sim_exec *sim_exec_of(abi_graph_exec handle); /* NULL: not an executable graph */
int sim_exec_new(struct sim_graph *graph, uint64_t flags, struct sim_exec **out);
void sim_exec_end(struct sim_exec *exec);

/* user_objects.c */
void sim_objects_release(struct sim_reference **list);
void sim_objects_copy(struct sim_reference **to, const struct sim_reference *from);
