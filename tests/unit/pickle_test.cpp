#include "tools/pickle.h"

#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tidemark::pickle_test {
namespace {

using namespace std::string_literals;

std::string pickled(const nlohmann::ordered_json& value) {
  std::ostringstream out;
  write_pickle(out, value);
  return out.str();
}

// Opcodes of Python's pickletools: PROTO 2, the value, STOP.
TEST(WritePickle, Scalars) {
  EXPECT_EQ(pickled(nullptr), "\x80\x02N."s);
  EXPECT_EQ(pickled(true), "\x80\x02\x88."s);
  EXPECT_EQ(pickled(258), "\x80\x02\x8a\x08\x02\x01\0\0\0\0\0\0."s);
  EXPECT_EQ(pickled(-1), "\x80\x02\x8a\x08\xff\xff\xff\xff\xff\xff\xff\xff."s);
  EXPECT_EQ(pickled("ab"), "\x80\x02X\x02\0\0\0ab."s);
}

TEST(WritePickle, Containers) {
  EXPECT_EQ(pickled(nlohmann::ordered_json::array()), "\x80\x02]."s);
  EXPECT_EQ(pickled({nullptr, nullptr}), "\x80\x02](NNe."s);
  EXPECT_EQ(pickled({{"k", nullptr}}), "\x80\x02}(X\x01\0\0\0kNu."s);
}

// Lists come in batches of 1,000.
TEST(WritePickle, LongLists) {
  const nlohmann::ordered_json list(std::vector<std::nullptr_t>(1001));
  EXPECT_EQ(pickled(list), "\x80\x02](" + std::string(1000, 'N') + "e(Ne.");
}

TEST(WritePickle, RefusesFractions) { EXPECT_THROW(pickled(0.5), std::logic_error); }

}  // namespace
}  // namespace tidemark::pickle_test
