// The sampler's readers of /proc on files of arbitrary bytes. A container chooses its command and its cgroup's path: no
// length of either may lead the reader out of its buffers.
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "../../native/sampler/processes/procfs.h"

extern "C" {
#include "input.h"
}

static input in;

/** By the name that proc.cc is compiled with. */
extern "C" int fuzz_open(const char *path, int flags, ...) {
    char text[2048];
    const size_t length = in.left < 2 ? 0 : input_word(&in) % sizeof text;
    const size_t there = length < in.left ? length : in.left;
    input_bytes(&in, text, length);
    // Some begin as the kernel's do.
    static const char *const OFTEN[] = {"7 (a b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 ", "0::/",
                                        "Name:\ta\nNSpid:\t7\t"};
    const int fd = memfd_create("proc", MFD_CLOEXEC);
    const uint8_t kind = input_byte(&in);
    const char *begin = kind < 192 ? OFTEN[kind % 3] : "";
    if (fd < 0 || write(fd, begin, std::strlen(begin)) < 0 || write(fd, text, there) < 0) std::abort();
    lseek(fd, 0, SEEK_SET);
    return kind == 255 ? (close(fd), -1) : fd;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    in = {data, size};
    proc::Process process;
    if (proc::read_process(static_cast<pid_t>(getpid()), process) && process.command.size() > 1024) std::abort();
    // Who is read again is whom was read before, without whom there is no handle.
    in = {data, size};
    proc::Handle handle;
    proc::Parents parents;
    for (int turn = 0; turn < 2; turn++) {
        proc::read_process(static_cast<pid_t>(getpid()), process, handle);
        if (!handle || !handle.lives()) std::abort();
        if (proc::ancestors(2, 8, parents).size() > 8) std::abort();
    }
    return 0;
}
