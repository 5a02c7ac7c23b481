// Strict reading of our JSON files: every key is asked for once, unknown keys are refused with the
// nearest known one, and all violations of a file are listed together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/input_error.h"

namespace tidemark {

// Parses a JSON file. Throws: InputError when the file is missing, larger than `max_bytes`, or not
// JSON (with line and column).
nlohmann::json load_json(const std::filesystem::path& path,
                         std::int64_t max_bytes = std::int64_t{64} << 20);

// The allowed range of a number, both ends included.
template <class T>
struct Range {
  T low = std::numeric_limits<T>::lowest();
  T high = std::numeric_limits<T>::max();
};

// One JSON object and its place. Errors are collected in `violations`; the owner of that list calls
// `throw_if_any` when the whole file has been read.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& node, std::string file, std::string pointer,
             std::vector<Violation>& violations);

  bool has(std::string_view key) const;

  // Returns: the value, or a default-constructed one after recording a violation.
  std::int64_t integer(std::string_view key, Range<std::int64_t> range = {});
  double number(std::string_view key, Range<double> range = {});
  bool boolean(std::string_view key);
  std::string string(std::string_view key);
  // One of `allowed`.
  std::string choice(std::string_view key, const std::vector<std::string>& allowed);

  std::optional<std::int64_t> optional_integer(std::string_view key,
                                               Range<std::int64_t> range = {});
  std::optional<double> optional_number(std::string_view key, Range<double> range = {});
  std::optional<bool> optional_boolean(std::string_view key);
  std::optional<std::string> optional_string(std::string_view key);

  // Calls `read` with the object at `key`, if there is one; `finish` is called on it.
  void object(std::string_view key, const std::function<void(JsonReader&)>& read);
  void optional_object(std::string_view key, const std::function<void(JsonReader&)>& read);
  // Calls `read` with each object of the array at `key`.
  void objects(std::string_view key, const std::function<void(JsonReader&)>& read);
  // The node as it is, for arrays of plain values; null when missing.
  const nlohmann::json& raw(std::string_view key);

  // Records unknown keys. Call when everything has been asked for.
  void finish();

  void violate(std::string_view key, std::string found, std::string allowed);
  const std::string& file() const { return file_; }
  const std::string& pointer() const { return pointer_; }

 private:
  const nlohmann::json* find(std::string_view key, bool required, std::string_view expected);

  const nlohmann::json& node_;
  std::string file_;
  std::string pointer_;
  std::vector<Violation>& violations_;
  std::set<std::string, std::less<>> known_;
};

// The candidate with the smallest edit distance to `name`, or "" if none is within a third of its
// length.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tidemark
