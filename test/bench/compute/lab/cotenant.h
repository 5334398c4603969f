/* Cotenant's law in two halves: the agent's thread (cotenant_agent.c) and the processes of the tenants (cotenant.c).
 * They share lease pages, rings and wake-ups, which take their time. */
#pragma once

#include <stddef.h>

#include "lab.h"

enum { SLOTS = 64 };
struct page {
    void *bytes;
    uint32_t bell;
    int member[MAX_GPUS]; /* of the tenant's GPUs */
    uint64_t dead[SLOTS];
};

/* ---- cotenant_agent.c ---- */
extern struct page pages[MAX_TENANTS];
extern struct random random_wait;
uint64_t wake_latency(void);
void agent_join(uint32_t tenant); /* its page exists now */
void ring(void);                  /* a process asks the agent to read its page */
/* A line on what its arbiter makes of a GPU. Returns its length; 0: no container is on it. */
int agent_describe(uint32_t at_gpu, char *text, size_t size);

/* ---- cotenant.c ---- */
void wake_if_waiting(struct program *program); /* at its gate */
