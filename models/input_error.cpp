#include "models/input_error.h"

#include <utility>

namespace tidemark {
namespace {

std::string join(const std::vector<Violation>& violations) {
  std::string all;
  for (const Violation& v : violations) {
    if (!all.empty()) all += '\n';
    all += v.text();
  }
  return all;
}

}  // namespace

std::string Violation::text() const {
  std::string out = file;
  if (!place.empty()) out += (out.empty() ? "" : ": ") + place;
  if (!found.empty()) out += (out.empty() ? "" : ": ") + found;
  if (!allowed.empty()) out += ", expected " + allowed;
  return out;
}

InputError::InputError(std::vector<Violation> violations)
    : std::runtime_error(join(violations)), violations_(std::move(violations)) {}

InputError::InputError(std::string file, std::string place, std::string found, std::string allowed)
    : InputError(std::vector<Violation>{
          {std::move(file), std::move(place), std::move(found), std::move(allowed)}}) {}

void throw_if_any(const std::vector<Violation>& violations) {
  if (!violations.empty()) throw InputError(violations);
}

}  // namespace tidemark
