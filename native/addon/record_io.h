// Shared by the functions for limits pages and ledgers.
#pragma once

#include "addon.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <unistd.h>

#include "../sampler/common/clock.h"

extern "C" {
#include "../shared-memory/lease_page.h"
#include "../shared-memory/ledger.h"
#include "../shared-memory/limits_page.h"
}

inline uint64_t boot_ns() {
    return clock_ns(CLOCK_BOOTTIME);
}

inline bool write_at(int fd, const void *data, size_t size, off_t offset) {
    return pwrite(fd, data, size, offset) == static_cast<ssize_t>(size);
}

inline Napi::Value fail(Napi::Env env, const char *what) {
    const std::string text = std::string(what) + ": " + std::strerror(errno);
    Napi::Error::New(env, text).ThrowAsJavaScriptException();
    return env.Undefined();
}

// An error that the agent recognizes by its `code`.
inline Napi::Value fail_with_code(Napi::Env env, const char *code, const std::string &text) {
    const Napi::Error error = Napi::Error::New(env, text);
    error.Set("code", Napi::String::New(env, code));
    error.ThrowAsJavaScriptException();
    return env.Undefined();
}
