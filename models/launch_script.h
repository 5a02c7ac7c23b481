// Megatron-LM arguments from a launch script: as much of bash as such scripts use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/megatron_arguments.h"

namespace tidemark {

// A bash script or a list of flags. Variables, arrays, `${X:-default}` and `$((integer
// arithmetic))` are substituted; conditions are not evaluated, so that the last branch stands (with
// a warning); the environment and other files are not consulted, but `cards`, where given, is the
// world size that torchrun and mpirun set. What stays unknown is kept as written ("$1").
MegatronArguments arguments_from_script(std::string_view text, const std::string& file,
                                        std::optional<std::int64_t> cards = std::nullopt);

}  // namespace tidemark
