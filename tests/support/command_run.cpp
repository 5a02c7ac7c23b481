#include "tests/support/command_run.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tidemark {
namespace fs = std::filesystem;

CommandRun run_tidemark(const std::string& arguments) {
  const fs::path base = fs::path(testing::TempDir()) / ("tidemark_run_" + std::to_string(getpid()));
  const std::string out = base.string() + ".out";
  const std::string err = base.string() + ".err";
  const int status = std::system(
      (std::string(TIDEMARK_BINARY) + " " + arguments + " >" + out + " 2>" + err).c_str());
  CommandRun run{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(out), read_text(err)};
  fs::remove(out);
  fs::remove(err);
  return run;
}

fs::path fresh_folder(const std::string& name) {
  const fs::path folder =
      fs::path(testing::TempDir()) / ("tidemark_" + name + "_" + std::to_string(getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace tidemark
