#include "tracker.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include "../common/json.h"

namespace {

constexpr uint64_t REREAD_ROUNDS = 10;     // a process can be moved to another cgroup, or run another program
constexpr uint64_t FULL_READ_ROUNDS = 120; // its parents can end, and reading everything is expensive
constexpr size_t MAX_ANCESTORS = 24;
// Descriptors below this are left for the driver's library, which may use select(2), and for files in /proc.
constexpr rlim_t MAX_RESERVED = 1024;

} // namespace

Processes::Processes() : exits_(epoll_create1(EPOLL_CLOEXEC)) {
    rlimit limit{};
    const bool reported = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    lowest_handle_ = static_cast<int>(reported ? std::min(MAX_RESERVED, limit.rlim_cur / 2) : MAX_RESERVED);
}

void Processes::begin(uint64_t round, bool utilization) {
    round_ = round;
    utilization_ = utilization;
    poll_++;
    starts_.clear();
    parents_.clear();
    for (auto &[pid, known] : tracked_) {
        for (Use &use : known.uses) {
            use.now.listed = use.now.bytes_known = false;
            use.now.bytes = 0;
            use.now.types = 0;
            if (utilization) use.now.sm_percent = 0;
        }
    }
}

Processes::~Processes() {
    if (exits_ >= 0) close(exits_);
}

// A closed pidfd leaves the epoll set by itself: no other descriptor refers to it.
void Processes::watch(pid_t pid, Tracked &known) {
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    wanted.data.fd = pid;
    known.watched =
        exits_ >= 0 && known.handle && epoll_ctl(exits_, EPOLL_CTL_ADD, known.handle.descriptor(), &wanted) == 0;
}

void Processes::poll_exits() {
    epoll_event ended[64];
    constexpr int CAPACITY = sizeof ended / sizeof *ended;
    poll_++;
    starts_.clear();
    for (int count = CAPACITY; exits_ >= 0 && count == CAPACITY;) {
        count = epoll_wait(exits_, ended, CAPACITY, 0);
        for (int i = 0; i < count; i++) {
            const auto found = tracked_.find(ended[i].data.fd);
            if (found == tracked_.end()) continue;
            found->second.handle = proc::Handle();
            found->second.watched = false;
        }
    }
}

// Spreads the next reads of processes that were first seen in one round over different rounds.
void Processes::read_first(pid_t pid, Tracked &known) {
    known.gone = !proc::read_process(pid, known.process, known.handle);
    known.handle.move_up(lowest_handle_);
    watch(pid, known);
    parents_[pid] = known.process.parent;
    known.ancestors = proc::ancestors(pid, MAX_ANCESTORS, parents_);
    known.read_round = round_ + 1 + static_cast<uint64_t>(pid) % REREAD_ROUNDS;
    known.full_read_round = round_ + 1 + static_cast<uint64_t>(pid) % FULL_READ_ROUNDS;
}

// For a process whose pidfd shows that it runs.
void Processes::read_changes(pid_t pid, Tracked &known) {
    bool changed = false;
    if (known.gone || round_ >= known.full_read_round || !proc::read_changes(pid, known.process, known.handle, changed))
        return read_again(pid, known);
    known.identity_changed = known.identity_changed || changed;
    known.read_round = round_ + REREAD_ROUNDS;
}

void Processes::read_again(pid_t pid, Tracked &known) {
    proc::Process now = known.process;
    const bool gone = !proc::read_process(pid, now, known.handle);
    if (now.start_ticks != known.process.start_ticks) { // the PID was reused in the meantime
        const uint64_t settled = known.known;
        known = Tracked{};
        known.seen_round = round_;
        known.known = settled;
        return read_first(pid, known);
    }
    if (now.ended) { // its pidfd would only report the exit again
        known.handle = proc::Handle();
        known.watched = false;
    }
    if (!known.watched) {
        known.handle.move_up(lowest_handle_);
        watch(pid, known);
    }
    parents_[pid] = now.parent;
    std::vector<pid_t> ancestors = proc::ancestors(pid, MAX_ANCESTORS, parents_);
    if (gone != known.gone || now.command != known.process.command || now.cgroup != known.process.cgroup ||
        now.pid_namespace != known.process.pid_namespace || now.namespace_pid != known.process.namespace_pid ||
        ancestors != known.ancestors)
        known.identity_changed = true;
    known.gone = gone;
    known.process = std::move(now);
    known.ancestors = std::move(ancestors);
    known.read_round = round_ + REREAD_ROUNDS;
    known.full_read_round = round_ + FULL_READ_ROUNDS;
}

// A PID with a new start time is another process: it does not inherit the old one's use.
Processes::Tracked &Processes::identify(pid_t pid) {
    Tracked &known = tracked_[pid];
    known.seen_round = round_;
    if (known.known == poll_) return known;
    known.known = poll_;
    if (known.watched || known.handle.lives()) {
        if (round_ >= known.read_round) read_changes(pid, known);
        return known;
    }
    known.handle = proc::Handle();
    known.watched = false;
    proc::Process stat;
    if (!proc::read_stat(pid, stat)) {
        known.identity_changed = known.identity_changed || !known.gone;
        known.gone = true;
    } else if (known.read_round == 0 || stat.start_ticks != known.process.start_ticks) {
        known = Tracked{};
        known.seen_round = round_;
        known.known = poll_;
        known.process = std::move(stat);
        read_first(pid, known);
    } else if (known.gone || round_ >= known.read_round) {
        read_again(pid, known);
    }
    return known;
}

std::optional<uint64_t> Processes::start_of(pid_t pid) const {
    const auto found = tracked_.find(pid);
    if (found != tracked_.end() && (found->second.watched || found->second.handle.lives()))
        return found->second.process.start_ticks;
    const auto [place, is_new] = starts_.try_emplace(pid);
    if (!is_new) return place->second;
    proc::Process stat;
    if (proc::read_stat(pid, stat)) place->second = stat.start_ticks;
    else if (kill(pid, 0) != 0 && errno == ESRCH) place->second = 0;
    return place->second;
}

Usage &Processes::use(pid_t pid, size_t gpu) {
    Tracked &known = identify(pid);
    auto place = known.uses.begin();
    while (place != known.uses.end() && place->gpu < gpu) ++place;
    if (place == known.uses.end() || place->gpu != gpu) {
        place = known.uses.insert(place, Use{gpu, {}, {}});
        known.uses_changed = true;
    }
    return place->now;
}

Usage *Processes::listed(pid_t pid, size_t gpu, uint64_t asked_ticks) {
    if (identify(pid).process.start_ticks >= asked_ticks) return nullptr;
    return &use(pid, gpu);
}

bool Processes::is_reported(const Tracked &known) {
    return !known.identity_changed && !known.uses_changed &&
           std::all_of(known.uses.begin(), known.uses.end(), [](const Use &use) { return use.now == use.reported; });
}

void Processes::write(pid_t pid, const Tracked &known, std::string &out) {
    using json::add_field;
    json::open(out, '{');
    add_field(out, "pid", pid);
    if (known.identity_changed && known.gone) add_field(out, "gone", true); // not in /proc (any more)
    if (known.identity_changed && known.read_round != 0) {
        add_field(out, "startTicks", known.process.start_ticks);
        add_field(out, "command", known.process.command);
        add_field(out, "cgroup", known.process.cgroup);
        add_field(out, "pidNamespace", known.process.pid_namespace);
        if (known.process.namespace_pid > 0) add_field(out, "namespacePid", known.process.namespace_pid);
        json::add_list(out, "ancestors", known.ancestors);
    }
    json::open(out, "gpus", '[');
    for (const auto &[gpu, usage, reported] : known.uses) {
        json::open(out, '{');
        add_field(out, "gpu", gpu);
        add_field(out, "listed", usage.listed);
        if (usage.listed && usage.bytes_known) add_field(out, "bytes", usage.bytes);
        add_field(out, "types", usage.types);
        add_field(out, "smPercent", usage.sm_percent);
        add_field(out, "smUs", usage.sm_us);
        add_field(out, "memoryUs", usage.memory_us);
        add_field(out, "encoderUs", usage.encoder_us);
        add_field(out, "decoderUs", usage.decoder_us);
        if (usage.active_us) add_field(out, "activeUs", usage.active_us);
        out += '}';
    }
    out += "]}";
}

void Processes::forget_unseen() {
    std::erase_if(tracked_, [this](const auto &entry) {
        if (entry.second.seen_round == round_) return false;
        removed_.push_back(entry.first);
        return true;
    });
}

void Processes::write_changes(std::string &out) {
    json::open(out, "processes", '[');
    for (auto &[pid, known] : tracked_) {
        if (is_reported(known)) continue;
        write(pid, known, out);
        known.identity_changed = known.uses_changed = false;
        for (Use &use : known.uses) use.reported = use.now;
    }
    out += ']';
    json::add_list(out, "removedPids", removed_);
    json::add_field(out, "processCount", tracked_.size());
    removed_.clear();
    if (utilization_) forget_unseen();
}
