#include "tools/output_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::output_file_test {
namespace {

namespace fs = std::filesystem;

class OutputFileTest : public testing::Test {
 protected:
  fs::path folder_ = fs::path(testing::TempDir()) / "output_file_test";
  fs::path path_ = folder_ / "result";
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
};

TEST_F(OutputFileTest, AppearsWhenCommitted) {
  OutputFile file(path_);
  file.stream() << "whole";
  EXPECT_FALSE(fs::exists(path_));
  file.commit();
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "whole");
}

TEST_F(OutputFileTest, LeavesNothingBehindUncommitted) {
  { OutputFile(path_).stream() << "half"; }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(OutputFileTest, RefusesAFolder) {
  fs::create_directory(path_);
  OutputFile file(path_);
  EXPECT_THROW(file.commit(), InputError);
  EXPECT_THROW(OutputFile(folder_ / "none" / "result"), InputError);
}

}  // namespace
}  // namespace tidemark::output_file_test
