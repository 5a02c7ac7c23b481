// Strict reading of our CSV tables: a header line, then rows of as many plain fields; lines that
// start with '#' are comments, quotes are not used. Violations name the line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/input_error.h"

namespace tidemark {

// One row. A violation is recorded once for each bad field, and the value is then 0, "" or false.
class CsvRow {
 public:
  CsvRow(const std::vector<std::string>& columns, std::vector<std::string> fields,
         const std::string& file, int line, std::vector<Violation>& violations);

  const std::string& text(std::string_view column) const;
  std::int64_t positive_integer(std::string_view column) const;
  double positive_number(std::string_view column) const;
  bool boolean(std::string_view column) const;

  void violate(std::string_view column, std::string allowed) const;

 private:
  const std::vector<std::string>& columns_;
  std::vector<std::string> fields_;
  const std::string& file_;
  int line_;
  std::vector<Violation>& violations_;
};

// Calls `read` with each row, in file order.
// Throws: InputError when the file is missing, its header is not `columns`, or a row is bad.
void read_csv(const std::filesystem::path& path, const std::vector<std::string>& columns,
              const std::function<void(const CsvRow&)>& read);

}  // namespace tidemark
