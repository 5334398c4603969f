// Writes limits pages: in place, one entry per write.
#include "record_io.h"

#include <sys/stat.h>

namespace {

bool parse_uuid(const std::string &text, uint8_t *bytes) {
    size_t count = 0;
    unsigned value = 0, digits = 0;
    size_t start = text.rfind("GPU-", 0) == 0 ? 4 : 0;
    for (size_t i = start; i < text.size(); i++) {
        const char c = text[i];
        if (c == '-') continue;
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0 || count == 16) return false;
        value = value * 16 + static_cast<unsigned>(digit);
        if (++digits == 2) {
            bytes[count++] = static_cast<uint8_t>(value);
            value = digits = 0;
        }
    }
    return count == 16 && digits == 0;
}

uint64_t number(const Napi::Object &object, const char *name) {
    const double value = object.Get(name).ToNumber().DoubleValue();
    return value > 0 ? static_cast<uint64_t>(value) : 0;
}

bool parse_gpus(const Napi::CallbackInfo &info, const Napi::Array &gpus, cot_limits_page_gpu *out) {
    for (uint32_t i = 0; i < gpus.Length(); i++) {
        const Napi::Object gpu = gpus.Get(i).As<Napi::Object>();
        cot_limits_page_gpu entry{};
        if (!parse_uuid(gpu.Get("uuid").ToString().Utf8Value(), entry.uuid)) {
            Napi::TypeError::New(info.Env(), "GPU uuid: want GPU- and 32 hexadecimal digits")
                .ThrowAsJavaScriptException();
            return false;
        }
        entry.memory_bytes = number(gpu, "memoryBytes");
        entry.context_bytes = number(gpu, "contextBytes");
        entry.granule_bytes = number(gpu, "granuleBytes");
        entry.cores_percent = static_cast<uint32_t>(number(gpu, "coresPercent"));
        entry.flags = gpu.Get("releasesLate").ToBoolean() ? COT_GPU_RELEASES_LATE : 0;
        entry.check = cot_check(&entry, COT_GPU_WORDS);
        out[i] = entry;
    }
    return true;
}

// Launches can only be leased where there is a lease page.
uint32_t gate_word(bool is_closed, bool is_leased, uint64_t lease_page_offset) {
    return (is_closed ? COT_GATE_CLOSED : COT_GATE_OPEN) |
           (is_leased && lease_page_offset ? COT_GATE_LEASED : COT_GATE_OPEN);
}

// writePage(fd, {slots, isolateMemory, engine, compute, leased, gpus}): sets the file's size and writes header and
// GPUs. For a page in use, `slots` and the number of GPUs must not change. It keeps its version, because processes have
// it mapped; its engine, if none is given; and its lease page or lack of one. A page of an unknown version is not
// changed.
Napi::Value WritePage(const Napi::CallbackInfo &info) {
    const int fd = info[0].ToNumber().Int32Value();
    const Napi::Object spec = info[1].As<Napi::Object>();
    const Napi::Array gpus = spec.Get("gpus").As<Napi::Array>();
    const uint64_t slots = number(spec, "slots");
    if (gpus.Length() == 0 || gpus.Length() > COT_MAX_GPUS || slots == 0 || slots > COT_MAX_SLOTS) {
        Napi::RangeError::New(info.Env(), "page: want 1 to 16 GPUs and 1 to 4096 slots").ThrowAsJavaScriptException();
        return info.Env().Undefined();
    }
    cot_limits_page_gpu entries[COT_MAX_GPUS] = {};
    if (!parse_gpus(info, gpus, entries)) return info.Env().Undefined();
    const uint64_t bytes = cot_limits_page_bytes(static_cast<uint32_t>(slots), gpus.Length());
    struct stat before{};
    if (fstat(fd, &before) != 0) return fail(info.Env(), "limits page");
    if (before.st_size != 0 && static_cast<uint64_t>(before.st_size) != bytes)
        return fail_with_code(info.Env(), "PAGE_SIZE_MISMATCH",
                              "limits page: the file has " + std::to_string(before.st_size) + " bytes, expected " +
                                  std::to_string(bytes));
    if (before.st_size == 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fail(info.Env(), "limits page");
    cot_limits_page_header old{};
    if (pread(fd, &old, sizeof old, 0) != static_cast<ssize_t>(sizeof old)) return fail(info.Env(), "limits page");
    const bool is_kept = old.magic == COT_LIMITS_PAGE_MAGIC;
    if (is_kept && (!cot_limits_page_known(old.version) || !cot_ledger_known(cot_ledger_version(&old)))) {
        const std::string text = "limits page: another agent wrote it, of version " + std::to_string(old.version) +
                                 " with a ledger of version " + std::to_string(cot_ledger_version(&old)) +
                                 "; this one knows pages up to " + std::to_string(COT_LIMITS_PAGE_VERSION) +
                                 " and ledgers up to " + std::to_string(COT_LEDGER_VERSION);
        Napi::Error::New(info.Env(), text).ThrowAsJavaScriptException();
        return info.Env().Undefined();
    }
    cot_limits_page_header header{};
    header.magic = COT_LIMITS_PAGE_MAGIC;
    header.version = is_kept ? old.version : COT_LIMITS_PAGE_VERSION;
    header.ledger_version = is_kept ? old.ledger_version : COT_LEDGER_VERSION;
    const bool names_engine = spec.Get("engine").IsNumber();
    header.engine = names_engine ? static_cast<uint32_t>(number(spec, "engine")) : is_kept ? old.engine : 0;
    header.bytes = static_cast<uint32_t>(bytes);
    header.gpu_count = gpus.Length();
    header.slot_count = static_cast<uint32_t>(slots);
    header.flags = (spec.Get("isolateMemory").ToBoolean() ? COT_LIMITS_PAGE_ISOLATE_MEMORY : 0) |
                   (old.flags & COT_LIMITS_PAGE_HAS_FEEDBACK);
    const uint32_t slot_count = header.slot_count, gpu_count = header.gpu_count;
    if (is_kept) header.lease_page_offset = old.lease_page_offset;
    else if (spec.Get("compute").ToBoolean())
        header.lease_page_offset = cot_lease_page_offset_for(slot_count, gpu_count);
    header.gate = gate_word(old.gate & COT_GATE_CLOSED, spec.Get("leased").ToBoolean(), header.lease_page_offset);
    header.generation = old.generation + 1;
    header.heartbeat_ns = boot_ns();
    // Entries first: a process that sees the new generation must find them.
    if (!write_at(fd, entries, sizeof entries, offsetof(cot_limits_page, gpus))) return fail(info.Env(), "limits page");
    if (!write_at(fd, &header, sizeof header, 0)) return fail(info.Env(), "limits page");
    return Napi::Number::New(info.Env(), static_cast<double>(header.generation));
}

// touchPage(fd, gateClosed, leased): writes the agent's heartbeat and the state of the gate.
Napi::Value TouchPage(const Napi::CallbackInfo &info) {
    const int fd = info[0].ToNumber().Int32Value();
    const uint64_t now = boot_ns();
    uint64_t lease_page_offset = 0;
    if (info[2].ToBoolean() &&
        pread(fd, &lease_page_offset, sizeof lease_page_offset, offsetof(cot_limits_page_header, lease_page_offset)) !=
            static_cast<ssize_t>(sizeof lease_page_offset))
        return fail(info.Env(), "limits page");
    const uint32_t gate = gate_word(info[1].ToBoolean(), info[2].ToBoolean(), lease_page_offset);
    if (!write_at(fd, &now, sizeof now, offsetof(cot_limits_page_header, heartbeat_ns)) ||
        !write_at(fd, &gate, sizeof gate, offsetof(cot_limits_page_header, gate)))
        return fail(info.Env(), "limits page");
    return info.Env().Undefined();
}

// hasCompute(fd): whether the page says that there is a lease page.
Napi::Value HasCompute(const Napi::CallbackInfo &info) {
    cot_limits_page_header header{};
    const ssize_t length = pread(info[0].ToNumber().Int32Value(), &header, sizeof header, 0);
    return Napi::Boolean::New(info.Env(), length == static_cast<ssize_t>(sizeof header) &&
                                              header.magic == COT_LIMITS_PAGE_MAGIC && header.lease_page_offset != 0);
}

uint64_t big(const Napi::Value &value) {
    bool lossless = true;
    return value.IsBigInt() ? value.As<Napi::BigInt>().Uint64Value(&lossless) : 0;
}

// writeFeedback(fd, gpuCount, entries): each {slot, gpu, stamp, residualBytes, releasedBytes, signature, deadStamp}.
Napi::Value WriteFeedback(const Napi::CallbackInfo &info) {
    const int fd = info[0].ToNumber().Int32Value();
    const uint32_t gpu_count = info[1].ToNumber().Uint32Value();
    const Napi::Array entries = info[2].As<Napi::Array>();
    for (uint32_t i = 0; i < entries.Length(); i++) {
        const Napi::Object from = entries.Get(i).As<Napi::Object>();
        const uint64_t slot = number(from, "slot"), gpu = number(from, "gpu");
        if (slot >= COT_MAX_SLOTS || gpu >= gpu_count) continue;
        cot_limits_page_feedback entry{};
        entry.stamp = big(from.Get("stamp"));
        entry.residual_bytes = from.Get("residualBytes").ToNumber().Int64Value();
        entry.released_bytes = number(from, "releasedBytes");
        entry.signature = big(from.Get("signature"));
        entry.dead_stamp = big(from.Get("deadStamp"));
        entry.check = cot_check(&entry, COT_FEEDBACK_WORDS);
        const uint64_t at = offsetof(cot_limits_page, feedback) + (slot * gpu_count + gpu) * sizeof entry;
        if (!write_at(fd, &entry, sizeof entry, static_cast<off_t>(at))) return fail(info.Env(), "limits page");
    }
    uint32_t flags = 0;
    if (pread(fd, &flags, sizeof flags, offsetof(cot_limits_page_header, flags)) == sizeof flags &&
        !(flags & COT_LIMITS_PAGE_HAS_FEEDBACK) && entries.Length() > 0) {
        flags |= COT_LIMITS_PAGE_HAS_FEEDBACK;
        if (!write_at(fd, &flags, sizeof flags, offsetof(cot_limits_page_header, flags)))
            return fail(info.Env(), "limits page");
    }
    return info.Env().Undefined();
}

} // namespace

void InitPages(Napi::Env env, Napi::Object exports) {
    exports.Set("writePage", Napi::Function::New(env, WritePage));
    exports.Set("touchPage", Napi::Function::New(env, TouchPage));
    exports.Set("hasCompute", Napi::Function::New(env, HasCompute));
    exports.Set("writeFeedback", Napi::Function::New(env, WriteFeedback));
}
