/* The processes of a random program: started with the environment of a granted container, asked over a socket, killed,
 * and checked whenever one of them pauses within a step. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conductor.h"

struct process processes[PROCESSES];
struct run run;

void fail(const char *text) {
    if (run.wrong) return;
    snprintf(run.wrong_text, sizeof run.wrong_text, "%s", text);
    run.wrong = run.wrong_text;
}

void *make_file(const char *path, size_t bytes) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *map = fd < 0 || ftruncate(fd, (off_t)bytes) ? MAP_FAILED
                                                      : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    return map;
}

static void set_environment(unsigned index) {
    char path[4200];
    setenv("COTENANT_SIM_PLAN", processes[index].plan_path, 1);
    snprintf(path, sizeof path, "%s/shared", run.scratch);
    setenv("RANDOM_PROGRAMS_SHARED", path, 1);
    if (index % 2) setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    else unsetenv("CUDA_VISIBLE_DEVICES");
    snprintf(path, sizeof path, "%s/lib", run.node);
    setenv("LD_LIBRARY_PATH", path, 1);
    const char *first = getenv("RANDOM_PROGRAMS_PRELOAD");
    snprintf(path, sizeof path, "%s%s%s/libcotenant.so", first ? first : "", first ? " " : "", run.grant);
    setenv("LD_PRELOAD", path, 1);
}

/* False: it is gone. */
bool hear(struct process *process, struct answer *answer) {
    for (;;) {
        if (atomic_load(&process->plan->met) && process->plan->act == SIM_PLAN_PAUSE) {
            struct subject subjects[PROCESSES];
            for (unsigned i = 0; i < PROCESSES; i++) {
                bool this_one = &processes[i] == process;
                subjects[i] = (struct subject){processes[i].pid, processes[i].stale, processes[i].unsure || this_one};
            }
            run.counts.pauses++;
            run.counts.checks++;
            const char *text = check_read() ? check_all(subjects, PROCESSES) : "the usage on the GPUs cannot be read";
            if (text) {
                snprintf(run.wrong_text, sizeof run.wrong_text, "before its %s: %s", process->plan->symbol, text);
                run.wrong = run.wrong ? run.wrong : run.wrong_text;
            }
            atomic_store(&process->plan->at, 0);
            atomic_store(&process->plan->met, 0);
        }
        ssize_t length = recv(process->socket, answer, sizeof *answer, MSG_DONTWAIT);
        if (length == (ssize_t)sizeof *answer) return true;
        if (length >= 0 || (errno != EAGAIN && errno != EINTR)) return false;
        if (process->plan->at && process->plan->act == SIM_PLAN_PAUSE) {
            sched_yield();
        } else {
            struct pollfd wait = {.fd = process->socket, .events = POLLIN};
            if (poll(&wait, 1, 60000) == 0) {
                fail("a process does not answer within a minute");
                return false;
            }
        }
    }
}

void wait_for_end(struct process *process) {
    struct pollfd wait = {.fd = process->pidfd, .events = POLLIN};
    if (poll(&wait, 1, 60000) != 1) fail("a process does not end within a minute");
    close(process->pidfd);
    close(process->socket);
    process->pid = 0;
    process->stale = process->unsure = process->away = false;
    atomic_store(&process->plan->at, 0);
    atomic_store(&process->plan->met, 0);
    run.counts.deaths++;
}

void kill_process(struct process *process) {
    if (!process->pid) return;
    kill(process->pid, SIGKILL);
    wait_for_end(process);
}

/* The next one that reports. */
void welcome(struct process *process) {
    struct ucred peer;
    socklen_t size = sizeof peer;
    struct answer answer;
    struct pollfd wait = {.fd = run.listener, .events = POLLIN};
    atomic_store(&process->plan->at, 0);
    atomic_store(&process->plan->met, 0);
    process->socket = poll(&wait, 1, 60000) == 1 ? accept4(run.listener, NULL, NULL, SOCK_CLOEXEC) : -1;
    if (process->socket < 0 || getsockopt(process->socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        fail("a process does not start within a minute");
        return;
    }
    process->pid = peer.pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    run.counts.births++;
    if (!hear(process, &answer) || answer.result != ABI_SUCCESS) fail("cuInit does not succeed");
}

void start_process(struct process *process) {
    char program[4096] = {0};
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) exit(2);
    pid_t child = fork();
    if (child == 0) {
        set_environment((unsigned)(process - processes));
        execl(program, program, "--worker", run.socket_path, (char *)NULL);
        _exit(127);
    }
    welcome(process);
}

bool ask(struct process *process, const struct request *request, struct answer *answer) {
    if (send(process->socket, request, sizeof *request, MSG_NOSIGNAL) != (ssize_t)sizeof *request) return false;
    return hear(process, answer);
}
