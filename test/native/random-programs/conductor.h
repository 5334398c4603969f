/* What the conductor of a random program shares among its files: its processes, where the run takes place, what it
 * counted, and the first thing that was wrong. processes.c starts and asks the processes; main.c conducts them. */
#pragma once

#include "random_programs.h"

struct process {
    pid_t pid; /* 0: none */
    int socket, pidfd;
    struct sim_plan *plan;
    char plan_path[300];
    bool stale, unsure, away;
    uint64_t saved[GPUS]; /* what left with its checkpoint */
};
extern struct process processes[PROCESSES];

struct run {
    struct shared *shared;
    const char *scratch, *node, *grant;
    char socket_path[96];
    int listener;
    const char *wrong; /* NULL: nothing so far */
    char wrong_text[700];
    struct {
        uint64_t steps, done, refusals, deaths, births, failures, pauses, checks;
    } counts;
};
extern struct run run;

/* Keeps the first failure. */
void fail(const char *text);

/* ---- processes.c ---- */
/* A file that all map, of so many bytes. */
void *make_file(const char *path, size_t bytes);
void start_process(struct process *process);
/* The next process that reports takes this place. */
void welcome(struct process *process);
void kill_process(struct process *process);
void wait_for_end(struct process *process);
/* False: the process has ended. */
bool hear(struct process *process, struct answer *answer);
bool ask(struct process *process, const struct request *request, struct answer *answer);
