// tidemark COMMAND ...: results on stdout, messages on stderr, the exit status of exit_code.h.

#include <algorithm>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_reader.h"
#include "tidemark_version.h"
#include "tools/command.h"
#include "tools/output_file.h"

namespace tidemark {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> kCommands = {simulate_command(), plan_command(),
                                                 compare_command(),  explain_command(),
                                                 validate_command(), trace_command()};
  return kCommands;
}

// What every command takes besides its own.
std::vector<Flag> with_common(std::vector<Flag> flags) {
  flags.push_back({"json", "", "print JSON, errors too"});
  flags.push_back({"output,o", "FILE", "write the JSON result to FILE"});
  flags.push_back({"help,h", "", "print this"});
  return flags;
}

std::string overview() {
  std::string out =
      "Predicts memory and time of large language model training with Megatron-LM.\n\n"
      "usage: tidemark COMMAND [flags]\n\n";
  for (const Command& command : commands()) {
    out +=
        "  tidemark " + command.name + " " + command.synopsis + "\n      " + command.summary + "\n";
  }
  return out +
         "\nEach command has --help. Exit status: 0 done, 1 internal error, 2 bad input or usage, "
         "3 the job\ndoes not fit, 5 a check failed.\n";
}

std::string command_help(const Command& command) {
  return "usage: tidemark " + command.name + " " + command.synopsis + "\n" + command.summary +
         "\n\n" + flags_help(with_common(command.flags));
}

const Command& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  const std::string close = nearest(name, names);
  throw InputError("", "command", "\"" + name + "\"",
                   close.empty() ? "one that tidemark --help lists" : "\"" + close + "\"");
}

// Bytes that are no UTF-8 (a file's name, a quoted value) are replaced.
std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// With -o the JSON goes to a file, and the text (unless --json) is still printed.
ExitCode run(const Command& command, const std::vector<std::string>& words) {
  const Arguments arguments(with_common(command.flags), words);
  if (arguments.has("help")) {
    std::cout << command_help(command);
    return ExitCode::kOk;
  }
  const Report report = command.run(arguments);
  const std::string json = json_text(report.json);
  if (const auto path = arguments.text("output")) {
    OutputFile file(*path);
    file.stream() << json;
    file.commit();
    if (!arguments.has("json")) std::cout << report.text;
  } else {
    std::cout << (arguments.has("json") ? json : report.text);
  }
  if (!std::cout.flush()) throw std::runtime_error("standard output cannot be written");
  return report.exit;
}

ExitCode dispatch(const std::vector<std::string>& words) {
  const std::string first = words.empty() ? "--help" : words.front();
  if (first == "--version") {
    std::cout << "tidemark " TIDEMARK_VERSION " (" TIDEMARK_GIT_HASH ")\n";
    return ExitCode::kOk;
  }
  if (first == "--help" || first == "-h" || first == "help") {
    std::cout << overview();
    return words.empty() ? ExitCode::kBadInput : ExitCode::kOk;
  }
  return run(find_command(first), {words.begin() + 1, words.end()});
}

void report_error(bool as_json, const char* kind, const std::string& message,
                  const std::vector<Violation>& violations) {
  if (!as_json) {
    std::cerr << "tidemark: " << message << "\n";
    return;
  }
  nlohmann::ordered_json error;
  error["kind"] = kind;
  error["violations"] = nlohmann::ordered_json::array();
  for (const Violation& v : violations) {
    error["violations"].push_back(
        {{"file", v.file}, {"place", v.place}, {"found", v.found}, {"allowed", v.allowed}});
  }
  if (violations.empty()) error["message"] = message;
  std::cout << json_text({{"error", error}});
}

}  // namespace
}  // namespace tidemark

int main(int argc, char** argv) {
  using namespace tidemark;
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const bool as_json = std::find(words.begin(), words.end(), "--json") != words.end();
  try {
    return static_cast<int>(dispatch(words));
  } catch (const InputError& error) {
    report_error(as_json, "bad_input", error.what(), error.violations());
    return static_cast<int>(ExitCode::kBadInput);
  } catch (const std::exception& error) {
    report_error(as_json, "internal", std::string("internal error: ") + error.what(), {});
    return static_cast<int>(ExitCode::kInternal);
  }
}
