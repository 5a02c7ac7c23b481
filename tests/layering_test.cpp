// Include order = data order: models <- {hw_profiles, traces} <- sim <- planner <- tools.
// Reads every source file of these folders and refuses an #include of a folder that is not below
// its own; validation/ and tests/ may be included by none of them.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

const std::map<std::string, int> kHeight = {{"models", 0}, {"hw_profiles", 1}, {"traces", 1},
                                            {"sim", 2},    {"planner", 3},     {"tools", 4}};

std::string top_folder(const fs::path& path) {
  return path.empty() ? std::string() : path.begin()->string();
}

bool is_project_folder(const std::string& folder) {
  return kHeight.contains(folder) || folder == "validation" || folder == "tests";
}

bool may_include(const std::string& from, const std::string& to) {
  return from == to || (kHeight.contains(to) && kHeight.at(to) < kHeight.at(from));
}

// Returns: "file:line: includes ..." for each forbidden #include of `text`, the content of `file`
// (relative to the repository root, in a folder of kHeight).
std::vector<std::string> upward_includes(const fs::path& file, const std::string& text) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
  std::vector<std::string> found;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (!std::regex_search(line, match, kInclude)) continue;
    fs::path included(match[1].str());
    if (!is_project_folder(top_folder(included))) {  // "x.h" or "../folder/x.h"
      included = (file.parent_path() / included).lexically_normal();
    }
    const std::string from = top_folder(file);
    const std::string to = top_folder(included);
    if (is_project_folder(to) && !may_include(from, to)) {
      found.push_back(file.string() + ":" + std::to_string(number) + ": " + from +
                      "/ may not include " + included.string());
    }
  }
  return found;
}

TEST(Layering, NoIncludePointsUpward) {
  const fs::path root = TIDEMARK_SOURCE_DIR;
  std::vector<std::string> found;
  bool read_units_header = false;
  for (const auto& [folder, height] : kHeight) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const fs::path extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      const fs::path file = entry.path().lexically_relative(root);
      std::ifstream in(entry.path());
      ASSERT_TRUE(in) << file;
      std::ostringstream text;
      text << in.rdbuf();
      const std::vector<std::string> in_file = upward_includes(file, text.str());
      found.insert(found.end(), in_file.begin(), in_file.end());
      if (file == "models/units.h") read_units_header = true;
    }
  }
  std::sort(found.begin(), found.end());
  EXPECT_TRUE(read_units_header) << "the walk missed models/units.h under " << root;
  EXPECT_THAT(found, IsEmpty());
}

TEST(Layering, ReportsFileAndLineOfAnUpwardInclude) {
  EXPECT_THAT(upward_includes("sim/engine.h", "#pragma once\n#include \"planner/plan.h\"\n"),
              ElementsAre("sim/engine.h:2: sim/ may not include planner/plan.h"));
}

TEST(Layering, RejectsEveryFormOfForbiddenInclude) {
  EXPECT_EQ(upward_includes("models/job.h", "#include \"traces/routing.h\"").size(), 1);
  EXPECT_EQ(upward_includes("models/job.h", "  #  include <sim/engine.h>").size(), 1);
  EXPECT_EQ(upward_includes("models/job.h", "#include \"../sim/engine.h\"").size(), 1);
  EXPECT_EQ(upward_includes("hw_profiles/cost.h", "#include \"traces/routing.h\"").size(), 1);
  EXPECT_EQ(upward_includes("traces/routing.h", "#include \"hw_profiles/cost.h\"").size(), 1);
  EXPECT_EQ(upward_includes("tools/main.cpp", "#include \"validation/claim.h\"").size(), 1);
  EXPECT_EQ(upward_includes("tools/main.cpp", "#include \"tests/support/rng.h\"").size(), 1);
}

TEST(Layering, AcceptsDownwardAndOwnAndForeignIncludes) {
  EXPECT_THAT(upward_includes("sim/engine.h",
                              "#include <vector>\n"
                              "#include <boost/graph/adjacency_list.hpp>\n"
                              "#include \"models/units.h\"\n"
                              "#include \"traces/routing.h\"\n"
                              "#include \"sim/program.h\"\n"
                              "#include \"program.h\"\n"
                              "// see #include \"planner/plan.h\"\n"),
              IsEmpty());
}

}  // namespace
}  // namespace tidemark
