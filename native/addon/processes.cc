// Processes: their identity (from /proc), and signals that are sent through a pidfd only after the identity was checked
// again.
#include "addon.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../sampler/processes/procfs.h"

namespace {

bool has_ended(int pidfd) {
    pollfd wait{};
    wait.fd = pidfd;
    wait.events = POLLIN;
    return poll(&wait, 1, 0) > 0;
}

// readProcess(pid) -> {startTicks, parent, ended, leaderless, command, cgroup, pidNamespace, namespacePid} or
// undefined; without namespacePid if it could not be read.
Napi::Value ReadProcess(const Napi::CallbackInfo &info) {
    const Napi::Env env = info.Env();
    proc::Process process;
    if (!proc::read_process(info[0].ToNumber().Int32Value(), process)) return env.Undefined();
    Napi::Object out = Napi::Object::New(env);
    out.Set("startTicks", Napi::Number::New(env, static_cast<double>(process.start_ticks)));
    out.Set("parent", Napi::Number::New(env, process.parent));
    out.Set("ended", Napi::Boolean::New(env, process.ended));
    out.Set("leaderless", Napi::Boolean::New(env, process.leaderless));
    out.Set("command", Napi::String::New(env, process.command));
    out.Set("cgroup", Napi::String::New(env, process.cgroup));
    out.Set("pidNamespace", Napi::Number::New(env, static_cast<double>(process.pid_namespace)));
    if (process.namespace_pid > 0) out.Set("namespacePid", Napi::Number::New(env, process.namespace_pid));
    return out;
}

// isRunning(pid, startTicks): whether that process exists and has not ended.
Napi::Value IsRunning(const Napi::CallbackInfo &info) {
    proc::Process process;
    const bool is_running = proc::read_stat(info[0].ToNumber().Int32Value(), process) && !process.ended &&
                            static_cast<double>(process.start_ticks) == info[1].ToNumber().DoubleValue();
    return Napi::Boolean::New(info.Env(), is_running);
}

// signalExact(pid, startTicks, cgroup, signal) -> 'sent' | 'gone' | 'reused' | 'moved' | 'refused: ...'. Opens the
// pidfd first, then reads and compares the identity in /proc, then checks that the pidfd's process has not ended: only
// then was the identity that of this process.
Napi::Value SignalExact(const Napi::CallbackInfo &info) {
    const Napi::Env env = info.Env();
    const pid_t pid = info[0].ToNumber().Int32Value();
    const uint64_t start_ticks = static_cast<uint64_t>(info[1].ToNumber().Int64Value());
    const std::string cgroup = info[2].ToString().Utf8Value();
    const int signal = info[3].ToNumber().Int32Value();
    auto answer = [&](const std::string &text) { return Napi::String::New(env, text); };
    if (pid <= 1 || pid == getpid()) return answer("refused: not a process that may be signaled");
    const int handle = proc::open_pidfd(pid);
    if (handle < 0) return answer(errno == ESRCH ? "gone" : std::string("refused: ") + std::strerror(errno));
    proc::Process process;
    std::string result = "sent";
    if (!proc::read_process(pid, process)) result = "gone";
    else if (process.start_ticks != start_ticks) result = "reused";
    else if (process.cgroup != cgroup) result = "moved";
    else if (has_ended(handle)) result = "gone";
    else if (syscall(SYS_pidfd_send_signal, handle, signal, nullptr, 0) != 0)
        result = errno == ESRCH ? "gone" : std::string("refused: ") + std::strerror(errno);
    close(handle);
    return answer(result);
}

// becomeSubreaper(): orphaned descendants become children of this process, so that a process tree stays together.
Napi::Value BecomeSubreaper(const Napi::CallbackInfo &info) {
    return Napi::Boolean::New(info.Env(), prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
}

} // namespace

void InitProcesses(Napi::Env env, Napi::Object exports) {
    exports.Set("readProcess", Napi::Function::New(env, ReadProcess));
    exports.Set("isRunning", Napi::Function::New(env, IsRunning));
    exports.Set("signalExact", Napi::Function::New(env, SignalExact));
    exports.Set("becomeSubreaper", Napi::Function::New(env, BecomeSubreaper));
}
