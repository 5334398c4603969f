/* Memory accounting of a simulated node: how many bytes of which GPU each process has, and the peak of each watched
 * group. Allocations that do not fit are refused; a process's memory is released when it ends. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../abi/cuda.h"
#include "node.h"

/* Every change of a byte count goes through here, so that sums and peaks stay consistent. */
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
        if (made > group->own_peak[gpu]) group->own_peak[gpu] = made;
    }
}

static struct block *block_new(struct node *node) {
    for (size_t i = node->block_free; i < node->block_count; i++) {
        if (node->blocks[i].id != 0) continue;
        node->block_free = i + 1;
        return &node->blocks[i];
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

struct block *memory_find(struct node *node, uint64_t id) {
    uint64_t index = (id & 0xffffffffu) - 1;
    if (index >= node->block_count) return NULL;
    struct block *block = &node->blocks[index];
    return block->id == id && block->expires_ns == 0 ? block : NULL;
}

struct block *memory_find_file(struct node *node, uint64_t device, uint64_t inode) {
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id && !block->expires_ns && block->kind == SIM_KIND_VMM && block->inode == inode &&
            block->device == device)
            return block;
    }
    return NULL;
}

static int add_block(struct node *node, struct client *client, uint32_t gpu, uint64_t bytes, uint32_t kind,
                     struct block **out) {
    struct block *block = block_new(node);
    struct reference *reference = calloc(1, sizeof *reference);
    if (!block || !reference) {
        free(reference);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    static uint32_t generation;
    *reference = (struct reference){.client = client, .count = 1};
    *block = (struct block){
        .id = (uint64_t)++generation << 32 | (uint64_t)(block - node->blocks + 1),
        .gpu = gpu,
        .kind = kind,
        .bytes = bytes,
        .references = reference,
        .owner = client,
        .inherited = kind == SIM_KIND_GREEN,
        .shared_fd = -1,
    };
    account(node, client, block, 1);
    *out = block;
    return ABI_SUCCESS;
}

int memory_allocate(struct node *node, struct client *client, uint32_t gpu, uint64_t bytes, uint32_t kind,
                    struct block **out) {
    uint64_t granule = node->facts->gpus[gpu].granule_bytes;
    /* Managed memory is allocated in pieces of 64 KiB, whatever the granule of other memory. */
    if (kind == SIM_KIND_MANAGED) granule = 64u << 10;
    if (bytes == 0 || bytes > UINT64_MAX - 2 * granule) return ABI_ERROR_INVALID_VALUE;
    bytes = (bytes + granule - 1) / granule * granule;
    if (kind == SIM_KIND_ARRAY && node->padded_arrays) bytes += granule;
    if (bytes > gpu_usable(node, gpu) - atomic_load(&node->facts->gpus[gpu].used_bytes)) return ABI_ERROR_OUT_OF_MEMORY;
    uint64_t hard;
    if (kind != SIM_KIND_MANAGED && bytes > limits_available(node, client, gpu, &hard)) return ABI_ERROR_OUT_OF_MEMORY;
    return add_block(node, client, gpu, bytes, kind, out);
}

int memory_new_context(struct node *node, struct client *client, uint32_t gpu, struct block **out) {
    int result = memory_allocate(node, client, gpu, node->gpus[gpu].context_bytes, SIM_KIND_CONTEXT, out);
    if (result == ABI_SUCCESS) client->contexts[gpu]++;
    return result;
}

/* Where the client's reference to a block is, or where it would be added. */
static struct reference **place_of(struct block *block, const struct client *client) {
    struct reference **place = &block->references;
    while (*place && (*place)->client != client) place = &(*place)->next;
    return place;
}

int memory_retain(struct client *client, struct block *block) {
    struct reference **place = place_of(block, client);
    if (!*place && block->checkpointed) return ABI_ERROR_INVALID_VALUE;
    if (!*place && !(*place = calloc(1, sizeof **place))) return ABI_ERROR_OUT_OF_MEMORY;
    (*place)->client = client;
    (*place)->count++;
    return ABI_SUCCESS;
}

static bool holds(const struct client *client, struct block *block) {
    return *place_of(block, client) != NULL;
}

int memory_share(struct client *client, struct block *block, int fd) {
    if (!holds(client, block) || fd < 0 || block->shared_fd >= 0) return ABI_ERROR_INVALID_VALUE;
    block->shared_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return block->shared_fd >= 0 ? ABI_SUCCESS : ABI_ERROR_OUT_OF_MEMORY;
}

int memory_share_file(struct node *node, struct client *client, uint32_t gpu, int fd, struct block **out) {
    int result = add_block(node, client, gpu, 0, SIM_KIND_LINEAR, out);
    if (result == ABI_SUCCESS) result = memory_share(client, *out, fd);
    return result;
}

int memory_open_shared(struct client *client, struct block *block, bool by_itself) {
    if (block->shared_fd < 0) return ABI_ERROR_INVALID_VALUE;
    if (!by_itself && holds(client, block)) return ABI_ERROR_INVALID_CONTEXT; /* what it shared itself */
    return memory_retain(client, block);
}

static void release_block(struct node *node, struct block *block) {
    if (!block->checkpointed) account(node, block->owner, block, -1);
    block_end(node, block);
}

/* Drops the reference at *place. The next referencing process becomes the owner, or the memory is released (late, in
 * perturbed mode). */
static void drop_reference(struct node *node, struct block *block, struct reference **place) {
    struct reference *reference = *place;
    *place = reference->next;
    free(reference);
    if (block->references) {
        struct client *heir = block->references->client;
        if (heir != block->owner) {
            account(node, block->owner, block, -1);
            block->owner = heir;
            block->inherited = true;
            account(node, heir, block, 1);
        }
        return;
    }
    if (block->kind == SIM_KIND_CONTEXT) block->owner->contexts[block->gpu]--;
    if (node->max_release_delay_ns == 0 || block->checkpointed) {
        release_block(node, block);
    } else {
        block->expires_ns = node_now_ns() + node_random(node) % node->max_release_delay_ns;
    }
}

int memory_release(struct node *node, struct client *client, struct block *block) {
    struct reference **place = place_of(block, client);
    if (!*place) return ABI_ERROR_INVALID_VALUE;
    if (--(*place)->count == 0) drop_reference(node, block, place);
    return ABI_SUCCESS;
}

void memory_release_all(struct node *node, struct client *client) {
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id == 0 || block->expires_ns) continue;
        struct reference **place = place_of(block, client);
        if (*place) drop_reference(node, block, place);
    }
}

int memory_checkpoint(struct node *node, struct client *client) {
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id && !block->expires_ns && holds(client, block) && block->references->next)
            return ABI_ERROR_NOT_SUPPORTED; /* another process has a reference too */
    }
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (!block->id || block->expires_ns || !holds(client, block)) continue;
        account(node, client, block, -1);
        block->checkpointed = true;
    }
    return ABI_SUCCESS;
}

int memory_restore(struct node *node, struct client *client) {
    uint64_t needed[SIM_MAX_GPUS] = {0};
    for (size_t i = 0; i < node->block_count; i++) {
        const struct block *block = &node->blocks[i];
        if (block->id && block->checkpointed && block->owner == client) needed[block->gpu] += block->bytes;
    }
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        if (needed[gpu] > gpu_usable(node, gpu) - atomic_load(&node->facts->gpus[gpu].used_bytes))
            return ABI_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (!block->id || !block->checkpointed || block->owner != client) continue;
        account(node, client, block, 1);
        block->checkpointed = false;
    }
    return ABI_SUCCESS;
}

static bool holds_memory(const struct node *node, const struct client *client) {
    for (uint32_t gpu = 0; gpu < node->facts->gpu_count; gpu++) {
        if (client_bytes(client, gpu, true)) return true;
    }
    return false;
}

uint64_t memory_expire(struct node *node, uint64_t now_ns) {
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; node->max_release_delay_ns && i < node->block_count; i++) {
        struct block *block = &node->blocks[i];
        if (block->id == 0 || block->expires_ns == 0) continue;
        if (block->expires_ns <= now_ns) release_block(node, block);
        else if (block->expires_ns < next) next = block->expires_ns;
    }
    for (struct client **place = &node->clients; *place;) {
        struct client *client = *place;
        if (client->fd < 0 && !holds_memory(node, client)) {
            *place = client->next;
            client_free(node, client);
        } else {
            place = &client->next;
        }
    }
    return next;
}
