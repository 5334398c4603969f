#include "json.h"

#include <charconv>

namespace json {

void add_number(std::string &out, uint64_t value) {
    char digits[20]; // 2^64 has 20 digits
    out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void add_text(std::string &out, const std::string &text) {
    static const char HEX[] = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte == '"' || byte == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20 || byte > 0x7e) {
            out += "\\u00";
            out += HEX[byte >> 4];
            out += HEX[byte & 15];
        } else {
            out += c;
        }
    }
    out += '"';
}

static void add_name(std::string &out, const char *name) {
    out += ",\"";
    out += name;
    out += "\":";
}

void add_field(std::string &out, const char *name, uint64_t value) {
    add_name(out, name);
    add_number(out, value);
}

void add_field(std::string &out, const char *name, const std::string &value) {
    add_name(out, name);
    add_text(out, value);
}

} // namespace json
