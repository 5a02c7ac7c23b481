// The `model` object of a job file, which is also what a model spec file says of the model
// (models/model_file.h). Keys are Megatron's argument names; sizes are required, switches are
// optional, with the defaults of models/model_spec.h.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "models/json_reader.h"
#include "models/model_spec.h"

namespace tidemark {

// Records what is missing or malformed. Rules between the values are `validate`'s.
void read_model(JsonReader& in, ModelSpec& model);

// read_model gives it back exactly.
nlohmann::ordered_json to_json(const ModelSpec& model);

}  // namespace tidemark
