/* The commands that query or change a running node. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../abi/nvml.h"
#include "../../client/client.h"
#include "requests.h"

static int perform(const char *dir, const struct sim_request *request) {
    static char payload[SIM_MAX_PAYLOAD];
    int fds[2], count;
    int fd = sim_link_connect(dir, SIM_ROLE_CONTROL, 0, &fds[0], &fds[1]);
    if (fd < 0) {
        const char *why = errno == EPROTO ? "the node uses another version of the protocol" : strerror(errno);
        fprintf(stderr, "cotenant-simulator: %s/" SIM_SOCKET_NAME ": %s; is a simulated node running there?\n", dir,
                why);
        return 1;
    }
    struct sim_reply reply;
    if (sim_link_exchange(fd, request, -1, &reply, payload, sizeof payload, fds, &count) != 0) {
        fputs("cotenant-simulator: the node did not answer\n", stderr);
        return 1;
    }
    if (reply.result != 0) {
        fprintf(stderr, "cotenant-simulator: the node refused the request with code %d\n", reply.result);
        return 1;
    }
    if (reply.payload_bytes) printf("%.*s\n", (int)reply.payload_bytes, payload);
    return 0;
}

/* Commands: a name, a second word where `what` has one, and `numbers` numbers, the first of which is a GPU where there
 * is a state. `fixed` is the value of commands without one. */
static const struct command {
    const char *name, *what;
    int numbers;
    uint32_t op, state;
    uint64_t fixed;
} COMMANDS[] = {
    {"usage", NULL, 0, SIM_USAGE, 0, 0},
    {"watch", NULL, 1, SIM_WATCH, 0, 0},
    {"process-list-delay", NULL, 1, SIM_PROCESS_LIST_DELAY_US, 0, 0},
    {"ignore-limits", NULL, 1, SIM_IGNORE_LIMITS, 0, 0},
    {"temperature", NULL, 2, SIM_SET_STATE, SIM_STATE_TEMPERATURE, 0},
    {"lose", NULL, 1, SIM_SET_STATE, SIM_STATE_LOST, 1},
    {"recover", NULL, 1, SIM_SET_STATE, SIM_STATE_LOST, 0},
    {"hide", NULL, 1, SIM_SET_STATE, SIM_STATE_HIDDEN, 1},
    {"show", NULL, 1, SIM_SET_STATE, SIM_STATE_HIDDEN, 0},
    {"hide-process-memory", NULL, 2, SIM_SET_STATE, SIM_STATE_HIDE_PROCESS_MEMORY, 0},
    {"reset", NULL, 1, SIM_SET_STATE, SIM_STATE_RESET, 0},
    {"xid", NULL, 2, SIM_REPORT_XID, 0, 0},
    {"ecc", "corrected", 2, SIM_SET_STATE, SIM_STATE_ECC_CORRECTED_MORE, 0},
    {"ecc", "uncorrected", 2, SIM_SET_STATE, SIM_STATE_ECC_UNCORRECTED_MORE, 0},
    {"rows", "corrected", 2, SIM_SET_STATE, SIM_STATE_ROWS_CORRECTED_MORE, 0},
    {"rows", "uncorrected", 2, SIM_SET_STATE, SIM_STATE_ROWS_UNCORRECTED_MORE, 0},
    {"rows", "pending", 2, SIM_SET_STATE, SIM_STATE_ROWS_PENDING, 0},
    {"rows", "failed", 2, SIM_SET_STATE, SIM_STATE_ROWS_FAILED, 0},
    {"throttle", "none", 1, SIM_SET_STATE, SIM_STATE_THROTTLE, 0},
    {"throttle", "power-cap", 1, SIM_SET_STATE, SIM_STATE_THROTTLE, NVML_ABI_CLOCKS_POWER_CAP},
    {"throttle", "hw-slowdown", 1, SIM_SET_STATE, SIM_STATE_THROTTLE, NVML_ABI_CLOCKS_HW_SLOWDOWN},
    {"throttle", "sw-thermal", 1, SIM_SET_STATE, SIM_STATE_THROTTLE, NVML_ABI_CLOCKS_SW_THERMAL},
    {"throttle", "hw-thermal", 1, SIM_SET_STATE, SIM_STATE_THROTTLE,
     NVML_ABI_CLOCKS_HW_THERMAL | NVML_ABI_CLOCKS_HW_SLOWDOWN},
    {"throttle", "power-brake", 1, SIM_SET_STATE, SIM_STATE_THROTTLE,
     NVML_ABI_CLOCKS_POWER_BRAKE | NVML_ABI_CLOCKS_HW_SLOWDOWN},
    {"pcie", "received", 2, SIM_SET_STATE, SIM_STATE_PCIE_RECEIVED_MORE, 0},
    {"pcie", "sent", 2, SIM_SET_STATE, SIM_STATE_PCIE_SENT_MORE, 0},
    {"nvlink", "received", 2, SIM_SET_STATE, SIM_STATE_NVLINK_RECEIVED_MORE, 0},
    {"nvlink", "sent", 2, SIM_SET_STATE, SIM_STATE_NVLINK_SENT_MORE, 0},
    {"activity", "occupancy", 2, SIM_SET_STATE, SIM_STATE_ACTIVE + SIM_ACTIVE_OCCUPANCY, 0},
    {"activity", "tensor", 2, SIM_SET_STATE, SIM_STATE_ACTIVE + SIM_ACTIVE_TENSOR, 0},
    {"activity", "dram", 2, SIM_SET_STATE, SIM_STATE_ACTIVE + SIM_ACTIVE_DRAM, 0},
    {"activity", "fp32", 2, SIM_SET_STATE, SIM_STATE_ACTIVE + SIM_ACTIVE_FP32, 0},
};

static const struct command *command_of(const char *name, const char *what, int numbers) {
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++) {
        const struct command *command = &COMMANDS[i];
        if (strcmp(command->name, name) != 0 || command->numbers != numbers) continue;
        if (command->what ? what && !strcmp(command->what, what) : !what) return command;
    }
    return NULL;
}

int control_main(int argc, char **argv) {
    const char *dir = NULL, *what = NULL;
    uint64_t numbers[2] = {0};
    int count = 0;
    for (int i = 2; i < argc; i++) {
        char *end;
        if (!strcmp(argv[i], "--dir") && i + 1 < argc) {
            dir = argv[++i];
            continue;
        }
        uint64_t number = strtoull(argv[i], &end, 10);
        if (*end || end == argv[i]) {
            if (what) return -1;
            what = argv[i];
        } else if (count < 2) {
            numbers[count++] = number;
        } else {
            return -1;
        }
    }
    const struct command *command = command_of(argv[1], what, count);
    if (!dir || !command) return -1;
    struct sim_request request = {.op = command->op, .arg = {numbers[0]}};
    if (command->op == SIM_SET_STATE || command->op == SIM_REPORT_XID) {
        uint64_t value = count == 2 ? numbers[1] : command->fixed;
        request.gpu = (uint32_t)numbers[0];
        request.arg[0] = command->op == SIM_REPORT_XID ? value : command->state;
        request.arg[1] = value;
    }
    return perform(dir, &request);
}
