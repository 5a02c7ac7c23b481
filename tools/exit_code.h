// What the command's exit status says. README.md lists them.
#pragma once

namespace tidemark {

enum class ExitCode {
  kOk = 0,
  kInternal = 1,
  kBadInput = 2,
  kDoesNotFit = 3,
  kCheckFailed = 5,
};

}  // namespace tidemark
