/* The address space of one process's device memory: ranges of pages (regions), and which region a page belongs to. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../sim.h"

static char *arena;
static uint64_t arena_pages;
static uint32_t *page_owner; /* index into regions plus one by page, so untouched (zero) pages are free */
static struct sim_region **regions;
static uint32_t region_count, region_capacity, *region_spare, region_spare_count;
static uint64_t next_page, serials;

int sim_arena_start(uint64_t bytes) {
    arena_pages = bytes / SIM_PAGE;
    char *map =
        mmap(NULL, bytes + SIM_PAGE * 64, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    page_owner = mmap(NULL, arena_pages * sizeof *page_owner, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || page_owner == MAP_FAILED) return ABI_ERROR_OUT_OF_MEMORY;
    uintptr_t aligned = ((uintptr_t)map + SIM_PAGE * 64 - 1) / (SIM_PAGE * 64) * (SIM_PAGE * 64);
    arena = (char *)aligned;
    madvise(arena, bytes, MADV_DONTDUMP);
    return ABI_SUCCESS;
}

bool sim_in_arena(abi_devptr pointer) {
    return arena && pointer >= (uintptr_t)arena && pointer < (uintptr_t)arena + arena_pages * SIM_PAGE;
}

abi_devptr sim_region_address(const struct sim_region *region) {
    return (uintptr_t)arena + region->page * SIM_PAGE;
}

struct sim_region *sim_region_at(abi_devptr pointer) {
    if (!sim_in_arena(pointer)) return NULL;
    uint32_t owner = page_owner[(pointer - (uintptr_t)arena) / SIM_PAGE];
    return owner ? regions[owner - 1] : NULL;
}

static bool find_pages(uint64_t pages, uint64_t step, uint64_t *first) {
    for (int round = 0; round < 2; round++) {
        uint64_t page = round == 0 ? (next_page + step - 1) / step * step : 0;
        while (page + pages <= arena_pages) {
            uint64_t run = 0;
            while (run < pages && !page_owner[page + run]) run++;
            if (run == pages) {
                *first = page;
                return true;
            }
            const struct sim_region *wall = regions[page_owner[page + run] - 1];
            page = (wall->page + wall->pages + step - 1) / step * step;
        }
    }
    return false;
}

int sim_region_new(enum sim_region_kind kind, uint64_t bytes, uint64_t alignment, struct sim_region **out) {
    uint64_t pages = (bytes + SIM_PAGE - 1) / SIM_PAGE, step = (alignment + SIM_PAGE - 1) / SIM_PAGE, first;
    if (step == 0) step = 1;
    if (pages == 0 || pages > arena_pages) return ABI_ERROR_OUT_OF_MEMORY;
    if (region_spare_count == 0 && region_count == region_capacity) {
        uint32_t capacity = region_capacity ? region_capacity * 2 : 256;
        struct sim_region **grown = realloc(regions, capacity * sizeof *grown);
        uint32_t *unused = realloc(region_spare, capacity * sizeof *unused);
        if (grown) regions = grown;
        if (unused) region_spare = unused;
        if (!grown || !unused) return ABI_ERROR_OUT_OF_MEMORY;
        region_capacity = capacity;
    }
    struct sim_region *region = calloc(1, sizeof *region);
    if (!region || !find_pages(pages, step, &first)) {
        free(region);
        return ABI_ERROR_OUT_OF_MEMORY;
    }
    uint32_t index = region_spare_count ? region_spare[--region_spare_count] : region_count++;
    regions[index] = region;
    *region = (struct sim_region){.kind = kind, .page = first, .pages = pages, .bytes = bytes, .serial = ++serials};
    for (uint64_t i = 0; i < pages; i++) page_owner[first + i] = index + 1;
    next_page = first + pages;
    *out = region;
    return ABI_SUCCESS;
}

bool sim_region_extend(struct sim_region *region, uint64_t pages) {
    uint64_t end = region->page + region->pages, last = region->page + pages;
    if (last > arena_pages) return false;
    for (uint64_t page = end; page < last; page++)
        if (page_owner[page]) return false;
    for (uint64_t page = end; page < last; page++) page_owner[page] = page_owner[region->page];
    region->pages = pages;
    return true;
}

/* A fresh mapping, not just dropped pages: the old one may map physical memory by handle. Where the kernel has no room
 * for another mapping, the old bytes stay, but no table refers to them. */
void sim_arena_forget(uint64_t page, uint64_t count) {
    (void)!mmap(arena + page * SIM_PAGE, count * SIM_PAGE, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void sim_region_end(struct sim_region *region) {
    uint32_t index = page_owner[region->page] - 1;
    memset(&page_owner[region->page], 0, region->pages * sizeof *page_owner);
    sim_arena_forget(region->page, region->pages);
    if (region->page < next_page) next_page = region->page;
    regions[index] = NULL;
    region_spare[region_spare_count++] = index;
    free(region->units);
    free(region->unit_ids);
    free(region->used);
    free(region->mapped);
    free(region->starts);
    free(region->access);
    free(region->advice);
    free(region);
}

struct sim_region *sim_region_next(uint32_t *index) {
    while (*index < region_count) {
        struct sim_region *region = regions[(*index)++];
        if (region) return region;
    }
    return NULL;
}

bool sim_small_range(const struct sim_region *region, abi_devptr pointer, abi_devptr *start, uint64_t *bytes) {
    int64_t unit = (int64_t)((pointer - sim_region_address(region)) / SIM_SMALL_UNIT);
    for (int64_t at = unit; at >= 0; at--) {
        if (region->units[at] == 0) continue;
        if (at + region->units[at] <= unit) return false;
        *start = sim_region_address(region) + (uint64_t)at * SIM_SMALL_UNIT;
        *bytes = (uint64_t)region->units[at] * SIM_SMALL_UNIT;
        return true;
    }
    return false;
}
