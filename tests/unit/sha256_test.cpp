#include "tools/sha256.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::sha256_test {
namespace {

std::string digest(std::string_view message) {
  Sha256 hash;
  hash.update(message);
  return hash.hex_digest();
}

// Example vectors of NIST for FIPS 180-4, SHA-256.
TEST(Sha256, AgreesWithTheStandardsExamples) {
  EXPECT_EQ(digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheMessageIsCut) {
  const std::string message(200, 'x');
  for (const std::size_t cut : {1, 55, 56, 63, 64, 65, 128}) {
    Sha256 hash;
    hash.update(message.substr(0, cut));
    hash.update(message.substr(cut));
    EXPECT_EQ(hash.hex_digest(), digest(message)) << cut;
  }
}

TEST(Sha256, ReadsAFileAndRefusesAMissingOne) {
  const auto path = std::filesystem::path(testing::TempDir()) / "sha256_test";
  std::ofstream(path, std::ios::binary) << "abc";
  EXPECT_EQ(sha256_of_file(path), digest("abc"));
  std::filesystem::remove(path);
  EXPECT_THROW(sha256_of_file(path), InputError);
}

}  // namespace
}  // namespace tidemark::sha256_test
