// A table of text: columns as wide as their widest cell, two spaces apart.
#pragma once

#include <string>
#include <vector>

namespace tidemark {

class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Requires: a cell for each column.
  void add_row(std::vector<std::string> cells);

  // The title line and the rows, each ended by a line feed, without trailing spaces.
  std::string text() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tidemark
