/* A graph and its nodes, shared by graph.c and exec.c. */
#pragma once

#include "../sim.h"

struct sim_graph_node {
    uint32_t magic;
    struct sim_step step;
    struct sim_graph_node *next;
};

struct sim_graph {
    uint32_t magic;
    bool owned; /* child of another graph's node */
    struct sim_graph_node *first, *last;
    size_t count;
    struct sim_exec *exec; /* of a graph with memory nodes, which can have only one */
};

struct sim_exec {
    uint32_t magic;
    struct sim_graph *graph; /* NULL once it was destroyed */
    uint64_t flags;          /* ABI_INSTANTIATE_* */
    /* The end of its last launch: GPU, queue and item. */
    uint32_t last_gpu, last_queue;
    uint64_t last_item;
    struct sim_step *steps;
    size_t count;
};

/* NULL: not a graph. */
struct sim_graph *sim_graph_of(abi_graph handle);
