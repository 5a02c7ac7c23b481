#include "models/megatron_arguments.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/characters.h"
#include "models/input_error.h"
#include "models/json_reader.h"
#include "models/launch_script.h"
#include "models/megatron_argument_table.h"

namespace tidemark {
namespace {

constexpr std::uintmax_t kLargestLog = std::uintmax_t{4} << 30;
constexpr std::uintmax_t kLargestScript = std::uintmax_t{1} << 20;
constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr std::string_view kForms =
    "a launch script, a JSON object of arguments, or a log with Megatron's `arguments` dump";

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// --- JSON ------------------------------------------------------------------------------------

std::string python_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (!value.is_array()) return value.dump();
  std::string out = "[";
  for (const nlohmann::json& item : value) out += (out.size() > 1 ? ", " : "") + python_text(item);
  return out + "]";
}

// --- files -----------------------------------------------------------------------------------

std::uintmax_t checked_size(const std::filesystem::path& path, std::uintmax_t largest,
                            std::string_view expected) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) {
    throw InputError(path.string(), "", "no such file", std::string(expected));
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw InputError(path.string(), "", "not a regular file", std::string(expected));
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw InputError(path.string(), "", "cannot be read", std::string(expected));
  if (size > largest) {
    throw InputError(path.string(), "", std::to_string(size) + " bytes",
                     "at most " + std::to_string(largest) + " bytes");
  }
  return size;
}

char first_character(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  char c = '\0';
  in >> c;
  return c;
}

constexpr std::string_view kDumpBegin =
    "------------------------ arguments ------------------------";
constexpr std::string_view kDumpEnd = "-------------------- end of arguments ---------------------";
constexpr std::size_t kDumpColumn = 48;  // of the value, in Megatron's _print_args

}  // namespace

DumpLine parse_dump_line(std::string_view line) {
  // After a prefix: two spaces, a name, a space, dots, a space, the value. A name that fills the
  // column has no dots, so it is recognized by its length.
  for (std::size_t at = line.find("  "); at != std::string_view::npos;
       at = line.find("  ", at + 1)) {
    const std::size_t begin = at + 2;
    std::size_t end = begin;
    while (end < line.size() && is_name_char(line[end])) ++end;
    if (end == begin || end >= line.size() || line[end] != ' ') continue;
    std::size_t dots = end + 1;
    while (dots < line.size() && line[dots] == '.') ++dots;
    if (dots == end + 1 && end - begin < kDumpColumn) continue;
    if (dots < line.size() && line[dots] != ' ') continue;
    return {line.substr(begin, end - begin), trim(line.substr(std::min(dots, line.size())))};
  }
  return {};
}

void ArgumentsDump::read(std::string_view line, std::int64_t number) {
  if (complete_) return;
  if (!begun_) {
    begun_ = line.find(kDumpBegin) != std::string_view::npos;
    return;
  }
  if (line.find(kDumpEnd) != std::string_view::npos) {
    complete_ = true;
    return;
  }
  const DumpLine parsed = parse_dump_line(line);
  if (!parsed.name.empty()) {
    values_.emplace(parsed.name, Argument{std::string(parsed.value), at_line(number)});
  }
}

void for_each_line(const std::filesystem::path& path,
                   const std::function<bool(std::string_view, std::int64_t)>& read) {
  checked_size(path, kLargestLog, "a text file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "", "cannot be opened", "a readable text file");
  std::string buffer(kLongestLine + 1, '\0');
  for (std::int64_t number = 1; in; ++number) {
    in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto count = static_cast<std::size_t>(in.gcount());
    if (in.fail() && !in.eof() && count > 0) {
      throw InputError(path.string(), at_line(number), "more than 1 MiB in one line",
                       "a text file");
    }
    if (in.eof() && count == 0) return;
    // getline counts the line end that it drops.
    std::string_view line(buffer.data(), in.eof() ? count : count - 1);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (!read(line, number)) return;
  }
}

MegatronArguments arguments_from_json(const nlohmann::json& object, const std::string& file) {
  if (!object.is_object()) throw InputError(file, "/", "not an object", "arguments by name");
  MegatronArguments out;
  out.source = file;
  std::vector<Violation> violations;
  for (const auto& [key, value] : object.items()) {
    const std::string place = "/" + key;
    const bool nested =
        value.is_object() ||
        (value.is_array() && std::any_of(value.begin(), value.end(),
                                         [](const auto& item) { return item.is_structured(); }));
    if (nested) {
      violations.push_back({file, place, "nested values", "a value, or a list of values"});
      continue;
    }
    const FlagMeaning flag = resolve_flag(key);
    std::string text = python_text(value);
    const bool bare = value.is_string() && text.empty() && flag.arity == Arity::kSwitch;
    if (bare) text = "True";
    if (flag.arity == Arity::kSwitch && flag.switch_value != "True") {
      // `--no-x`: false means that the flag is not given.
      if (text != "True") continue;
      text = flag.switch_value;
    }
    out.values[flag.name] = {text, place};
  }
  throw_if_any(violations);
  return out;
}

MegatronArguments dump_arguments(const ArgumentsDump& dump, const std::string& file) {
  if (!dump.begun()) {
    throw InputError(file, "", "no `arguments` dump in this log",
                     "the block that Megatron's rank 0 prints at start-up");
  }
  if (!dump.complete()) {
    throw InputError(file, "", "the `arguments` dump does not end (truncated?)",
                     "a line \"" + std::string(kDumpEnd) + "\"");
  }
  return {file, dump.values(), {}, {}};
}

MegatronArguments arguments_from_log(const std::filesystem::path& path) {
  ArgumentsDump dump;
  for_each_line(path, [&](std::string_view line, std::int64_t number) {
    dump.read(line, number);
    return !dump.complete();
  });
  return dump_arguments(dump, path.string());
}

MegatronArguments read_megatron_arguments(const std::filesystem::path& path,
                                          std::optional<std::int64_t> cards) {
  const std::uintmax_t size = checked_size(path, kLargestLog, kForms);
  if (first_character(path) == '{') return arguments_from_json(load_json(path), path.string());
  bool log = false;
  for_each_line(path, [&](std::string_view line, std::int64_t) {
    log = line.find(kDumpBegin) != std::string_view::npos;
    return !log;
  });
  if (log) return arguments_from_log(path);
  if (size <= kLargestScript) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    MegatronArguments script = arguments_from_script(text.str(), path.string(), cards);
    if (!script.values.empty()) return script;
  }
  throw InputError(path.string(), "", "no Megatron-LM arguments", std::string(kForms));
}

std::vector<std::string> list_items(std::string_view text) {
  std::vector<std::string> items;
  std::string item;
  const auto end_item = [&] {
    if (!item.empty()) items.push_back(std::move(item));
    item.clear();
  };
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ',' || c == '\'' || c == '"' || is_space(c)) {
      end_item();
    } else {
      item += c;
    }
  }
  end_item();
  return items;
}

}  // namespace tidemark
