// Typed access to Megatron-LM arguments by name; problems are collected.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/input_error.h"
#include "models/megatron_arguments.h"
#include "models/parse_number.h"

namespace tidemark {

// Far above any job; they keep products of sizes within 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;

class ArgumentReader {
 public:
  explicit ArgumentReader(const MegatronArguments& arguments) : arguments_(arguments) {}

  // Python's None, and an empty value, count as not given.
  bool given(const std::string& name) const {
    const auto it = arguments_.values.find(name);
    return it != arguments_.values.end() && it->second.text != "None" && !it->second.text.empty();
  }

  std::string text(const std::string& name, const std::string& otherwise) const {
    return given(name) ? arguments_.values.at(name).text : otherwise;
  }

  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low = 0,
                                      std::int64_t high = kLargestSize) {
    if (!given(name)) return std::nullopt;
    const std::string& found = arguments_.values.at(name).text;
    const auto value = parse_number<std::int64_t>(found);
    if (value && *value >= low && *value <= high) return value;
    refuse(name, found, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return std::nullopt;
  }

  // A number of cards or layers, or a degree of parallelism.
  std::int64_t degree(const std::string& name, std::int64_t otherwise = 1) {
    return integer(name, 1, kLargestDegree).value_or(otherwise);
  }

  std::int64_t integer_or(const std::string& name, std::int64_t otherwise, std::int64_t low = 0) {
    return integer(name, low).value_or(otherwise);
  }

  std::int64_t required(const std::string& name, std::int64_t high = kLargestSize) {
    if (!given(name)) refuse(name, "missing", "an integer >= 1");
    return integer(name, 1, high).value_or(0);
  }

  double number_or(const std::string& name, double otherwise) {
    if (!given(name)) return otherwise;
    const auto value = parse_number<double>(arguments_.values.at(name).text);
    if (value) return *value;
    refuse(name, arguments_.values.at(name).text, "a number");
    return otherwise;
  }

  bool boolean(const std::string& name, bool otherwise = false) {
    if (!given(name)) return otherwise;
    const std::string& found = arguments_.values.at(name).text;
    if (found == "True" || found == "true") return true;
    if (found == "False" || found == "false") return false;
    refuse(name, found, "True or False");
    return otherwise;
  }

  template <class T>
  T choice(const std::string& name, const std::map<std::string, T>& choices,
           const std::string& otherwise) {
    const auto it = choices.find(text(name, otherwise));
    if (it != choices.end()) return it->second;
    std::string allowed;
    for (const auto& [key, value] : choices) allowed += (allowed.empty() ? "" : ", ") + key;
    refuse(name, text(name, otherwise), allowed);
    return T{};
  }

  void refuse(const std::string& name, const std::string& found, const std::string& allowed) {
    violations_.push_back({arguments_.source, place(name), found, allowed});
  }

  std::string place(const std::string& name) const {
    const auto it = arguments_.values.find(name);
    if (it == arguments_.values.end()) return name;
    const std::string& where = it->second.place;
    return where.rfind('/', 0) == 0 ? where : name + " (" + where + ")";
  }

  const MegatronArguments& arguments() const { return arguments_; }
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  const MegatronArguments& arguments_;
  std::vector<Violation> violations_;
};

}  // namespace tidemark
