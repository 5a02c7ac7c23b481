// What the readers of jobs and models share: ranges, the spelling of enumerators, and optional keys
// that leave a field at its default.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/json_reader.h"

namespace tidemark {

// Far above any job; they keep products of sizes within 64 bits.
constexpr Range<std::int64_t> kSize{0, std::int64_t{1} << 31};
constexpr Range<std::int64_t> kPositive{1, std::int64_t{1} << 31};
constexpr Range<std::int64_t> kDegree{1, std::int64_t{1} << 20};

// Enumerators and their spelling in the file.
template <class E>
using Names = std::vector<std::pair<E, std::string>>;

template <class E>
const std::string& name_of(const Names<E>& names, E value) {
  return std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == value; })
      ->second;
}

template <class E>
void read_choice(JsonReader& in, std::string_view key, const Names<E>& names, E& out) {
  if (!in.has(key)) {
    in.optional_string(key);  // makes the key known
    return;
  }
  std::vector<std::string> allowed;
  for (const auto& [value, name] : names) allowed.push_back(name);
  const std::string found = in.choice(key, allowed);
  for (const auto& [value, name] : names) {
    if (name == found) out = value;
  }
}

inline void read_switch(JsonReader& in, std::string_view key, bool& out) {
  out = in.optional_boolean(key).value_or(out);
}

inline void read_size(JsonReader& in, std::string_view key, Range<std::int64_t> range,
                      std::int64_t& out) {
  out = in.optional_integer(key, range).value_or(out);
}

}  // namespace tidemark
