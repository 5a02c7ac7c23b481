#include "tools/output_file.h"

#include <system_error>
#include <utility>

#include <unistd.h>

#include "models/input_error.h"

namespace tidemark {

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)),
      temporary_(path_.string() + "." + std::to_string(getpid()) + ".tmp"),
      stream_(temporary_, std::ios::binary) {
  if (!stream_) throw InputError(path_.string(), "", "cannot be written", "a writable place");
}

OutputFile::~OutputFile() {
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);  // not there once committed
}

void OutputFile::commit() {
  stream_.close();
  std::error_code error;
  if (stream_) std::filesystem::rename(temporary_, path_, error);
  if (!stream_ || error) {
    throw InputError(path_.string(), "", "cannot be written", "a writable place with enough room");
  }
}

}  // namespace tidemark
