/* Finds a debugger of this process, or a profiler that was injected into it. Both stretch execution times, which is
 * published for readers of times. It does not change limits, as a tenant can use either.
 *
 * CUPTI alone proves nothing: frameworks link it whether or not anything is profiled. */
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <unistd.h>

#include "../../libc.h"
#include "slots.h"

static const struct {
    const char *file; /* how its name begins */
    uint64_t observer;
} OBJECTS[] = {
    {"libToolsInjection", COT_OBSERVER_PROFILER},       /* Nsight Systems */
    {"libcuda-injection", COT_OBSERVER_PROFILER},       /* Nsight Compute */
    {"libsanitizer-collection", COT_OBSERVER_DEBUGGER}, /* Compute Sanitizer */
    {"libcudadebugger", COT_OBSERVER_DEBUGGER},         /* the driver's side of cuda-gdb */
};

static int look_at(struct dl_phdr_info *object, size_t size, void *data) {
    const char *slash = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
    const char *name = slash ? slash + 1 : object->dlpi_name;
    for (size_t i = 0; name && i < sizeof OBJECTS / sizeof *OBJECTS; i++) {
        if (!strncmp(name, OBJECTS[i].file, strlen(OBJECTS[i].file))) *(uint64_t *)data |= OBJECTS[i].observer;
    }
    return 0;
}

static bool is_traced(void) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (length <= 0) return false;
    text[length] = 0;
    const char *line = strstr(text, "\nTracerPid:");
    return line && cot_digits(line + strlen("\nTracerPid:\t")) != 0;
}

uint64_t cot_observers(void) {
    uint64_t found = is_traced() ? COT_OBSERVER_DEBUGGER : 0;
    dl_iterate_phdr(look_at, &found);
    return found;
}
