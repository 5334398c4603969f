/* Runs a program with a PID from a range: run_in_pid_range FIRST_PID LAST_PID PROGRAM ARGUMENT.... Ends with its exit
 * status, and the program ends with this one. Exit code 4: no permission to choose PIDs. */
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "pids.h"

int main(int count, char **words) {
    if (count < 4) return 2;
    random_state = (uint64_t)getpid();
    const pid_t child = fork_within(atoi(words[1]), atoi(words[2]));
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execvp(words[3], words + 3);
        perror(words[3]);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror(child < 0 ? "within: no process under a pid of the range" : "within: waitpid");
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
