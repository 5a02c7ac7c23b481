// Runs the `tidemark` command as a user would.
#pragma once

#include <filesystem>
#include <string>

namespace tidemark {

struct CommandRun {
  int exit = -1;
  std::string out;
  std::string err;
};

// `arguments` as in a shell.
CommandRun run_tidemark(const std::string& arguments);

// A folder for one test, empty at first.
std::filesystem::path fresh_folder(const std::string& name);

std::string read_text(const std::filesystem::path& path);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace tidemark
