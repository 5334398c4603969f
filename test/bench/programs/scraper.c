/* Scrapes pages as Prometheus does, and prints how long each scrape took: several scrapers begin at the same moment,
 * each over a connection that stays open, and take the servers in turns. It does nothing else meanwhile: no collector
 * of its own, no event loop, so that what is measured is the server. scraper SCRAPERS ENCODING ROUNDS EVERY_MS PORT...
 * One line a scrape: the server's place among the ports, nanoseconds from before the request is written until the last
 * byte of the body is read. A request is due every EVERY_MS milliseconds. Anything but a body of a given length is an
 * error. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST_SERVERS 8
#define MOST_SCRAPERS 16
#define HEADERS 4096

static unsigned servers, rounds, every_ms;
static const char *encoding;
static uint16_t ports[MOST_SERVERS];
static pthread_barrier_t together;

typedef struct {
    int sockets[MOST_SERVERS];
    uint64_t *took; /* rounds × servers, nanoseconds */
} scraper;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fputs("scraper: ", stderr);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wait_until(uint64_t at) {
    struct timespec due = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) continue;
}

static int connect_to(uint16_t port) {
    int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1;
    if (socket_fd < 0 || connect(socket_fd, (struct sockaddr *)&address, sizeof address) < 0)
        fail("port %u: %s", port, strerror(errno));
    setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket_fd;
}

/* The value of `name` in the headers that `text` holds, or null. */
static const char *header(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *line = strstr(text, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, length) == 0 && line[2 + length] == ':') return line + 3 + length;
    return NULL;
}

static size_t receive(int socket_fd, void *into, size_t capacity, uint16_t port) {
    for (;;) {
        ssize_t got = recv(socket_fd, into, capacity, 0);
        if (got > 0) return (size_t)got;
        if (got < 0 && errno == EINTR) continue;
        fail("port %u: %s amid an answer", port, got == 0 ? "it hung up" : strerror(errno));
    }
}

static void scrape(int socket_fd, uint16_t port) {
    char request[256];
    int asked = snprintf(request, sizeof request,
                         "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nAccept-Encoding: %s\r\n\r\n", port, encoding);
    if (send(socket_fd, request, (size_t)asked, MSG_NOSIGNAL) != asked) fail("port %u: %s", port, strerror(errno));

    char head[HEADERS + 1];
    size_t have = 0;
    char *end = NULL;
    while (!end) {
        if (have == HEADERS) fail("port %u: more than %d bytes of headers", port, HEADERS);
        have += receive(socket_fd, head + have, HEADERS - have, port);
        head[have] = 0;
        end = strstr(head, "\r\n\r\n");
    }
    if (strncmp(head, "HTTP/1.1 200 ", 13) != 0) fail("port %u: %.*s", port, (int)strcspn(head, "\r"), head);
    size_t got = have - (size_t)(end + 4 - head);
    end[2] = 0;
    const char *value_text = header(head, "content-length");
    if (!value_text) fail("port %u: it has no content-length", port);
    size_t length = strtoull(value_text, NULL, 10);
    if (length == 0) fail("port %u: an empty body", port);
    char body[65536];
    while (got < length) got += receive(socket_fd, body, length - got < sizeof body ? length - got : sizeof body, port);
    if (got > length) fail("port %u: more than the body", port);
}

static void *run(void *argument) {
    scraper *self = argument;
    for (unsigned round = 0; round < rounds; round += 1)
        for (unsigned server = 0; server < servers; server += 1) {
            pthread_barrier_wait(&together);
            uint64_t started = now_ns();
            scrape(self->sockets[server], ports[server]);
            self->took[round * servers + server] = now_ns() - started;
            wait_until(started + every_ms * UINT64_C(1000000));
        }
    return NULL;
}

static unsigned number(const char *text, const char *what, unsigned least, unsigned most) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (*text == 0 || *end != 0 || value < least || value > most)
        fail("%s is from %u to %u, not \"%s\"", what, least, most, text);
    return (unsigned)value;
}

int main(int argc, char **argv) {
    if (argc < 6 || argc > 5 + MOST_SERVERS) fail("usage: scraper SCRAPERS ENCODING ROUNDS EVERY_MS PORT...");
    unsigned scrapers = number(argv[1], "SCRAPERS", 1, MOST_SCRAPERS);
    encoding = argv[2];
    if (strlen(encoding) > 64 || strpbrk(encoding, "\r\n")) fail("ENCODING is one word");
    rounds = number(argv[3], "ROUNDS", 1, 1000000);
    every_ms = number(argv[4], "EVERY_MS", 1, 60000);
    servers = (unsigned)argc - 5;
    for (unsigned server = 0; server < servers; server += 1)
        ports[server] = (uint16_t)number(argv[5 + server], "PORT", 1, 65535);

    static scraper all[MOST_SCRAPERS];
    pthread_t threads[MOST_SCRAPERS];
    pthread_barrier_init(&together, NULL, scrapers);
    for (unsigned each = 0; each < scrapers; each += 1) {
        all[each].took = calloc((size_t)rounds * servers, sizeof *all[each].took);
        if (!all[each].took) fail("no memory");
        for (unsigned server = 0; server < servers; server += 1) all[each].sockets[server] = connect_to(ports[server]);
    }
    for (unsigned each = 0; each < scrapers; each += 1) {
        int failed = pthread_create(&threads[each], NULL, run, &all[each]);
        if (failed) fail("a thread: %s", strerror(failed));
    }
    for (unsigned each = 0; each < scrapers; each += 1) pthread_join(threads[each], NULL);
    for (unsigned round = 0; round < rounds; round += 1)
        for (unsigned server = 0; server < servers; server += 1)
            for (unsigned each = 0; each < scrapers; each += 1)
                printf("%u %" PRIu64 "\n", server, all[each].took[round * servers + server]);
    return fflush(stdout) == 0 ? 0 : 1;
}
