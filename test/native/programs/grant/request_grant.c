/* request_grant PATH: connects to a socket and requests a grant there. Prints errno of the failed call, or 0 and the
 * first line of the response. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int main(int argc, char **argv) {
    static const char REQUEST[] = "POST /v1/grants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                  "Content-Length: 2\r\nConnection: close\r\n\r\n{}";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char answer[256] = "";
    if (argc != 2) return 2;
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]) >= (int)sizeof address.sun_path) return 2;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int failed = fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    if (!failed && write(fd, REQUEST, sizeof REQUEST - 1) < 0) failed = errno;
    if (!failed && read(fd, answer, sizeof answer - 1) < 0) failed = errno;
    printf("%d %.*s\n", failed, (int)strcspn(answer, "\r\n"), answer);
    return 0;
}
