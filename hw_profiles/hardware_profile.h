// What one card and its machine can do: sizes, rates, measured kernels and collectives, each number
// with its source. Read from hw_profiles/data/<name>/profile.json and the CSV files it names.
//
// Units are in the names, as in the file: GiB = 2^30 bytes, GB = 10^9 bytes, TFLOPS = 10^12
// floating-point operations a second. A number without a source is refused, and no physical number
// has a default: what nobody measured is absent (std::optional) or says `assumed`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/job.h"
#include "models/units.h"

namespace tidemark {

enum class NumberKind { kMeasured, kDatasheet, kAssumed };

struct SourcedNumber {
  double value = 0;
  NumberKind kind = NumberKind::kAssumed;
  std::string source;
};

struct HbmBandwidth {
  SourcedNumber read_gb_per_s;
  SourcedNumber write_gb_per_s;
  SourcedNumber copy_gb_per_s;  // bytes read plus bytes written
};

// Pinned copies between host and card. The last three are empty where nobody measured them.
struct HostLink {
  SourcedNumber h2d_gb_per_s;  // one card alone, one direction
  SourcedNumber d2h_gb_per_s;
  std::optional<SourcedNumber> both_directions_gb_per_s;  // one card alone, sum of both
  std::optional<SourcedNumber> node_h2d_gb_per_s;         // all cards of a node together
  std::optional<SourcedNumber> node_d2h_gb_per_s;
};

// Links between cards, one direction, where no collective was measured.
struct Fabric {
  SourcedNumber intra_node_gb_per_s;    // achieved, per card
  SourcedNumber inter_node_gb_per_s;    // achieved, per card, all cards of the node at once
  SourcedNumber intra_node_latency_us;  // of one step
  SourcedNumber inter_node_latency_us;
};

// Channels of a communicator, on each of which the collective library connects every card.
struct CommunicatorChannels {
  SourcedNumber in_node;                 // where all ranks are on one node
  SourcedNumber per_card_between_nodes;  // for each of the communicator's cards on a node
};

// Achieved shares of the bf16 peak, where no kernel was measured.
struct KernelEfficiency {
  SourcedNumber gemm;  // of a matrix product whose output tiles fill every compute unit
  SourcedNumber grouped_gemm;
  SourcedNumber attention;
};

// Output tile of the matrix-product kernels: one compute unit makes one tile at a time.
struct GemmTile {
  SourcedNumber rows;
  SourcedNumber columns;
};

// What libraries allocate besides tensors, for a range of DTK versions (half-open, empty = open).
struct AllocatorConstants {
  std::string stack;  // for people
  std::optional<Version> dtk_from;
  std::optional<Version> dtk_before;
  SourcedNumber te_base_workspace_mib;
  SourcedNumber te_grouped_workspace_mib;  // per stream of grouped products
  SourcedNumber te_grouped_streams;
  SourcedNumber torch_workspace_mib;                       // per thread that calls torch.matmul
  std::optional<SourcedNumber> moe_stage_unexplained_mib;  // on every stage with experts
  // ProcessGroupNCCL runs every collective on its own stream and records its tensors there, so that
  // their blocks are reused only when the collective is done (PyTorch before 2.7).
  bool collectives_record_streams = false;
};

// Rows of operators.csv. `mean_ms` is what the harness printed: see kernel_rates.h for what it is.
struct GemmRow {
  std::string part;
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::int64_t tokens = 0;
  bool fused_norm = false;  // te.LayerNormLinear: the RMSNorm of its input is inside
  double mean_ms = 0;
};

struct GroupedGemmRow {
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::int64_t tokens = 0;  // of each expert
  std::int64_t experts = 0;
  double mean_ms = 0;
};

struct AttentionRow {  // batch 1, causal
  std::int64_t seq = 0;
  std::int64_t heads = 0;
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  double mean_ms = 0;
};

struct ElementwiseRow {
  std::int64_t elements = 0;
  std::int64_t width = 0;  // innermost dimension
  double mean_ms = 0;
};

struct OperatorTable {
  NumberKind kind = NumberKind::kMeasured;
  std::string source;
  SourcedNumber host_floor_ms;  // rows faster than this timed the host
  std::vector<GemmRow> linear;  // linear layers of Transformer Engine
  std::vector<GemmRow> logits;  // vocabulary projections by torch.nn.Linear
  std::vector<GroupedGemmRow> grouped_gemm;
  std::vector<AttentionRow> attention;
  std::vector<ElementwiseRow> rms_norm;
  std::vector<ElementwiseRow> rope;
  std::vector<ElementwiseRow> cross_entropy;
};

struct CollectiveRow {
  std::string op;  // all_gather, reduce_scatter, all_reduce, all_to_all, send_receive
  std::int64_t nodes = 0;
  std::int64_t ranks = 0;
  std::int64_t bytes = 0;
  double bus_gb_per_s = 0;
};

struct CollectiveTable {
  NumberKind kind = NumberKind::kMeasured;
  std::string source;
  std::vector<CollectiveRow> rows;
};

// What Transformer Engine's attention backend "auto" runs on this platform.
struct AutoAttention {
  AttentionBackend backend = AttentionBackend::kFlash;
  std::string source;
};

struct HardwareProfile {
  std::string name;
  std::string description;
  std::string architecture;
  SourcedNumber capacity_gib;
  std::optional<SourcedNumber> context_gib;  // of the driver, outside the caching allocator
  SourcedNumber peak_bf16_tflops;
  SourcedNumber peak_fp32_tflops;
  SourcedNumber compute_units;
  HbmBandwidth hbm;
  SourcedNumber cards_per_node;
  std::optional<SourcedNumber> host_memory_gib;  // of a node, that may be pinned
  HostLink host_link;
  SourcedNumber kernel_launch_us;  // device time from one empty kernel to the next
  SourcedNumber host_issue_us;     // host time to issue one framework operator
  SourcedNumber router_us;         // top-k routing of one microbatch and layer, both directions
  // Extra compute time while a collective runs, as a share of the overlap: the compute units that
  // the collective's kernel holds.
  SourcedNumber compute_slowdown_under_collective;
  GemmTile gemm_tile;
  AutoAttention auto_attention;
  std::optional<KernelEfficiency> efficiency;  // exactly one of these two
  std::optional<OperatorTable> operators;
  std::optional<Fabric> fabric;  // and of these two
  std::optional<CollectiveTable> collectives;
  std::optional<CommunicatorChannels> communicator_channels;  // where the library is known
  std::vector<AllocatorConstants> allocator;

  Bytes capacity() const;
  // A card's share of its node's; nothing where the profile does not say.
  std::optional<Bytes> host_memory_of_card() const;
  bool rocm() const { return architecture.rfind("gfx", 0) == 0; }
  // Constants of a software stack. An unknown DTK version (or a platform without DTK) takes the
  // entry without an upper end.
  // Throws: InputError when no entry covers the version.
  const AllocatorConstants& allocator_for(std::optional<Version> dtk) const;
};

// Where the profile called `name_or_path` is: an existing file is taken as it is; a name is looked
// for in $TIDEMARK_DATA_DIR/<name>/profile.json, then in this source tree's hw_profiles/data.
// Throws: InputError with the known names.
std::filesystem::path hardware_profile_path(const std::string& name_or_path);

// Throws: InputError with every violation of the profile, or of one of its tables.
HardwareProfile load_hardware_profile(const std::string& name_or_path);

}  // namespace tidemark
