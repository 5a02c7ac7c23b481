#include "hw_profiles/hardware_profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <nlohmann/json.hpp>

#include "hw_profiles/csv_table.h"
#include "models/input_error.h"
#include "models/json_reader.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProfileFile = "profile.json";

const std::vector<std::string> kOperatorColumns = {
    "class", "part",   "out_features", "in_features", "tokens", "experts",    "seq",
    "heads", "qk_dim", "v_dim",        "elements",    "width",  "fused_norm", "mean_ms"};

const std::vector<std::string> kCollectiveColumns = {"op", "nodes", "ranks", "bytes",
                                                     "bus_gb_per_s"};

const std::vector<std::string> kCollectiveNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                   "all_to_all", "send_receive"};

NumberKind read_kind(JsonReader& json) {
  const std::string kind = json.choice("kind", {"measured", "datasheet", "assumed"});
  if (kind == "measured") return NumberKind::kMeasured;
  return kind == "datasheet" ? NumberKind::kDatasheet : NumberKind::kAssumed;
}

std::string read_source(JsonReader& json) {
  std::string source = json.string("source");
  if (source.empty() && json.has("source")) json.violate("source", "\"\"", "where it comes from");
  return source;
}

SourcedNumber read_number(JsonReader& json) {
  SourcedNumber number;
  number.value = json.number("value");
  const nlohmann::json& value = json.raw("value");
  if (value.is_number() && number.value <= 0) json.violate("value", value.dump(), "a number > 0");
  number.kind = read_kind(json);
  number.source = read_source(json);
  return number;
}

SourcedNumber sourced(JsonReader& json, std::string_view key) {
  SourcedNumber number;
  json.object(key, [&](JsonReader& inner) { number = read_number(inner); });
  return number;
}

// A whole number, such as a count of cards.
SourcedNumber sourced_count(JsonReader& json, std::string_view key) {
  SourcedNumber number = sourced(json, key);
  if (number.value != std::floor(number.value)) {
    json.violate(std::string(key) + "/value", json.raw(key)["value"].dump(), "an integer > 0");
  }
  return number;
}

// Absent, or null to say that nobody measured it.
std::optional<SourcedNumber> optional_sourced(JsonReader& json, std::string_view key) {
  if (json.raw(key).is_null()) return std::nullopt;
  return sourced(json, key);
}

// "25.04" is {25, 4}.
std::optional<Version> optional_version(JsonReader& json, std::string_view key) {
  const std::optional<std::string> text = json.optional_string(key);
  if (!text) return std::nullopt;
  const auto is_digits = [](const std::string& s) {
    return !s.empty() && s.size() <= 4 && s.find_first_not_of("0123456789") == std::string::npos;
  };
  const std::size_t dot = text->find('.');
  const std::string major = text->substr(0, dot);
  const std::string minor = dot == std::string::npos ? "" : text->substr(dot + 1);
  if (!is_digits(major) || !is_digits(minor)) {
    json.violate(key, "\"" + *text + "\"", "a version such as \"25.04\"");
    return std::nullopt;
  }
  return Version{std::stoi(major), std::stoi(minor)};
}

OperatorTable load_operators(const fs::path& path) {
  OperatorTable table;
  read_csv(path, kOperatorColumns, [&](const CsvRow& row) {
    const std::string& kind = row.text("class");
    const double mean_ms = row.positive_number("mean_ms");
    if (kind == "linear" || kind == "logits") {
      (kind == "linear" ? table.linear : table.logits)
          .push_back({row.text("part"), row.positive_integer("out_features"),
                      row.positive_integer("in_features"), row.positive_integer("tokens"),
                      row.boolean("fused_norm"), mean_ms});
    } else if (kind == "grouped_gemm") {
      table.grouped_gemm.push_back(
          {row.positive_integer("out_features"), row.positive_integer("in_features"),
           row.positive_integer("tokens"), row.positive_integer("experts"), mean_ms});
    } else if (kind == "attention") {
      table.attention.push_back({row.positive_integer("seq"), row.positive_integer("heads"),
                                 row.positive_integer("qk_dim"), row.positive_integer("v_dim"),
                                 mean_ms});
    } else if (kind == "rms_norm" || kind == "rope" || kind == "cross_entropy") {
      auto& rows = kind == "rms_norm" ? table.rms_norm
                   : kind == "rope"   ? table.rope
                                      : table.cross_entropy;
      rows.push_back({row.positive_integer("elements"), row.positive_integer("width"), mean_ms});
    } else {
      row.violate("class",
                  "linear, logits, grouped_gemm, attention, rms_norm, rope or cross_entropy");
    }
  });
  return table;
}

std::vector<CollectiveRow> load_collectives(const fs::path& path) {
  std::vector<CollectiveRow> rows;
  read_csv(path, kCollectiveColumns, [&](const CsvRow& row) {
    const std::string& op = row.text("op");
    if (std::find(kCollectiveNames.begin(), kCollectiveNames.end(), op) == kCollectiveNames.end()) {
      row.violate("op", "all_gather, reduce_scatter, all_reduce, all_to_all or send_receive");
    }
    rows.push_back({op, row.positive_integer("nodes"), row.positive_integer("ranks"),
                    row.positive_integer("bytes"), row.positive_number("bus_gb_per_s")});
  });
  return rows;
}

void read_host_link(JsonReader& json, HostLink& link) {
  link.h2d_gb_per_s = sourced(json, "h2d_gb_per_s");
  link.d2h_gb_per_s = sourced(json, "d2h_gb_per_s");
  link.both_directions_gb_per_s = optional_sourced(json, "both_directions_gb_per_s");
  link.node_h2d_gb_per_s = optional_sourced(json, "node_h2d_gb_per_s");
  link.node_d2h_gb_per_s = optional_sourced(json, "node_d2h_gb_per_s");
}

AllocatorConstants read_allocator(JsonReader& json) {
  AllocatorConstants constants;
  constants.stack = json.string("stack");
  constants.dtk_from = optional_version(json, "dtk_from");
  constants.dtk_before = optional_version(json, "dtk_before");
  constants.te_base_workspace_mib = sourced(json, "te_base_workspace_mib");
  constants.te_grouped_workspace_mib = sourced(json, "te_grouped_workspace_mib");
  constants.te_grouped_streams = sourced_count(json, "te_grouped_streams");
  constants.torch_workspace_mib = sourced(json, "torch_workspace_mib");
  constants.collectives_record_streams =
      json.optional_boolean("collectives_record_streams").value_or(false);
  constants.moe_stage_unexplained_mib = optional_sourced(json, "moe_stage_unexplained_mib");
  return constants;
}

// Exactly one of the two keys.
void require_one(JsonReader& json, const char* measured, const char* rates) {
  if (json.has(measured) == json.has(rates)) {
    json.violate(measured,
                 json.has(measured) ? "given together with " + std::string(rates)
                                    : "missing, and so is " + std::string(rates),
                 std::string("one of ") + measured + " (a table) and " + rates);
  }
}

std::vector<fs::path> data_directories() {
  std::vector<fs::path> directories;
  if (const char* extra = std::getenv("TIDEMARK_DATA_DIR")) directories.emplace_back(extra);
  directories.push_back(fs::path(TIDEMARK_SOURCE_DIR) / "hw_profiles" / "data");
  return directories;
}

}  // namespace

Bytes HardwareProfile::capacity() const {
  return Bytes(static_cast<std::int64_t>(capacity_gib.value * static_cast<double>(kGiB.value)));
}

std::optional<Bytes> HardwareProfile::host_memory_of_card() const {
  if (!host_memory_gib) return std::nullopt;
  return Bytes(static_cast<std::int64_t>(host_memory_gib->value / cards_per_node.value *
                                         static_cast<double>(kGiB.value)));
}

const AllocatorConstants& HardwareProfile::allocator_for(std::optional<Version> dtk) const {
  for (const AllocatorConstants& entry : allocator) {
    const bool from = !dtk || !entry.dtk_from || *dtk >= *entry.dtk_from;
    const bool before = !entry.dtk_before || (dtk && *dtk < *entry.dtk_before);
    if (from && before) return entry;
  }
  throw InputError(name, "dtk", dtk ? dtk->text() : "no version",
                   "a version that an entry of the profile's \"allocator\" covers");
}

fs::path hardware_profile_path(const std::string& name_or_path) {
  std::error_code ignored;
  if (fs::is_regular_file(name_or_path, ignored)) return name_or_path;
  std::vector<std::string> known;
  for (const fs::path& directory : data_directories()) {
    if (!fs::is_directory(directory, ignored)) continue;
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string name = entry.path().filename().string();
      if (!fs::is_regular_file(entry.path() / kProfileFile, ignored)) continue;
      if (name == name_or_path) return entry.path() / kProfileFile;
      known.push_back(name);
    }
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::string list = "an existing file, or one of";
  for (const std::string& name : known) list += " " + name;
  throw InputError("", "hardware", "\"" + name_or_path + "\"", list);
}

HardwareProfile load_hardware_profile(const std::string& name_or_path) {
  const fs::path path = hardware_profile_path(name_or_path);
  const nlohmann::json node = load_json(path);
  std::vector<Violation> violations;
  JsonReader json(node, path.string(), "", violations);
  HardwareProfile profile;
  fs::path operators_file;
  fs::path collectives_file;

  json.integer("schema_version", {1, 1});
  profile.name = json.string("name");
  profile.description = json.string("description");
  profile.architecture = json.string("architecture");
  profile.capacity_gib = sourced(json, "capacity_gib");
  profile.context_gib = optional_sourced(json, "context_gib");
  profile.peak_bf16_tflops = sourced(json, "peak_bf16_tflops");
  profile.peak_fp32_tflops = sourced(json, "peak_fp32_tflops");
  profile.compute_units = sourced_count(json, "compute_units");
  json.object("hbm", [&](JsonReader& inner) {
    profile.hbm.read_gb_per_s = sourced(inner, "read_gb_per_s");
    profile.hbm.write_gb_per_s = sourced(inner, "write_gb_per_s");
    profile.hbm.copy_gb_per_s = sourced(inner, "copy_gb_per_s");
  });
  profile.cards_per_node = sourced_count(json, "cards_per_node");
  profile.host_memory_gib = optional_sourced(json, "host_memory_gib");
  json.object("host_link", [&](JsonReader& inner) { read_host_link(inner, profile.host_link); });
  profile.kernel_launch_us = sourced(json, "kernel_launch_us");
  profile.host_issue_us = sourced(json, "host_issue_us");
  profile.router_us = sourced(json, "router_us");
  profile.compute_slowdown_under_collective = sourced(json, "compute_slowdown_under_collective");
  json.object("gemm_tile", [&](JsonReader& inner) {
    profile.gemm_tile.rows = sourced_count(inner, "rows");
    profile.gemm_tile.columns = sourced_count(inner, "columns");
  });
  json.object("auto_attention", [&](JsonReader& inner) {
    const std::string backend = inner.choice("backend", {"flash", "fused"});
    profile.auto_attention.backend =
        backend == "fused" ? AttentionBackend::kFused : AttentionBackend::kFlash;
    profile.auto_attention.source = inner.string("source");
  });
  require_one(json, "operators", "efficiency");
  json.optional_object("efficiency", [&](JsonReader& inner) {
    profile.efficiency = KernelEfficiency{sourced(inner, "gemm"), sourced(inner, "grouped_gemm"),
                                          sourced(inner, "attention")};
  });
  json.optional_object("operators", [&](JsonReader& inner) {
    profile.operators.emplace();
    operators_file = path.parent_path() / inner.string("file");
    profile.operators->kind = read_kind(inner);
    profile.operators->source = read_source(inner);
    profile.operators->host_floor_ms = sourced(inner, "host_floor_ms");
  });
  require_one(json, "collectives", "fabric");
  json.optional_object("fabric", [&](JsonReader& inner) {
    profile.fabric =
        Fabric{sourced(inner, "intra_node_gb_per_s"), sourced(inner, "inter_node_gb_per_s"),
               sourced(inner, "intra_node_latency_us"), sourced(inner, "inter_node_latency_us")};
  });
  json.optional_object("collectives", [&](JsonReader& inner) {
    profile.collectives.emplace();
    collectives_file = path.parent_path() / inner.string("file");
    profile.collectives->kind = read_kind(inner);
    profile.collectives->source = read_source(inner);
  });
  json.optional_object("communicator_channels", [&](JsonReader& inner) {
    profile.communicator_channels = CommunicatorChannels{
        sourced_count(inner, "in_node"), sourced_count(inner, "per_card_between_nodes")};
  });
  json.objects("allocator",
               [&](JsonReader& inner) { profile.allocator.push_back(read_allocator(inner)); });
  json.finish();
  throw_if_any(violations);

  if (profile.operators) {
    OperatorTable rows = load_operators(operators_file);
    rows.kind = profile.operators->kind;
    rows.source = profile.operators->source;
    rows.host_floor_ms = profile.operators->host_floor_ms;
    profile.operators = std::move(rows);
  }
  if (profile.collectives) profile.collectives->rows = load_collectives(collectives_file);
  return profile;
}

}  // namespace tidemark
