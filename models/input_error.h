// What is thrown when the user's input is wrong: every violation of one file, each with its place,
// what was found and what is allowed. Anything else that is thrown is our bug.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace tidemark {

struct Violation {
  std::string file;     // as the user named it; "" if the value came from the command line
  std::string place;    // JSON pointer, "line 12", "--flag" or an argument's name
  std::string found;    // the offending value, as text
  std::string allowed;  // what would be accepted

  // "file: place: found, expected allowed"
  std::string text() const;
};

class InputError : public std::runtime_error {
 public:
  explicit InputError(std::vector<Violation> violations);
  InputError(std::string file, std::string place, std::string found, std::string allowed);

  const std::vector<Violation>& violations() const { return violations_; }

 private:
  std::vector<Violation> violations_;
};

// Throws: InputError with all of them, if there are any.
void throw_if_any(const std::vector<Violation>& violations);

}  // namespace tidemark
