#include "models/json_reader.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

namespace tidemark {
namespace {

constexpr std::size_t kLongestQuote = 60;

std::string quote(const nlohmann::json& node) {
  std::string text = node.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kLongestQuote) text = text.substr(0, kLongestQuote) + "...";
  return text;
}

template <class T>
std::string describe(const char* what, Range<T> range) {
  std::ostringstream out;
  out << what;
  const bool low = range.low != std::numeric_limits<T>::lowest();
  const bool high = range.high != std::numeric_limits<T>::max();
  if (low && high) {
    out << " from " << range.low << " to " << range.high;
  } else if (low) {
    out << " >= " << range.low;
  } else if (high) {
    out << " <= " << range.high;
  }
  return out.str();
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

nlohmann::json load_json(const std::filesystem::path& path, std::int64_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) {
    throw InputError(path.string(), "", "no such file", "a readable JSON file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError(path.string(), "", "not a regular file", "a readable JSON file");
  }
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > static_cast<std::uintmax_t>(max_bytes)) {
    throw InputError(path.string(), "", std::to_string(size) + " bytes",
                     "at most " + std::to_string(max_bytes) + " bytes of JSON");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "", "cannot be opened", "a readable JSON file");
  std::ostringstream text;
  text << in.rdbuf();
  const std::string content = std::move(text).str();
  try {
    return nlohmann::json::parse(content);
  } catch (const nlohmann::json::parse_error& e) {
    const std::size_t at = std::min(e.byte, content.size());
    const auto begin = content.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(at);
    const auto line = 1 + std::count(begin, end, '\n');
    const std::string what = at >= content.size() ? "the file ends early (truncated?)" : "not JSON";
    throw InputError(path.string(), "line " + std::to_string(line), what, "valid JSON");
  }
}

JsonReader::JsonReader(const nlohmann::json& node, std::string file, std::string pointer,
                       std::vector<Violation>& violations)
    : node_(node), file_(std::move(file)), pointer_(std::move(pointer)), violations_(violations) {
  if (!node_.is_object()) {
    violations_.push_back({file_, pointer_.empty() ? "/" : pointer_, quote(node_), "an object"});
  }
}

bool JsonReader::has(std::string_view key) const {
  return node_.is_object() && node_.contains(std::string(key));
}

void JsonReader::violate(std::string_view key, std::string found, std::string allowed) {
  violations_.push_back(
      {file_, pointer_ + "/" + std::string(key), std::move(found), std::move(allowed)});
}

const nlohmann::json* JsonReader::find(std::string_view key, bool required,
                                       std::string_view expected) {
  known_.emplace(key);
  if (!node_.is_object()) return nullptr;
  const auto it = node_.find(std::string(key));
  if (it != node_.end()) return &*it;
  if (required) violate(key, "missing", std::string(expected));
  return nullptr;
}

std::optional<std::int64_t> JsonReader::optional_integer(std::string_view key,
                                                         Range<std::int64_t> range) {
  const nlohmann::json* node = find(key, false, "");
  if (node == nullptr) return std::nullopt;
  const std::string allowed = describe("an integer", range);
  if (node->is_number_integer()) {
    const bool too_large =
        node->is_number_unsigned() && node->get<std::uint64_t>() > std::uint64_t{INT64_MAX};
    if (!too_large) {
      const auto value = node->get<std::int64_t>();
      if (value >= range.low && value <= range.high) return value;
    }
  }
  violate(key, quote(*node), allowed);
  return std::nullopt;
}

std::optional<double> JsonReader::optional_number(std::string_view key, Range<double> range) {
  const nlohmann::json* node = find(key, false, "");
  if (node == nullptr) return std::nullopt;
  if (node->is_number()) {
    const auto value = node->get<double>();
    if (value >= range.low && value <= range.high) return value;
  }
  violate(key, quote(*node), describe("a number", range));
  return std::nullopt;
}

std::optional<bool> JsonReader::optional_boolean(std::string_view key) {
  const nlohmann::json* node = find(key, false, "");
  if (node == nullptr) return std::nullopt;
  if (node->is_boolean()) return node->get<bool>();
  violate(key, quote(*node), "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonReader::optional_string(std::string_view key) {
  const nlohmann::json* node = find(key, false, "");
  if (node == nullptr) return std::nullopt;
  if (node->is_string()) return node->get<std::string>();
  violate(key, quote(*node), "a string");
  return std::nullopt;
}

std::int64_t JsonReader::integer(std::string_view key, Range<std::int64_t> range) {
  if (find(key, true, describe("an integer", range)) == nullptr) return 0;
  return optional_integer(key, range).value_or(0);
}

double JsonReader::number(std::string_view key, Range<double> range) {
  if (find(key, true, describe("a number", range)) == nullptr) return 0;
  return optional_number(key, range).value_or(0);
}

bool JsonReader::boolean(std::string_view key) {
  if (find(key, true, "true or false") == nullptr) return false;
  return optional_boolean(key).value_or(false);
}

std::string JsonReader::string(std::string_view key) {
  if (find(key, true, "a string") == nullptr) return {};
  return optional_string(key).value_or("");
}

std::string JsonReader::choice(std::string_view key, const std::vector<std::string>& allowed) {
  std::string list = "one of";
  for (const std::string& option : allowed) list += " \"" + option + "\"";
  if (find(key, true, list) == nullptr) return {};
  const std::optional<std::string> value = optional_string(key);
  if (!value) return {};
  if (std::find(allowed.begin(), allowed.end(), *value) != allowed.end()) return *value;
  violate(key, "\"" + *value + "\"", list);
  return {};
}

void JsonReader::object(std::string_view key, const std::function<void(JsonReader&)>& read) {
  if (find(key, true, "an object") == nullptr) return;
  optional_object(key, read);
}

void JsonReader::optional_object(std::string_view key,
                                 const std::function<void(JsonReader&)>& read) {
  const nlohmann::json* node = find(key, false, "");
  if (node == nullptr) return;
  JsonReader inner(*node, file_, pointer_ + "/" + std::string(key), violations_);
  if (!node->is_object()) return;
  read(inner);
  inner.finish();
}

void JsonReader::objects(std::string_view key, const std::function<void(JsonReader&)>& read) {
  const nlohmann::json* node = find(key, true, "an array of objects");
  if (node == nullptr) return;
  if (!node->is_array()) {
    violate(key, quote(*node), "an array of objects");
    return;
  }
  for (std::size_t i = 0; i < node->size(); ++i) {
    const std::string place = pointer_ + "/" + std::string(key) + "/" + std::to_string(i);
    JsonReader inner((*node)[i], file_, place, violations_);
    if (!(*node)[i].is_object()) continue;
    read(inner);
    inner.finish();
  }
}

const nlohmann::json& JsonReader::raw(std::string_view key) {
  static const nlohmann::json kNull;
  const nlohmann::json* node = find(key, false, "");
  return node == nullptr ? kNull : *node;
}

void JsonReader::finish() {
  if (!node_.is_object()) return;
  const std::vector<std::string> known(known_.begin(), known_.end());
  for (const auto& [key, value] : node_.items()) {
    if (known_.contains(key)) continue;
    const std::string hint = nearest(key, known);
    std::string allowed = "a known key";
    if (!hint.empty()) {
      allowed += "; did you mean \"" + hint + "\"?";
    } else {
      for (std::size_t i = 0; i < known.size(); ++i) allowed += (i == 0 ? ": " : ", ") + known[i];
    }
    violate(key, "unknown key", allowed);
  }
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = name.size() / 3 + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tidemark
