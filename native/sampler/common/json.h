// Writes JSON: whole numbers, truth values and text, appended to a line. What is added after something else in the same
// object or list gets a comma.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <string>

namespace json {

inline void separate(std::string &out) {
    if (!out.empty() && out.back() != '{' && out.back() != '[' && out.back() != ':') out += ',';
}

inline void add(std::string &out, bool value) {
    separate(out);
    out += value ? "true" : "false";
}

template <std::integral T>
    requires(!std::same_as<T, bool>)
void add(std::string &out, T value) {
    char digits[20]; // 2^64 has 20 digits, and -2^63 is as long
    separate(out);
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

// Escapes every byte that is not printable ASCII: a command name may hold any byte.
inline void add(std::string &out, const std::string &text) {
    static const char HEX[] = "0123456789abcdef";
    separate(out);
    out += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte > 0x7e) {
            out += "\\u00";
            out += HEX[byte >> 4];
            out += HEX[byte & 15];
            continue;
        }
        if (byte == '"' || byte == '\\') out += '\\';
        out += c;
    }
    out += '"';
}
inline void add(std::string &out, const char *text) {
    add(out, std::string(text));
}

// A member's name, which is not escaped; its value comes next.
inline void add_name(std::string &out, const char *name) {
    separate(out);
    out += '"';
    out += name;
    out += "\":";
}
template <typename T> void add_field(std::string &out, const char *name, const T &value) {
    add_name(out, name);
    add(out, value);
}

// Begins an object or list, as an item and as a member. The caller adds the closing bracket.
inline void open(std::string &out, char bracket) {
    separate(out);
    out += bracket;
}
inline void open(std::string &out, const char *name, char bracket) {
    add_name(out, name);
    out += bracket;
}

template <typename Values> void add_list(std::string &out, const char *name, const Values &values) {
    open(out, name, '[');
    for (const auto &value : values) add(out, value);
    out += ']';
}

} // namespace json
