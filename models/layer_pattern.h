// Which layers have experts: the values of Megatron's `moe_layer_freq`.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tidemark {

// An integer n (every n-th layer, from the first) or a Python list expression such as
// "([0]*3+[1]*58)". Returns: [layer] true where experts are; empty when it is neither, or has
// another length.
std::optional<std::vector<bool>> moe_layer_pattern(std::string_view frequency,
                                                   std::int64_t num_layers);

}  // namespace tidemark
