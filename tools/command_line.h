// A command's flags: one table feeds parsing, help and provenance.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/job.h"

namespace tidemark {

struct Flag {
  std::string name;   // "cards", or with a short form "output,o"
  std::string value;  // what stands for the value in the help; empty: a switch
  std::string help;
};

// The largest count (of cards, tokens, iterations, ..) that a flag takes.
inline constexpr std::int64_t kLargestCount = std::int64_t{1} << 31;

// What a command was given. Names are the long ones.
class Arguments {
 public:
  // Throws: InputError for an unknown flag, one without its value, or one given twice.
  Arguments(const std::vector<Flag>& flags, const std::vector<std::string>& words);

  bool has(const std::string& name) const { return values_.contains(name); }
  std::optional<std::string> text(const std::string& name) const;
  // Throws: InputError when the value is not of this kind, or out of range.
  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low,
                                      std::int64_t high) const;
  std::optional<Version> version(const std::string& name) const;

  const std::vector<std::string>& positionals() const { return positionals_; }
  nlohmann::ordered_json to_json() const;

 private:
  std::map<std::string, std::string> values_;  // of a switch: ""
  std::vector<std::string> positionals_;
};

std::string flags_help(const std::vector<Flag>& flags);

}  // namespace tidemark
