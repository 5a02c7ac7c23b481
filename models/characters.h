// What a character of a launch script, a log or a layer pattern is, and how a line is named.
#pragma once

#include <cctype>
#include <cstdint>
#include <string>

namespace tidemark {

inline bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
inline bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
inline bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

inline std::string at_line(std::int64_t line) { return "line " + std::to_string(line); }

}  // namespace tidemark
