// Usage ledgers and the lease pages behind them, as the agent creates and reads them: created with their space
// allocated, read into private memory, every field once. Nothing here maps a file that a tenant can truncate.
#include "record_io.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <utility>
#include <vector>

namespace {

// The initial lease page: gates follow its records until an arbiter runs.
bool write_lease_page(int fd, const cot_ledger_header &ledger, const Napi::Array &rates) {
    alignas(8) static thread_local char half[COT_LEASE_REPORTS_OFFSET];
    uint32_t rate_ppm[COT_MAX_GPUS] = {};
    for (uint32_t gpu = 0; gpu < ledger.gpu_count; gpu++) rate_ppm[gpu] = rates.Get(gpu).ToNumber().Uint32Value();
    std::memset(half, 0, sizeof half);
    cot_lease_page_init(half, ledger.slot_count, ledger.gpu_count, rate_ppm, boot_ns());
    return write_at(fd, half, sizeof half,
                    static_cast<off_t>(cot_lease_page_offset_for(ledger.slot_count, ledger.gpu_count)));
}

uint64_t ledger_file_bytes(uint32_t slots, uint32_t gpus) {
    return cot_lease_page_offset_for(slots, gpus) + cot_lease_page_bytes(slots, gpus);
}

// initLedger(fd, slots, gpuCount, ratesPpm): writes a new ledger with all slots free; with `ratesPpm`, a share of each
// GPU (0: unlimited), also a lease page behind it.
Napi::Value InitLedger(const Napi::CallbackInfo &info) {
    const int fd = info[0].ToNumber().Int32Value();
    cot_ledger_header header{};
    header.magic = COT_LEDGER_MAGIC;
    header.version = COT_LEDGER_VERSION;
    header.slot_count = info[1].ToNumber().Uint32Value();
    header.gpu_count = info[2].ToNumber().Uint32Value();
    if (header.slot_count > COT_MAX_SLOTS || header.gpu_count > COT_MAX_GPUS) {
        errno = EINVAL;
        return fail(info.Env(), "ledger");
    }
    const bool has_compute = info[3].IsArray();
    const uint64_t bytes = has_compute ? ledger_file_bytes(header.slot_count, header.gpu_count)
                                       : cot_ledger_bytes(header.slot_count, header.gpu_count);
    if (ftruncate(fd, 0) != 0) return fail(info.Env(), "ledger");
    // Allocates its space: on a full file system, which another tenant can fill, a process that touches a hole would be
    // killed.
    const int full = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
    if (full != 0) errno = full;
    if (full != 0 || (has_compute && !write_lease_page(fd, header, info[3].As<Napi::Array>())) ||
        !write_at(fd, &header, sizeof header, 0))
        return fail(info.Env(), "ledger");
    return info.Env().Undefined();
}

// ledgerBytes(slots, gpuCount): size of such a ledger.
Napi::Value LedgerBytes(const Napi::CallbackInfo &info) {
    const uint64_t bytes = cot_ledger_bytes(info[0].ToNumber().Uint32Value(), info[1].ToNumber().Uint32Value());
    return Napi::Number::New(info.Env(), static_cast<double>(bytes));
}

// ledgerFileBytes(slots, gpuCount): the same with a lease page behind it.
Napi::Value LedgerFileBytes(const Napi::CallbackInfo &info) {
    const uint64_t bytes = ledger_file_bytes(info[0].ToNumber().Uint32Value(), info[1].ToNumber().Uint32Value());
    return Napi::Number::New(info.Env(), static_cast<double>(bytes));
}

// clearLedger(fd, slots, gpuCount, ratesPpm): frees all slots in place; the container's totals stay. Only when none of
// its processes is left: a process that has the file mapped would not survive it.
Napi::Value ClearLedger(const Napi::CallbackInfo &info) {
    const int fd = info[0].ToNumber().Int32Value();
    const uint32_t gpus = info[2].ToNumber().Uint32Value();
    cot_ledger_total totals[COT_MAX_GPUS] = {};
    if (gpus > COT_MAX_GPUS) {
        errno = EINVAL;
        return fail(info.Env(), "ledger");
    }
    const size_t size = gpus * sizeof *totals;
    cot_ledger_header before{};
    if (pread(fd, &before, sizeof before, 0) != static_cast<ssize_t>(sizeof before)) before.unknown = 0;
    if (pread(fd, totals, size, sizeof(cot_ledger_header)) != static_cast<ssize_t>(size))
        std::memset(totals, 0, sizeof totals);
    const Napi::Value made = InitLedger(info);
    if (info.Env().IsExceptionPending()) return made;
    const bool is_kept = before.magic == COT_LEDGER_MAGIC && cot_ledger_known(before.version);
    if (is_kept && !write_at(fd, &before.version, sizeof before.version, offsetof(cot_ledger_header, version)))
        return fail(info.Env(), "ledger");
    if (!write_at(fd, totals, size, sizeof(cot_ledger_header)) ||
        !write_at(fd, &before.unknown, sizeof before.unknown, offsetof(cot_ledger_header, unknown)))
        return fail(info.Env(), "ledger");
    return made;
}

Napi::Value bytes_value(Napi::Env env, uint64_t value) {
    constexpr uint64_t most = 1ull << 53;
    return Napi::Number::New(env, static_cast<double>(value < most ? value : most));
}

// Whether this thread has computed for this long. Time in which other threads had the processor does not count; mostly
// the cheaper clock is enough.
class Budget {
  public:
    explicit Budget(uint64_t most_ns) : most_ns_(most_ns), wall_(boot_ns()), cpu_(clock_ns(CLOCK_THREAD_CPUTIME_ID)) {}
    bool is_spent() const {
        return boot_ns() - wall_ >= most_ns_ && clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ >= most_ns_;
    }

  private:
    uint64_t most_ns_, wall_, cpu_;
};

constexpr uint64_t MAX_LOCK_NS = 5000000; // a ledger with 1024 running processes takes 3 ms

// Finds which slots in use are locked, each by its byte of the file. The kernel walks all locks of a file for each
// query, and a tenant may take any number of locks: so ranges are queried, not single slots, and only for a limited
// time. False: some are unknown, and count as locked.
bool find_locked(int fd, const std::vector<bool> &used, std::vector<bool> &locked) {
    const Budget budget(MAX_LOCK_NS);
    std::vector<std::pair<off_t, off_t>> ranges{{0, static_cast<off_t>(used.size())}};
    bool all_known = true;
    for (bool first = true; !ranges.empty(); first = false) {
        auto [from, to] = ranges.back();
        ranges.pop_back();
        while (from < to && !used[from]) from++;
        while (from < to && !used[to - 1]) to--;
        if (from == to) continue;
        struct flock lock{};
        lock.l_type = F_WRLCK;
        lock.l_whence = SEEK_SET;
        lock.l_start = from;
        lock.l_len = to - from;
        all_known = all_known && (first || !budget.is_spent()) && fcntl(fd, F_GETLK, &lock) == 0;
        if (all_known && lock.l_type == F_UNLCK) continue;
        // The answer is one lock in the range; if there is none, the lock of the query itself comes back: the whole
        // range.
        const off_t begin = std::clamp<off_t>(lock.l_start, from, to - 1);
        const off_t end = lock.l_len == 0 ? to : std::clamp<off_t>(lock.l_start + lock.l_len, begin + 1, to);
        std::fill(locked.begin() + begin, locked.begin() + end, true);
        ranges.emplace_back(from, begin);
        ranges.emplace_back(end, to);
    }
    return all_known;
}

Napi::Object row_object(Napi::Env env, const cot_slot_gpu &row) {
    Napi::Object out = Napi::Object::New(env);
    out.Set("heldBytes", bytes_value(env, row.held));
    out.Set("pendingBytes", bytes_value(env, row.pending));
    out.Set("freedBytes", bytes_value(env, row.freed));
    out.Set("contextBytes", bytes_value(env, row.context));
    out.Set("managedBytes", bytes_value(env, row.managed));
    out.Set("poolBytes", bytes_value(env, row.pool));
    out.Set("signature", Napi::BigInt::New(env, cot_row_signature(row.held, row.freed, row.changes)));
    return out;
}

// Reads up to `size` bytes and fills the rest with zeros. Returns how many it read.
size_t read_at(int fd, char *to, size_t size, off_t offset) {
    size_t got = 0;
    while (got < size) {
        const ssize_t length = pread(fd, to + got, size - got, offset + static_cast<off_t>(got));
        if (length < 0 && errno == EINTR) continue;
        if (length <= 0) break;
        got += static_cast<size_t>(length);
    }
    std::memset(to + got, 0, size - got);
    return got;
}

// A ledger as read: header, totals and the slots that were ever used; then one byte for each of these slots (is it
// locked?), one for the whole (is it complete?) and one for its path (does it still lead to this file?).
struct LedgerReading {
    std::vector<char> bytes;
    uint32_t slots = 0;
    uint64_t locks_ns = 0; // when its locks were queried
    const char *slot_at(uint32_t index, uint32_t gpus) const {
        return bytes.data() + cot_ledger_slots_offset(gpus) + index * cot_slot_bytes(gpus);
    }
    size_t flags_at(uint32_t gpus) const { return cot_ledger_bytes(slots, gpus); }
    bool locked(uint32_t index, uint32_t gpus) const { return bytes[flags_at(gpus) + index] != 0; }
    bool whole() const { return bytes[bytes.size() - 2] != 0; }
    bool untouched() const { return bytes.back() != 0; }
};

// An earlier reading and when its locks were queried; empty if there is none.
class EarlierReading {
  public:
    explicit EarlierReading(const Napi::Value &reading) {
        if (!reading.IsObject()) return;
        const Napi::Object from = reading.As<Napi::Object>();
        const Napi::Value seen = from.Get("seen"), locks_ns = from.Get("locksNs");
        if (!seen.IsBuffer() || !locks_ns.IsNumber()) return;
        const Napi::Buffer<char> buffer = seen.As<Napi::Buffer<char>>();
        data_ = buffer.Data();
        size_ = buffer.Length();
        locks_ns_ = static_cast<uint64_t>(locks_ns.As<Napi::Number>().Int64Value());
    }
    size_t size() const { return size_; }
    uint64_t locks_ns() const { return locks_ns_; }
    const char *from(size_t offset) const { return data_ + offset; }
    bool begins_with(const char *bytes, size_t size) const {
        return size_ >= size && std::memcmp(data_, bytes, size) == 0;
    }
    bool equals(const LedgerReading &seen) const {
        return size_ == seen.bytes.size() && begins_with(seen.bytes.data(), size_);
    }

  private:
    const char *data_ = nullptr;
    size_t size_ = 0;
    uint64_t locks_ns_ = 0;
};

// Reuses earlier locks if no byte of the ledger has changed, every slot in use was locked (an unlocked slot is queried
// each time) and they are not older than `locks_for_ns`.
bool reuse_locks(const EarlierReading &before, uint64_t locks_for_ns, const std::vector<bool> &used, uint32_t gpus,
                 LedgerReading &seen) {
    const size_t read = seen.flags_at(gpus);
    if (locks_for_ns == 0 || before.size() != seen.bytes.size() || !before.begins_with(seen.bytes.data(), read))
        return false;
    if (boot_ns() - before.locks_ns() >= locks_for_ns || *before.from(seen.bytes.size() - 2) == 0) return false;
    for (uint32_t i = 0; i < seen.slots; i++) {
        if (used[i] && *before.from(read + i) == 0) return false;
    }
    std::memcpy(seen.bytes.data() + read, before.from(read), seen.slots);
    seen.locks_ns = before.locks_ns();
    return true;
}

// Whether the path leads to the open file. A symbolic link is another file, wherever it leads.
bool is_same_file(const struct stat &held, const char *path) {
    struct stat named{};
    return lstat(path, &named) == 0 && held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

// Slots beyond the header's slots_used are not read: a tenant that writes a lower number hides its own processes, and
// their memory counts as used without a ledger.
void read_ledger(int fd, uint32_t slots, uint32_t gpus, const char *path, const EarlierReading &before,
                 uint64_t locks_for_ns, LedgerReading &seen) {
    const size_t head = cot_ledger_slots_offset(gpus);
    // As much as the last time: then one call reads all of it.
    const size_t first = std::max(head, std::min<size_t>(before.size(), cot_ledger_bytes(slots, gpus)));
    seen.bytes.resize(first);
    size_t got = read_at(fd, seen.bytes.data(), first, 0);
    cot_ledger_header header;
    std::memcpy(&header, seen.bytes.data(), sizeof header);
    const bool is_ledger = header.magic == COT_LEDGER_MAGIC && cot_ledger_known(header.version);
    seen.slots = is_ledger ? std::min(header.slots_used, slots) : slots;
    const size_t all = seen.flags_at(gpus);
    seen.bytes.resize(all + seen.slots + 2);
    if (all > first) got += read_at(fd, seen.bytes.data() + first, all - first, static_cast<off_t>(first));
    std::vector<bool> used(seen.slots);
    for (uint32_t i = 0; i < seen.slots; i++) {
        cot_slot slot;
        std::memcpy(&slot, seen.slot_at(i, gpus), sizeof slot);
        used[i] = slot.stamp != 0;
    }
    bool all_known = true;
    if (!reuse_locks(before, locks_for_ns, used, gpus, seen)) {
        seen.locks_ns = boot_ns();
        std::vector<bool> locked(seen.slots);
        all_known = find_locked(fd, used, locked);
        for (uint32_t i = 0; i < seen.slots; i++) seen.bytes[all + i] = locked[i];
    }
    struct stat file{};
    const bool has_info = fstat(fd, &file) == 0;
    const bool is_long = has_info && static_cast<uint64_t>(file.st_size) >= cot_ledger_bytes(slots, gpus);
    seen.bytes[all + seen.slots] = is_ledger && is_long && got >= all && all_known;
    seen.bytes.back() = !path || (has_info && is_same_file(file, path));
}

Napi::Object slot_object(Napi::Env env, const LedgerReading &seen, uint32_t index, uint32_t gpus) {
    const char *at = seen.slot_at(index, gpus);
    cot_slot slot;
    std::memcpy(&slot, at, sizeof slot);
    Napi::Object entry = Napi::Object::New(env);
    entry.Set("index", Napi::Number::New(env, index));
    entry.Set("stamp", Napi::BigInt::New(env, slot.stamp));
    entry.Set("pid", Napi::Number::New(env, slot.pid));
    entry.Set("startTicks", bytes_value(env, slot.start_ticks));
    entry.Set("pidNamespace", bytes_value(env, slot.pid_namespace));
    entry.Set("debugged", Napi::Boolean::New(env, (slot.observers & COT_OBSERVER_DEBUGGER) != 0));
    entry.Set("profiled", Napi::Boolean::New(env, (slot.observers & COT_OBSERVER_PROFILER) != 0));
    entry.Set("engine", Napi::Number::New(env, slot.engine));
    entry.Set("engineRefused", Napi::Number::New(env, slot.engine_refused));
    entry.Set("locked", Napi::Boolean::New(env, seen.locked(index, gpus)));
    entry.Set("lockedForLife", Napi::Boolean::New(env, slot.lock_stamp == slot.stamp));
    Napi::Array rows = Napi::Array::New(env, gpus);
    for (uint32_t gpu = 0; gpu < gpus; gpu++) {
        cot_slot_gpu row;
        std::memcpy(&row, at + sizeof slot + gpu * sizeof row, sizeof row);
        rows.Set(gpu, row_object(env, row));
    }
    entry.Set("gpus", rows);
    return entry;
}

Napi::Object reading_object(Napi::Env env, const LedgerReading &seen, uint32_t gpus) {
    Napi::Object out = Napi::Object::New(env);
    cot_ledger_header header;
    std::memcpy(&header, seen.bytes.data(), sizeof header);
    Napi::Array denied = Napi::Array::New(env, gpus);
    for (uint32_t gpu = 0; gpu < gpus; gpu++) {
        cot_ledger_total total;
        std::memcpy(&total, seen.bytes.data() + sizeof header + gpu * sizeof total, sizeof total);
        denied.Set(gpu, bytes_value(env, total.denied));
    }
    Napi::Array list = Napi::Array::New(env);
    for (uint32_t i = 0; i < seen.slots; i++) {
        cot_slot slot;
        std::memcpy(&slot, seen.slot_at(i, gpus), sizeof slot);
        if (slot.stamp != 0) list.Set(list.Length(), slot_object(env, seen, i, gpus));
    }
    out.Set("whole", Napi::Boolean::New(env, seen.whole()));
    out.Set("untouched", Napi::Boolean::New(env, seen.untouched()));
    out.Set("denied", denied);
    out.Set("unknown", bytes_value(env, header.unknown));
    out.Set("slots", list);
    out.Set("seen", Napi::Buffer<char>::Copy(env, seen.bytes.data(), seen.bytes.size()));
    return out;
}

// readLedger(fd, slots, gpuCount, before?, path?, locksForMs?) -> {whole, untouched, denied: number[], unknown, slots:
// [...], seen, locksNs, readNs}; sizes are the agent's own, never the file's. `whole` is false if the file was
// truncated: then it has only what could be read; and if it has so many locks that some are unknown: those count as
// locked. `untouched` is false if the path leads to another file. If nothing has changed since `before`, its parts are
// returned again; locks are then queried only if they are older than `locksForMs` or some slot had none.
Napi::Value ReadLedger(const Napi::CallbackInfo &info) {
    const Napi::Env env = info.Env();
    const int fd = info[0].ToNumber().Int32Value();
    const uint32_t slots = info[1].ToNumber().Uint32Value(), gpus = info[2].ToNumber().Uint32Value();
    if (slots == 0 || slots > COT_MAX_SLOTS || gpus == 0 || gpus > COT_MAX_GPUS) {
        errno = EINVAL;
        return fail(env, "ledger");
    }
    const std::string path = info[4].IsString() ? info[4].As<Napi::String>().Utf8Value() : "";
    const uint64_t locks_for_ns = info[5].IsNumber() ? info[5].As<Napi::Number>().Uint32Value() * 1000000ull : 0;
    const EarlierReading before(info[3]);
    static thread_local LedgerReading seen;
    read_ledger(fd, slots, gpus, path.empty() ? nullptr : path.c_str(), before, locks_for_ns, seen);
    Napi::Object out;
    if (before.equals(seen)) {
        out = Napi::Object::New(env);
        for (const char *part : {"whole", "untouched", "denied", "unknown", "slots", "seen"})
            out.Set(part, info[3].As<Napi::Object>().Get(part));
    } else {
        out = reading_object(env, seen, gpus);
    }
    out.Set("locksNs", Napi::Number::New(env, static_cast<double>(seen.locks_ns)));
    out.Set("readNs", Napi::Number::New(env, static_cast<double>(boot_ns())));
    return out;
}

} // namespace

void InitLedgers(Napi::Env env, Napi::Object exports) {
    exports.Set("initLedger", Napi::Function::New(env, InitLedger));
    exports.Set("ledgerBytes", Napi::Function::New(env, LedgerBytes));
    exports.Set("ledgerFileBytes", Napi::Function::New(env, LedgerFileBytes));
    exports.Set("clearLedger", Napi::Function::New(env, ClearLedger));
    exports.Set("readLedger", Napi::Function::New(env, ReadLedger));
}
