/* What graph.c and graph_exec.c share: a graph and its nodes. */
#pragma once

#include "../sim.h"

struct sim_graph_node {
    uint32_t magic;
    struct sim_step step;
    struct sim_graph_node *next;
};

struct sim_graph {
    uint32_t magic;
    bool owned; /* by the node of another graph */
    struct sim_graph_node *first, *last;
    size_t count;
    struct sim_exec *exec; /* of a graph with memory nodes: the only executable one that there may be */
};

struct sim_exec {
    uint32_t magic;
    struct sim_graph *graph; /* NULL once that was destroyed */
    bool auto_free;
    struct sim_step *steps;
    size_t count;
};

/* NULL for what is no graph. */
struct sim_graph *sim_graph_of(abi_graph handle);
