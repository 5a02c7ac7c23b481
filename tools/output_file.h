// A file that appears complete or not at all: written beside its place, renamed when committed.
#pragma once

#include <filesystem>
#include <fstream>

namespace tidemark {

class OutputFile {
 public:
  // Throws: InputError when the folder cannot be written to.
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  std::ostream& stream() { return stream_; }
  // Throws: InputError when not everything could be written, or the place is taken by a folder.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::ofstream stream_;
};

}  // namespace tidemark
