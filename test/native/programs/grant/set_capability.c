/* set_capability FILE: gives a program a capability (CAP_NET_RAW), so that the loader ignores LD_PRELOAD and similar
 * variables when a user without it starts it. Like setcap(8), which not every machine has. */
#include <stdint.h>
#include <stdio.h>
#include <sys/xattr.h>

int main(int argc, char **argv) {
    /* Version 2, effective; permitted and inheritable, low words first (capabilities(7)). */
    const uint32_t data[5] = {0x02000001, 1u << 13, 0, 0, 0};
    if (argc == 2 && !setxattr(argv[1], "security.capability", data, sizeof data, 0)) return 0;
    perror("set_capability");
    return 1;
}
