/* CUDA's list of devices is the grant's. The driver numbers its devices by CUDA_VISIBLE_DEVICES, which launchers set to
 * numbers that count from 0. While the driver initializes, the variable holds the UUIDs of the granted GPUs that the
 * program's own value selects: numbers count in the grant, and without a value all of them are listed. The program
 * finds its own value again afterwards, and so do its children. */
#include "visible_devices.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../libc.h"
#include "grant.h"
#include "slots.h"

#define UUID_TEXT 41 /* "GPU-", 36 characters, NUL */
#define NAME "CUDA_VISIBLE_DEVICES"
#define LONGEST (sizeof NAME "=" + (size_t)COT_MAX_GPUS * UUID_TEXT)

struct granted {
    uint32_t count;
    char uuids[COT_MAX_GPUS][UUID_TEXT];
};

/* The page is mapped, and checked in full, when the process attaches. */
static bool read_granted(struct granted *grant) {
    struct cot_grant_path place;
    const char *path = cot_find_grant_folder(&place) ? cot_path_in_grant(&place, "/limits") : NULL;
    struct cot_limits_page page;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return false;
    bool whole = pread(fd, &page, sizeof page, 0) == (ssize_t)sizeof page;
    close(fd);
    if (!whole || page.header.magic != COT_LIMITS_PAGE_MAGIC || !cot_limits_page_known(page.header.version) ||
        page.header.gpu_count > COT_MAX_GPUS)
        return false;
    grant->count = page.header.gpu_count;
    for (uint32_t gpu = 0; gpu < grant->count; gpu++) {
        const uint8_t *u = page.gpus[gpu].uuid;
        snprintf(grant->uuids[gpu], UUID_TEXT,
                 "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3],
                 u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    }
    return true;
}

/* The granted GPU that an entry of the list names, by number or by the beginning of its UUID; or the count. */
static uint32_t named(const struct granted *grant, const char *entry, size_t length) {
    uint32_t found = grant->count;
    if (strncmp(entry, "GPU-", 4) != 0) {
        size_t digits = strspn(entry, "0123456789");
        uint64_t number = digits < 10 ? cot_digits(entry) : grant->count;
        return digits > 0 && digits == length && number < grant->count ? (uint32_t)number : grant->count;
    }
    for (uint32_t gpu = 0; gpu < grant->count; gpu++) {
        if (length >= UUID_TEXT || strncmp(grant->uuids[gpu], entry, length) != 0) continue;
        if (found < grant->count) return grant->count; /* ambiguous */
        found = gpu;
    }
    return found;
}

/* As the driver reads the variable (CUDA C++ Programming Guide, "CUDA Environment Variables"): the first entry that
 * names no device ends the list. */
static void select_granted(const struct granted *grant, const char *wanted, char *text) {
    char *end = text;
    *end = 0;
    for (uint32_t i = 0; i < (wanted ? COT_MAX_GPUS : grant->count); i++) {
        uint32_t gpu = i;
        if (wanted) {
            wanted += strspn(wanted, " ");
            size_t length = strcspn(wanted, ", ");
            gpu = named(grant, wanted, length);
            wanted += length + strspn(wanted + length, " ");
            wanted += *wanted == ',';
        }
        if (gpu == grant->count) return;
        end += snprintf(end, UUID_TEXT + 1, "%s%s", i ? "," : "", grant->uuids[gpu]);
    }
}

/* The last list, which is used again as long as the program's variables are the same. */
static char **_Atomic latest;

static bool is_latest(char **list, const char *text) {
    size_t kept = 0;
    if (!list || strcmp(list[kept++], text) != 0) return false;
    for (char **entry = environ; *entry; entry++) {
        if (strncmp(*entry, NAME "=", sizeof NAME) != 0 && list[kept++] != *entry) return false;
    }
    return !list[kept];
}

void cot_visible_devices_begin(struct cot_visible_devices *change) {
    const char *wanted = getenv(NAME);
    struct granted grant;
    *change = (struct cot_visible_devices){0};
    /* An instance of MIG is no part of a grant, and charged nowhere: what it allocates is refused. */
    if ((wanted && !strncmp(wanted, "MIG-", 4)) || !environ || !read_granted(&grant)) return;
    char text[LONGEST] = NAME "=";
    select_granted(&grant, wanted, text + sizeof NAME);
    if (wanted && !strcmp(text + sizeof NAME, wanted)) return;
    char **list = atomic_load(&latest);
    if (is_latest(list, text)) {
        change->before = environ;
        environ = change->made = list;
        return;
    }
    size_t count = 0, kept = 0;
    while (environ[count]) count++;
    /* Not from the heap: it outlives the engine, and a leak checker of the program would report it. */
    size_t bytes = (count + 2) * sizeof(char *) + sizeof text;
    char **made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return;
    made[kept++] = memcpy(made + count + 2, text, sizeof text);
    for (size_t i = 0; i < count; i++) {
        if (strncmp(environ[i], NAME "=", sizeof NAME) != 0) made[kept++] = environ[i];
    }
    made[kept] = NULL;
    change->before = environ;
    change->made = made;
    atomic_store(&latest, made);
    environ = made;
}

void cot_visible_devices_end(const struct cot_visible_devices *change) {
    if (change->made && environ == change->made) environ = change->before;
}
