/* The books of a simulated node: who holds how many bytes of which GPU, and the most that each group ever held.
 * Takes from a GPU are refused when they do not fit; everything that a process held goes when it goes. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../abi/cuda.h"
#include "node.h"

/* All changes of any byte count go through here, so that sums and peaks cannot drift apart. */
static void account(struct node *node, struct client *client, const struct block *block, int sign) {
    uint32_t gpu = block->gpu;
    uint64_t change = sign < 0 ? -block->bytes : block->bytes;
    client->bytes[gpu][block->kind] += change;
    uint64_t held = client_bytes(client, gpu, true);
    if (held > client->peak[gpu]) client->peak[gpu] = held;
    atomic_fetch_add(&node->facts->gpus[gpu].used_bytes, change);
    if (client->group) {
        struct group *group = client->group;
        group->bytes[gpu] += change;
        if (block->inherited) group->inherited[gpu] += change;
        uint64_t made = group->bytes[gpu] - group->inherited[gpu];
        if (group->bytes[gpu] > group->peak[gpu]) group->peak[gpu] = group->bytes[gpu];
        if (made > group->made_peak[gpu]) group->made_peak[gpu] = made;
    }
}

static struct block *block_new(struct node *node) {
    if (node->block_free < node->block_count) {
        for (size_t i = node->block_free; i < node->block_count; i++) {
            if (node->blocks[i].id == 0) {
                node->block_free = i + 1;
                return &node->blocks[i];
            }
        }
    }
    if (node->block_count == node->block_capacity) {
        size_t capacity = node->block_capacity ? node->block_capacity * 2 : 1024;
        struct block *blocks = realloc(node->blocks, capacity * sizeof *blocks);
        if (!blocks) return NULL;
        node->blocks = blocks;
        node->block_capacity = capacity;
    }
    node->block_free = node->block_count + 1;
    return &node->blocks[node->block_count++];
}

static void block_end(struct node *node, struct block *block) {
    size_t index = (size_t)(block - node->blocks);
    block->id = 0;
    if (block->shared_fd >= 0) close(block->shared_fd);
    if (index < node->block_free) node->block_free = index;
}

struct block *books_find(struct node *node, uint64_t id) {
    uint64_t index = (id & 0xffffffffu) - 1;
    if (index >= node->block_count) return NULL;
    struct block *block = &node->blocks[index];
    return block->id == id && block->linger_until_ns == 0 ? block : NULL;
}

struct block *books_find_file(struct node *node, uint64_t device, uint64_t inode) {
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id && !block->linger_until_ns && block->kind == SIM_KIND_VMM && block->inode == inode &&
            block->device == device)
            return block;
    }
    return NULL;
}

int books_take(struct node *node, struct client *client, uint32_t gpu, uint64_t bytes, uint32_t kind,
               struct block **out) {
    uint64_t granule = node->facts->gpus[gpu].granule_bytes;
    /* Managed memory moves in pieces of 64 KiB, whatever the granule of the rest. */
    if (kind == SIM_KIND_MANAGED) granule = 64u << 10;
    if (bytes == 0 || bytes > UINT64_MAX - 2 * granule) return ABI_ERROR_INVALID_VALUE;
    bytes = (bytes + granule - 1) / granule * granule;
    if (kind == SIM_KIND_ARRAY && node->fat_arrays) bytes += granule;
    if (bytes > gpu_usable(node, gpu) - atomic_load(&node->facts->gpus[gpu].used_bytes)) return ABI_ERROR_OUT_OF_MEMORY;
    uint64_t hard;
    if (kind != SIM_KIND_MANAGED && bytes > limits_room(node, client, gpu, &hard)) return ABI_ERROR_OUT_OF_MEMORY;
    struct block *block = block_new(node);
    struct holding *holding = calloc(1, sizeof *holding);
    if (!block || !holding) {
        free(holding);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    static uint32_t generation;
    *holding = (struct holding){.client = client, .count = 1};
    *block = (struct block){
        .id = (uint64_t)++generation << 32 | (uint64_t)(block - node->blocks + 1),
        .gpu = gpu,
        .kind = kind,
        .bytes = bytes,
        .holders = holding,
        .payer = client,
        .shared_fd = -1,
    };
    account(node, client, block, 1);
    *out = block;
    return ABI_SUCCESS;
}

int books_context(struct node *node, struct client *client, uint32_t gpu, struct block **out) {
    int result = books_take(node, client, gpu, node->gpus[gpu].context_bytes, SIM_KIND_CONTEXT, out);
    if (result == ABI_SUCCESS) client->contexts[gpu]++;
    return result;
}

int books_keep(struct client *client, struct block *block) {
    for (struct holding *holding = block->holders; holding; holding = holding->next) {
        if (holding->client == client) {
            holding->count++;
            return ABI_SUCCESS;
        }
    }
    if (block->away) return ABI_ERROR_INVALID_VALUE;
    struct holding *holding = calloc(1, sizeof *holding);
    if (!holding) return ABI_ERROR_OUT_OF_MEMORY;
    *holding = (struct holding){.client = client, .count = 1};
    struct holding **last = &block->holders;
    while (*last) last = &(*last)->next;
    *last = holding;
    return ABI_SUCCESS;
}

static bool holds(const struct client *client, const struct block *block) {
    const struct holding *holding = block->holders;
    while (holding && holding->client != client) holding = holding->next;
    return holding != NULL;
}

int books_share(struct client *client, struct block *block, int fd) {
    if (!holds(client, block) || fd < 0 || block->shared_fd >= 0) return ABI_ERROR_INVALID_VALUE;
    block->shared_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return block->shared_fd >= 0 ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

int books_open(struct client *client, struct block *block) {
    if (block->shared_fd < 0) return ABI_ERROR_INVALID_VALUE;
    if (holds(client, block)) return ABI_ERROR_INVALID_CONTEXT; /* a process cannot open what it shared itself */
    return books_keep(client, block);
}

static void leave_books(struct node *node, struct block *block) {
    if (!block->away) account(node, block->payer, block, -1);
    block_end(node, block);
}

/* Takes the holding at *place out; the next holder pays, or the memory goes (late, where the node is perturbed). */
static void drop_holding(struct node *node, struct block *block, struct holding **place) {
    struct holding *holding = *place;
    *place = holding->next;
    free(holding);
    if (block->holders) {
        struct client *heir = block->holders->client;
        if (heir != block->payer) {
            account(node, block->payer, block, -1);
            block->payer = heir;
            block->inherited = true;
            account(node, heir, block, 1);
        }
        return;
    }
    if (block->kind == SIM_KIND_CONTEXT) block->payer->contexts[block->gpu]--;
    if (node->late_ns == 0 || block->away) {
        leave_books(node, block);
    } else {
        block->linger_until_ns = node_now_ns() + node_random(node) % node->late_ns;
    }
}

int books_give(struct node *node, struct client *client, struct block *block) {
    for (struct holding **place = &block->holders; *place; place = &(*place)->next) {
        if ((*place)->client != client) continue;
        if (--(*place)->count == 0) drop_holding(node, block, place);
        return ABI_SUCCESS;
    }
    return ABI_ERROR_INVALID_VALUE;
}

void books_bury(struct node *node, struct client *client) {
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id == 0 || block->linger_until_ns) continue;
        for (struct holding **place = &block->holders; *place;) {
            if ((*place)->client == client) {
                drop_holding(node, block, place);
                break;
            }
            place = &(*place)->next;
        }
    }
    client->linger_until_ns = node_now_ns();
}

int books_take_away(struct node *node, struct client *client) {
    for (size_t i = 0; i < node->block_count; i++) {
        const struct block *block = &node->blocks[i];
        if (block->id && !block->linger_until_ns && holds(client, block) && block->holders->next)
            return ABI_ERROR_NOT_SUPPORTED; /* another process has it too */
    }
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (!block->id || block->linger_until_ns || !holds(client, block)) continue;
        account(node, client, block, -1);
        block->away = true;
    }
    return ABI_SUCCESS;
}

int books_bring_back(struct node *node, struct client *client) {
    uint64_t needed[SIM_MAX_GPUS] = {0};
    for (size_t i = 0; i < node->block_count; i++) {
        const struct block *block = &node->blocks[i];
        if (block->id && block->away && block->payer == client) needed[block->gpu] += block->bytes;
    }
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        if (needed[gpu] > gpu_usable(node, gpu) - atomic_load(&node->facts->gpus[gpu].used_bytes))
            return ABI_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (!block->id || !block->away || block->payer != client) continue;
        account(node, client, block, 1);
        block->away = false;
    }
    return ABI_SUCCESS;
}

static bool owes_anything(const struct node *node, const struct client *client) {
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        if (client_bytes(client, gpu, true)) return true;
    }
    return false;
}

uint64_t books_expire(struct node *node, uint64_t now_ns) {
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; node->late_ns && i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id == 0 || block->linger_until_ns == 0) continue;
        if (block->linger_until_ns <= now_ns) leave_books(node, block);
        else if (block->linger_until_ns < next) next = block->linger_until_ns;
    }
    for (struct client **place = &node->clients; *place;) {
        struct client *client = *place;
        if (client->fd < 0 && !owes_anything(node, client)) {
            *place = client->next;
            client_free(node, client);
        } else {
            place = &client->next;
        }
    }
    return next;
}
