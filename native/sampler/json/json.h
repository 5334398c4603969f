// Writes JSON: whole numbers and text, appended to a line.
#pragma once

#include <cstdint>
#include <string>

namespace json {

void add_number(std::string &out, uint64_t value);
// Escapes every byte that is not printable ASCII: a command name may hold any byte.
void add_text(std::string &out, const std::string &text);
// Writes a comma, the name (not escaped) and the value.
void add_field(std::string &out, const char *name, uint64_t value);
void add_field(std::string &out, const char *name, const std::string &value);

} // namespace json
