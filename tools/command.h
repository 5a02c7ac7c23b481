// A subcommand of `tidemark`: what it is called, what it takes, what it does.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/command_line.h"
#include "tools/exit_code.h"

namespace tidemark {

// The result of a command in both of its forms; main.cpp decides which of them goes where.
struct Report {
  nlohmann::ordered_json json;  // `schema_version` and `provenance` come first
  std::string text;
  ExitCode exit = ExitCode::kOk;
};

struct Command {
  std::string name;
  std::string synopsis;  // what follows the name
  std::string summary;   // one line
  std::vector<Flag> flags;
  Report (*run)(const Arguments&);
};

Command simulate_command();
Command plan_command();
Command compare_command();
Command explain_command();
Command validate_command();
Command trace_command();

}  // namespace tidemark
