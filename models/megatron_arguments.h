// Megatron-LM arguments as text, from any form in which they are found: a launch script, a plain
// argument list, a JSON object, or the `arguments` dump of a training log. No meaning is given to
// values here; models/megatron_job.h does that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace tidemark {

struct Argument {
  std::string text;   // as Python prints it ("True", "None", "[0, 1]"); a flag's values, by spaces
  std::string place;  // "line 12" or "/key"
};

struct MegatronArguments {
  std::string source;                      // the file, as the user named it
  std::map<std::string, Argument> values;  // by the name in Megatron's `args` namespace
  std::vector<std::string> warnings;
  std::optional<Argument> allocator_conf;  // PYTORCH_CUDA_ALLOC_CONF, where a script sets it
};

// Tells the form by the content. `cards`: the world size, for scripts that compute with it.
// Throws: InputError when the file cannot be read, holds no arguments, or a flag lacks its value.
MegatronArguments read_megatron_arguments(const std::filesystem::path& path,
                                          std::optional<std::int64_t> cards = std::nullopt);

// One object, name -> value. Names may be flags (`--no-rope-fusion`: true or "").
MegatronArguments arguments_from_json(const nlohmann::json& object, const std::string& file);

// The dump that rank 0 prints at start-up.
// Throws: InputError when the log has none, or ends within it.
MegatronArguments arguments_from_log(const std::filesystem::path& path);

// Recognizes the dump in a log line by line:
//   ------------------------ arguments ------------------------
//     name ............................................ value
//   -------------------- end of arguments ---------------------
// Lines may carry a launcher's prefix ("0: "); other text between them is skipped.
class ArgumentsDump {
 public:
  void read(std::string_view line, std::int64_t number);

  bool begun() const { return begun_; }
  bool complete() const { return complete_; }
  const std::map<std::string, Argument>& values() const { return values_; }

 private:
  bool begun_ = false;
  bool complete_ = false;
  std::map<std::string, Argument> values_;
};

// Throws: InputError when the dump did not begin or did not end.
MegatronArguments dump_arguments(const ArgumentsDump& dump, const std::string& file);

// One line of Megatron's two-column dumps (arguments, environment): "  name .... value".
struct DumpLine {
  std::string_view name;
  std::string_view value;
};
// Returns: an empty name when the line is something else.
DumpLine parse_dump_line(std::string_view line);

// Streams the lines of a text file, without line ends, counted from 1, until `read` returns false.
// Throws: InputError for a file that cannot be read, is over 4 GiB, or has a line over 1 MiB.
void for_each_line(const std::filesystem::path& path,
                   const std::function<bool(std::string_view line, std::int64_t number)>& read);

// The items of a list: "['p2p', 'a2a']", "[0, 1]" or "p2p a2a".
std::vector<std::string> list_items(std::string_view text);

}  // namespace tidemark
