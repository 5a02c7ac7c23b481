// A model from the config.json of a Hugging Face checkpoint, by the rules of its family in
// Transformers (src/transformers/models/<model_type>/) or, for DeepSeek and Kimi, of the code that
// the checkpoint brings: llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2,
// deepseek_v3, kimi_k2, glm4_moe.
//
// These files have dozens of keys; those that change no shape (token ids, initialization, dropout,
// how the router scores) are passed over. Sizes are required, switches have Transformers' defaults,
// null is "not given". What a ModelSpec cannot say is refused by name; what it leaves out without
// harm to shapes is a warning.
//
// `vocab_size` counts the rows of the embedding, which the checkpoint's makers have padded as they
// wished, so make_vocab_size_divisible_by is 1: only tensor parallelism pads further.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/model_spec.h"

namespace tidemark {

struct HfConfig {
  ModelSpec model;
  std::vector<std::string> warnings;  // what the model leaves out, by key
};

// It names its model_type or its architectures; our own files name neither.
bool is_hf_config(const nlohmann::json& file);

// Throws: InputError with every violation, each with its key.
HfConfig model_from_hf_config(const nlohmann::json& config, const std::string& file);

}  // namespace tidemark
