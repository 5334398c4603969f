// JSON as it is printed: whole numbers and text, appended to a line that grows.
#pragma once

#include <cstdint>
#include <string>

namespace json {

void add_number(std::string &out, uint64_t value);
// Bytes that are not printable ASCII are escaped one by one: a command name may hold anything.
void add_text(std::string &out, const std::string &text);
// With the comma before it and its name, which is taken as it is.
void add_field(std::string &out, const char *name, uint64_t value);
void add_field(std::string &out, const char *name, const std::string &value);

} // namespace json
