#include "control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../protocol.h"

static int complain(const char *what) {
    fprintf(stderr, "cotenant-simulator: %s\n", what);
    return 1;
}

static int send_request(int fd, const struct sim_request *request, struct sim_reply *reply, char *payload) {
    static char buffer[sizeof(struct sim_reply) + SIM_MAX_PAYLOAD];
    if (send(fd, request, sizeof *request, MSG_NOSIGNAL) != (ssize_t)sizeof *request) return -1;
    ssize_t length = recv(fd, buffer, sizeof buffer, 0);
    if (length < (ssize_t)sizeof *reply) return -1;
    memcpy(reply, buffer, sizeof *reply);
    if ((size_t)length != sizeof *reply + reply->payload_bytes) return -1;
    memcpy(payload, buffer + sizeof *reply, reply->payload_bytes);
    return 0;
}

static int perform(const char *dir, const struct sim_request *request) {
    static char payload[SIM_MAX_PAYLOAD];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/" SIM_SOCKET_NAME, dir) >= (int)sizeof address.sun_path)
        return complain("--dir is too long");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        fprintf(stderr, "cotenant-simulator: %s: %s; is a node served there?\n", address.sun_path, strerror(errno));
        return 1;
    }
    struct sim_request hello = {.op = SIM_HELLO, .arg = {SIM_ROLE_CONTROL}};
    struct sim_reply reply;
    if (send_request(fd, &hello, &reply, payload) != 0 || reply.arg[0] != SIM_PROTOCOL)
        return complain("the node speaks another protocol");
    if (send_request(fd, request, &reply, payload) != 0) return complain("the node did not answer");
    close(fd);
    if (reply.result != 0) {
        fprintf(stderr, "cotenant-simulator: refused with %d\n", reply.result);
        return 1;
    }
    if (reply.payload_bytes) printf("%.*s\n", (int)reply.payload_bytes, payload);
    return 0;
}

int control_main(int argc, char **argv) {
    struct sim_request request = {0};
    const char *dir = NULL, *words[3] = {NULL, NULL, NULL};
    int count = 0;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--dir") && i + 1 < argc) dir = argv[++i];
        else if (count < 3) words[count++] = argv[i];
        else return -1;
    }
    unsigned long long numbers[3] = {0};
    for (int i = 0; i < count; i++) {
        char *end;
        numbers[i] = strtoull(words[i], &end, 10);
        if (*end || end == words[i]) return -1;
    }
    if (!dir) return -1;
    const char *name = argv[1];
    if (!strcmp(name, "books") && count == 0) request.op = SIM_BOOKS;
    else if (!strcmp(name, "watch") && count == 1) request = (struct sim_request){.op = SIM_WATCH, .arg = {numbers[0]}};
    else if (!strcmp(name, "temperature") && count == 2)
        request = (struct sim_request){
            .op = SIM_SET_STATE, .card = (uint32_t)numbers[0], .arg = {SIM_STATE_TEMPERATURE, numbers[1]}};
    else if (!strcmp(name, "lose") && count == 1)
        request = (struct sim_request){.op = SIM_SET_STATE, .card = (uint32_t)numbers[0], .arg = {SIM_STATE_LOST, 1}};
    else if (!strcmp(name, "find") && count == 1)
        request = (struct sim_request){.op = SIM_SET_STATE, .card = (uint32_t)numbers[0], .arg = {SIM_STATE_LOST, 0}};
    else if (!strcmp(name, "list-cost") && count == 1)
        request = (struct sim_request){.op = SIM_LIST_COST_US, .arg = {numbers[0]}};
    else return -1;
    return perform(dir, &request);
}
