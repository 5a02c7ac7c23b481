#include "hw_profiles/csv_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <utility>

namespace tidemark {
namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

std::string join(const std::vector<std::string>& fields) {
  std::string all;
  for (const std::string& field : fields) all += (all.empty() ? "" : ",") + field;
  return all;
}

// The whole of `text` as a number, or 0: no table holds a zero.
template <class T>
T parse(const std::string& text) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end ? value : T{0};
}

}  // namespace

CsvRow::CsvRow(const std::vector<std::string>& columns, std::vector<std::string> fields,
               const std::string& file, int line, std::vector<Violation>& violations)
    : columns_(columns),
      fields_(std::move(fields)),
      file_(file),
      line_(line),
      violations_(violations) {}

const std::string& CsvRow::text(std::string_view column) const {
  const auto it = std::find(columns_.begin(), columns_.end(), column);
  return fields_.at(static_cast<std::size_t>(it - columns_.begin()));
}

void CsvRow::violate(std::string_view column, std::string allowed) const {
  violations_.push_back({file_, "line " + std::to_string(line_),
                         std::string(column) + " \"" + text(column) + "\"", std::move(allowed)});
}

std::int64_t CsvRow::positive_integer(std::string_view column) const {
  const auto value = parse<std::int64_t>(text(column));
  if (value > 0) return value;
  violate(column, "an integer > 0");
  return 0;
}

double CsvRow::positive_number(std::string_view column) const {
  const auto value = parse<double>(text(column));
  if (value > 0 && std::isfinite(value)) return value;
  violate(column, "a number > 0");
  return 0;
}

bool CsvRow::boolean(std::string_view column) const {
  const std::string& value = text(column);
  if (value != "true" && value != "false") violate(column, "true or false");
  return value == "true";
}

void read_csv(const std::filesystem::path& path, const std::vector<std::string>& columns,
              const std::function<void(const CsvRow&)>& read) {
  const std::string file = path.string();
  std::ifstream in(path);
  if (!in || !std::filesystem::is_regular_file(path)) {
    throw InputError(file, "", "cannot be opened", "a readable CSV file");
  }
  std::vector<Violation> violations;
  bool header_read = false;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields = split(line);
    if (!header_read) {
      if (fields != columns) {
        throw InputError(file, "line " + std::to_string(number), "header " + join(fields),
                         join(columns));
      }
      header_read = true;
    } else if (fields.size() != columns.size()) {
      violations.push_back({file, "line " + std::to_string(number),
                            std::to_string(fields.size()) + " fields",
                            std::to_string(columns.size())});
    } else {
      read(CsvRow(columns, std::move(fields), file, number, violations));
    }
  }
  if (!header_read) throw InputError(file, "", "no header", join(columns));
  throw_if_any(violations);
}

}  // namespace tidemark
