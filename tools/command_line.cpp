#include "tools/command_line.h"

#include <charconv>
#include <sstream>

#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/json_reader.h"

namespace tidemark {
namespace {

namespace po = boost::program_options;

constexpr const char* kPositional = "positional";

po::options_description describe(const std::vector<Flag>& flags) {
  po::options_description description("", 100, 60);
  for (const Flag& flag : flags) {
    const po::value_semantic* semantic =
        flag.value.empty() ? static_cast<const po::value_semantic*>(po::bool_switch())
                           : po::value<std::string>()->value_name(flag.value);
    description.add_options()(flag.name.c_str(), semantic, flag.help.c_str());
  }
  return description;
}

std::string long_name(const Flag& flag) { return flag.name.substr(0, flag.name.find(',')); }

[[noreturn]] void refuse_unknown(const std::string& given, const std::vector<Flag>& flags) {
  std::vector<std::string> known;
  for (const Flag& flag : flags) known.push_back("--" + long_name(flag));
  const std::string close = nearest(given, known);
  throw InputError("", given, "unknown flag", close.empty() ? "a flag that --help lists" : close);
}

[[noreturn]] void refuse_missing(const std::string& flag) {
  throw InputError("", flag, "no value", "a value after it");
}

}  // namespace

Arguments::Arguments(const std::vector<Flag>& flags, const std::vector<std::string>& words) {
  po::options_description all = describe(flags);
  all.add_options()(kPositional, po::value<std::vector<std::string>>());
  po::positional_options_description everything;
  everything.add(kPositional, -1);
  po::variables_map found;
  try {
    po::store(
        po::command_line_parser(words)
            .options(all)
            .positional(everything)
            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
            .run(),
        found);
  } catch (const po::unknown_option& e) {
    refuse_unknown(e.get_option_name(), flags);
  } catch (const po::multiple_occurrences& e) {
    throw InputError("", e.get_option_name(), "given more than once", "one value");
  } catch (const po::invalid_syntax& e) {
    if (e.kind() == po::invalid_syntax::missing_parameter) refuse_missing(e.get_option_name());
    throw InputError("", e.get_option_name(), e.what(), "the form that --help shows");
  }
  for (const Flag& flag : flags) {
    const std::string name = long_name(flag);
    if (!found.count(name) || found[name].defaulted()) continue;
    std::string& value = values_[name];
    if (flag.value.empty()) continue;
    value = found[name].as<std::string>();
    // Boost takes whatever follows, the next flag too.
    if (value.empty() || value.starts_with("--")) refuse_missing("--" + name);
  }
  if (found.count(kPositional)) positionals_ = found[kPositional].as<std::vector<std::string>>();
}

std::optional<std::string> Arguments::text(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

std::optional<std::int64_t> Arguments::integer(const std::string& name, std::int64_t low,
                                               std::int64_t high) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  std::int64_t number = 0;
  const char* end = value->data() + value->size();
  const auto [rest, error] = std::from_chars(value->data(), end, number);
  if (error != std::errc{} || rest != end || number < low || number > high) {
    throw InputError("", "--" + name, *value,
                     "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return number;
}

std::optional<Version> Arguments::version(const std::string& name) const {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  const std::optional<Version> version = parse_version(*value);
  if (!version) throw InputError("", "--" + name, *value, "a version such as 0.14");
  return version;
}

nlohmann::ordered_json Arguments::to_json() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!positionals_.empty()) json["arguments"] = positionals_;
  for (const auto& [name, value] : values_) {
    if (value.empty()) {
      json[name] = true;
    } else {
      json[name] = value;
    }
  }
  return json;
}

std::string flags_help(const std::vector<Flag>& flags) {
  std::ostringstream out;
  out << describe(flags);
  return out.str();
}

}  // namespace tidemark
