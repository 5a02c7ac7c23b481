// Our own job file: one JSON object with the sections of `Job`, keys under Megatron's argument
// names.
//
//   {"schema_version": 1, "name": .., "hardware": .., "frameworks": {"megatron_core": "0.13", ..},
//    "model": {..}, "parallel": {..}, "batch": {..}, "options": {..}, "routing": {..}, "run": {..}}
//
// `routing` is kept as it is: traces/routing_source.h reads it.
//
// Sizes are required; switches are optional, with the defaults of models/job.h. In place of the
// object, `model` may be a string: the path, from the job's folder, of a model spec file or of a
// Hugging Face config.json, or a name in the model zoo (models/model_file.h).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/job.h"

namespace tidemark {

// Pipeline schedules under their names in job files.
const std::vector<std::pair<PipelineSchedule, std::string>>& pipeline_schedules();
// Orders of combined slots by the names of job files, Megatron's first.
const std::vector<std::pair<SlotOrder, std::string>>& slot_order_names();

// Modules of --recompute-modules under Megatron's names.
const std::vector<std::pair<bool SelectiveRecompute::*, std::string>>& recompute_modules();

// Throws: InputError with every violation of the file, each with its JSON pointer.
Job read_job(const std::filesystem::path& path);
Job job_from_json(const nlohmann::json& json, const std::string& file);

// The job as a file, with the model as an object; sources and `warnings` are not part of it.
// job_from_json gives it back exactly.
nlohmann::ordered_json to_json(const Job& job);

// "0.13", "0.13.0", "2.10.dev0": the first two numbers.
std::optional<Version> parse_version(std::string_view text);

}  // namespace tidemark
