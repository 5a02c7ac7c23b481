#include "models/training_log.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>
#include <utility>

#include "models/input_error.h"
#include "models/job_reader.h"

namespace tidemark {
namespace {

// Reads numbers that follow fixed text, left to right.
class LineScanner {
 public:
  explicit LineScanner(std::string_view line) : rest_(line) {}

  // Moves behind the next `text`. Returns: whether there is one.
  bool after(std::string_view text) {
    const std::size_t at = rest_.find(text);
    if (at == std::string_view::npos) return false;
    rest_.remove_prefix(at + text.size());
    return true;
  }

  template <class T>
  bool number(T& out) {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out);
    if (error != std::errc{}) return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }

  template <class T>
  bool number_after(std::string_view text, T& out) {
    return after(text) && number(out);
  }

  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// "iteration        3/      15 | ... elapsed time per iteration (ms): 4853.4 | throughput per GPU
// (TFLOP/s/GPU): 165.5 |"
void read_iteration(std::string_view line, TrainingLog& log) {
  LineScanner in(line);
  LoggedIteration it;
  if (!in.number_after(" iteration ", it.iteration)) return;
  if (!in.number_after("elapsed time per iteration (ms):", it.elapsed_ms)) return;
  double tflops = 0;
  if (in.number_after("throughput per GPU (TFLOP/s/GPU):", tflops)) it.tflops_per_card = tflops;
  log.iterations.push_back(it);
}

// "[Rank 0] (after 1 iterations) memory (MB) | allocated: 36152.02 | max allocated: 39838.50 |
// reserved: 40750.00 | max reserved: 40750.00"
void read_memory(std::string_view line, TrainingLog& log) {
  LineScanner in(line);
  LoggedMemory m;
  if (in.number_after("[Rank ", m.rank) && in.number_after("(after ", m.after_iterations) &&
      in.number_after(" memory (MB) | allocated:", m.allocated_mib) &&
      in.number_after("| max allocated:", m.max_allocated_mib) &&
      in.number_after("| reserved:", m.reserved_mib) &&
      in.number_after("| max reserved:", m.max_reserved_mib)) {
    log.memory.push_back(m);
  }
}

// " > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 4094997504"
void read_parameters(std::string_view line, TrainingLog& log) {
  LineScanner in(line);
  LoggedParameters p;
  if (in.number_after("number of parameters on (tensor, pipeline) model parallel rank (",
                      p.tensor_rank) &&
      in.number_after(",", p.pipeline_rank) && in.number_after("):", p.parameters)) {
    log.parameters.push_back(p);
  }
}

// " > padded vocab (size: 151669) with 11 dummy tokens (new size: 151680)", or the module tree:
// "(output_layer): ColumnParallelLinear(in_features=4096, out_features=151808, bias=False, TP=2)",
// where out_features counts all tensor-parallel ranks.
void read_vocabulary(std::string_view line, TrainingLog& log) {
  LineScanner vocab(line);
  std::int64_t size = 0;
  if (vocab.number_after("padded vocab (size:", size)) {
    log.vocab_size = size;
    if (vocab.number_after("(new size:", size)) log.padded_vocab_size = size;
  }
  LineScanner tree(line);
  if (tree.after("(output_layer): ") && tree.number_after("out_features=", size)) {
    log.padded_vocab_size = size;
  }
}

void found(std::optional<Version>& version, std::string_view text, std::string_view what,
           std::string_view line, std::int64_t number, TrainingLog& log) {
  if (version) return;
  version = parse_version(text);
  if (!version) return;
  constexpr std::size_t kLongestQuote = 100;
  log.evidence.push_back(std::string(what) + " " + version->text() + ": line " +
                         std::to_string(number) + ": " +
                         std::string(line.substr(0, std::min(line.size(), kLongestQuote))));
}

std::string_view from_first(std::string_view line, std::string_view text) {
  const std::size_t at = line.find(text);
  return at == std::string_view::npos ? std::string_view{} : line.substr(at + text.size());
}

void read_versions(std::string_view line, std::int64_t number, TrainingLog& log) {
  // The environment's dump, as containers set it.
  const DumpLine dump = parse_dump_line(line);
  if (dump.name == "TRANSFORMER_ENGINE_VERSION") {
    found(log.transformer_engine, dump.value, "Transformer Engine", line, number, log);
  } else if (dump.name == "NVIDIA_PYTORCH_VERSION") {
    found(log.nvidia_pytorch, dump.value, "NVIDIA PyTorch container", line, number, log);
  }
  // Paths and package names: ".../dtk-25.04.4/...", "transformer_engine-2.10.0+das",
  // ".../Megatron-LM-core_v0.13.0/...".
  for (const std::string_view prefix : {"dtk-", "DTK-"}) {
    found(log.dtk, from_first(line, prefix), "DTK", line, number, log);
  }
  for (const std::string_view prefix : {"transformer_engine-", "TransformerEngine-"}) {
    found(log.transformer_engine, from_first(line, prefix), "Transformer Engine", line, number,
          log);
  }
  for (const std::string_view prefix : {"core_v", "core_r", "megatron_core-", "megatron_core ",
                                        "Megatron core ", "megatron-core=="}) {
    found(log.megatron_core, from_first(line, prefix), "Megatron core", line, number, log);
  }
}

void list_missing(TrainingLog& log) {
  const auto note = [&](bool absent, const char* what) {
    if (absent) log.missing.emplace_back(what);
  };
  note(log.iterations.empty(), "no iteration lines");
  note(log.memory.empty(), "no memory lines");
  note(log.parameters.empty(), "no parameter counts");
  note(!log.padded_vocab_size, "no vocabulary size");
  note(!log.megatron_core, "no Megatron core version");
  note(!log.transformer_engine, "no Transformer Engine version");
}

}  // namespace

FrameworkVersions TrainingLog::versions() const {
  FrameworkVersions v;
  v.megatron_core = megatron_core.value_or(v.megatron_core);
  // The vendor ships its Transformer Engine with DTK. Releases before 26.04 keep no dummy weight
  // gradients (the DeepSeek-V3 log on 25.04), as upstream before 2.3.
  if (dtk && *dtk < Version{26, 4}) v.transformer_engine = {2, 2};
  v.transformer_engine = transformer_engine.value_or(v.transformer_engine);
  v.dtk = dtk;
  return v;
}

std::optional<CoreBound> oldest_core(const MegatronArguments& arguments) {
  // Newest first. Sources: Megatron-LM's CHANGELOG.md for 0.12 to 0.15 (0.15: zero padding for
  // NVFP4 renamed ..._for_fp8; 0.14: router fusion; 0.13: flexible pipeline layout; 0.12:
  // multi-token prediction); 0.17: absent from the arguments of 0.15, present in the vendor's v17
  // tree.
  static const std::pair<const char*, Version> kFirst[] = {
      {"mla_down_proj_fusion", {0, 17}},
      {"moe_router_padding_for_quantization", {0, 15}},
      {"moe_router_fusion", {0, 14}},
      {"pipeline_model_parallel_layout", {0, 13}},
      {"mtp_num_layers", {0, 12}}};
  for (const auto& [argument, version] : kFirst) {
    if (arguments.values.contains(argument)) return CoreBound{version, argument};
  }
  return std::nullopt;
}

TrainingLog read_training_log(const std::filesystem::path& path) {
  TrainingLog log;
  ArgumentsDump dump;
  for_each_line(path, [&](std::string_view line, std::int64_t number) {
    if (!dump.complete()) dump.read(line, number);
    read_iteration(line, log);
    read_memory(line, log);
    read_parameters(line, log);
    read_vocabulary(line, log);
    read_versions(line, number, log);
    return true;
  });
  log.arguments = dump_arguments(dump, path.string());
  if (!log.megatron_core) {
    if (const std::optional<CoreBound> bound = oldest_core(log.arguments)) {
      log.megatron_core = bound->version;
      log.evidence.push_back("Megatron core >= " + bound->version.text() + ": argument " +
                             bound->argument);
    }
  }
  list_missing(log);
  return log;
}

}  // namespace tidemark
