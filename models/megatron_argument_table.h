// Every Megatron-LM argument that we know (Hygon's dcu_megatron and hcu_megatron included): whether
// it matters to a simulation, how many values its flag takes, and which values leave it off.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tidemark {

enum class ArgumentClass {
  kModelled,     // read by `job_from_megatron`
  kIrrelevant,   // no effect on memory or time that a simulation could show
  kNotModelled,  // refused unless it has an accepted value
};

enum class Arity { kSwitch, kValue, kList };

struct ArgumentInfo {
  ArgumentClass kind;
  Arity arity;
  std::string_view accepted;  // kNotModelled: accepted values; "": whatever means off
  std::string_view reason;    // kNotModelled: why, or ""

  bool accepts(std::string_view value) const;
  // What `accepts`, for an error message.
  std::string accepted_text() const;
};

// Returns: nullptr for an unknown name.
const ArgumentInfo* find_argument(std::string_view name);

// Order: by name.
std::vector<std::string> known_arguments();

// What a flag sets. Leading dashes are optional and '-' is as good as '_', so an argument's own
// name works too.
struct FlagMeaning {
  std::string name;
  bool known;
  Arity arity;               // of an unknown flag: kList, as nothing can be said
  std::string switch_value;  // set by the bare flag: "True", for `--no-x` "False"
};
FlagMeaning resolve_flag(std::string_view flag);

}  // namespace tidemark
