/* Forges a slot of its container's ledger that claims to use no memory, then executes a program that is not accounted:
 * forge_ledger LEDGER GPUS PROGRAM ARGUMENTS... The slot is the last one; its lock lasts as long as the open file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../../../native/shared-memory/ledger.h"

static uint64_t start_ticks(void) {
    char text[1024];
    FILE *stat = fopen("/proc/self/stat", "re");
    size_t length = stat ? fread(text, 1, sizeof text - 1, stat) : 0;
    if (stat) fclose(stat);
    text[length] = 0;
    char *word = strrchr(text, ')');
    for (int i = 0; word && i < 20; i++) word = strchr(word + 1, ' ');
    return word ? strtoull(word, NULL, 10) : 0;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    int fd = open(argv[1], O_RDWR); /* stays open in the other program */
    struct cot_ledger_header *ledger;
    uint32_t gpus = (uint32_t)atoi(argv[2]);
    struct stat space, file;
    if (fd < 0 || fstat(fd, &file) != 0 || stat("/proc/self/ns/pid", &space) != 0) return perror(argv[1]), 3;
    ledger = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ledger == MAP_FAILED || cot_ledger_bytes(ledger->slot_count, gpus) > (uint64_t)file.st_size) return 3;
    uint32_t last = ledger->slot_count - 1;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)last, .l_len = 1};
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) return perror("lock"), 3;
    struct cot_slot *slot = (void *)((char *)ledger + cot_ledger_slots_offset(gpus) + last * cot_slot_bytes(gpus));
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    memset(slot, 0, cot_slot_bytes(gpus));
    slot->stamp = ((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec) | 1;
    slot->start_ticks = start_ticks();
    slot->pid_namespace = space.st_ino;
    slot->lock_stamp = slot->stamp;
    ledger->slots_used = ledger->slot_count;
    slot->pid = (uint32_t)getpid();
    execvp(argv[3], argv + 3);
    return perror(argv[3]), 127;
}
