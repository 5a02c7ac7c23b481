// SHA-256 (FIPS 180-4), for the provenance of results.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tidemark {

class Sha256 {
 public:
  void update(std::string_view bytes);
  // 64 lower-case hexadecimal digits. Ends the message: call once.
  std::string hex_digest();

 private:
  void compress(const unsigned char* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  std::size_t filled_ = 0;    // bytes of block_
  std::uint64_t length_ = 0;  // bytes in all
};

// Throws: InputError when the file cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace tidemark
