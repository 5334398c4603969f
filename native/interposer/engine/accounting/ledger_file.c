/* Files in the folder of the grant, and the descriptor of the usage ledger that locks go through. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../libc.h"
#include "slots.h"

bool cot_find_grant_folder(struct cot_grant_path *path) {
    path->folder_length = 0;
    if (!cot_services->folder(path->path, sizeof path->path)) return false;
    path->folder_length = strlen(path->path);
    return true;
}

const char *cot_path_in_grant(struct cot_grant_path *path, const char *name) {
    size_t left = sizeof path->path - path->folder_length;
    return cot_join(path->path + path->folder_length, left, name, "") ? path->path : NULL;
}

int cot_open_high(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0) return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 512);
    if (high < 0) return fd;
    close(fd);
    return high;
}

bool cot_is_ledger(int fd) {
    struct stat info;
    return cot_fstat(fd, &info) == 0 && info.st_dev == cot->slot_lock.ledger_device &&
           info.st_ino == cot->slot_lock.ledger_inode;
}

/* A program may close all descriptors, and reuse their numbers for files of its own. */
int cot_ledger_fd(void) {
    struct cot_grant_path place;
    if (cot_is_ledger(cot->at.ledger_fd)) return cot->at.ledger_fd;
    cot->at.ledger_fd = -1;
    const char *path = cot_find_grant_folder(&place) ? cot_path_in_grant(&place, "/ledger") : NULL;
    int fd = path ? cot_open_high(path, O_RDWR) : -1;
    if (fd >= 0 && cot_is_ledger(fd)) return cot->at.ledger_fd = fd;
    if (fd >= 0) close(fd);
    return -1;
}
