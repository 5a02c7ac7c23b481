#include "tools/text_table.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace tidemark {

void TextTable::add_row(std::vector<std::string> cells) {
  assert(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::text() const {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    titles.push_back(columns_[c].title);
    widths.push_back(titles[c].size());
    for (const auto& row : rows_) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  const auto add_line = [&](const std::vector<std::string>& cells) {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      const std::string padding(widths[c] - cells[c].size(), ' ');
      if (c > 0) out += "  ";
      out += columns_[c].align == Align::kRight ? padding + cells[c] : cells[c] + padding;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  };
  add_line(titles);
  for (const auto& row : rows_) add_line(row);
  return out;
}

}  // namespace tidemark
