// Operator graphs of random jobs: every graph is consistent, and what each layer keeps for backward
// equals a closed form, written here from reference/memory_rules.md (rules K1 to K7) with the
// options that change it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "models/operator_graph.h"
#include "tests/support/random_jobs.h"

namespace tidemark::graph_property_test {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kJobs = 100;
#else
constexpr std::uint64_t kJobs = 400;
#endif

TEST(OperatorGraph, OfEveryRandomJobIsConsistent) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      ASSERT_NO_THROW(check_operator_graph(graph)) << describe(job, seed);
      std::vector<bool> referenced(graph.storages.size(), false);
      for (std::size_t i = 0; i < graph.size(); ++i) {
        const Operator& op = graph.at(i);
        for (const auto* list : {&op.reads, &op.writes, &op.holds}) {
          for (StorageId s : *list) {
            ASSERT_TRUE(s.valid()) << op.name << " " << describe(job, seed);
            referenced[s.index()] = true;
          }
        }
      }
      for (std::size_t s = 0; s < referenced.size(); ++s) {
        ASSERT_TRUE(referenced[s]) << graph.storages[s].name << " " << describe(job, seed);
        ASSERT_GE(graph.storages[s].bytes.fixed, 0);
        ASSERT_GE(graph.storages[s].bytes.per_row, 0);
      }
    }
  }
}

TEST(OperatorGraph, RunsBesideACollectiveOfTheSameListOnAnotherStream) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      for (const auto* list : {&graph.forward, &graph.backward}) {
        for (const Operator& op : *list) {
          if (op.contends_with < 0) continue;
          ASSERT_LT(op.contends_with, std::ssize(*list)) << describe(job, seed);
          const Operator& beside = (*list)[static_cast<std::size_t>(op.contends_with)];
          ASSERT_TRUE(std::holds_alternative<CollectiveWork>(beside.work)) << describe(job, seed);
          ASSERT_NE(beside.stream, op.stream) << describe(job, seed);
        }
      }
    }
  }
}

TEST(OperatorGraph, GradientsAndTemporariesDieInTheBackwardThatMadeThem) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      for (StorageId s : kept_storages(graph)) {
        const StorageRole role = graph.storages[s.index()].role;
        ASSERT_TRUE(role == StorageRole::kActivation || role == StorageRole::kModuleState)
            << graph.storages[s.index()].name << " " << describe(job, seed);
      }
    }
  }
}

// A linear does 2 * out * tokens * in FLOPs in each of its three products; what the backward runs
// again is forward work.
TEST(OperatorGraph, BackwardOfMatrixProductsTakesTwiceTheirForward) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      const auto forward_work = [](const Operator& op) {
        const auto* gemm = std::get_if<GemmWork>(&op.work);
        const auto* grouped = std::get_if<GroupedGemmWork>(&op.work);
        return (gemm != nullptr && gemm->pass == Pass::kForward) ||
               (grouped != nullptr && grouped->pass == Pass::kForward);
      };
      double forward = 0;
      for (const Operator& op : graph.forward) {
        if (forward_work(op)) forward += flops(op, 48);
      }
      double backward = 0;
      double again = 0;
      for (const Operator& op : graph.backward) {
        if (std::holds_alternative<AttentionWork>(op.work)) continue;
        (forward_work(op) ? again : backward) += flops(op, 48);
      }
      ASSERT_DOUBLE_EQ(backward, 2 * forward) << describe(job, seed);
      // Twice where a recomputed module recomputes a part of itself.
      ASSERT_LE(again, 2 * forward) << describe(job, seed);
    }
  }
}

// Under balanced routing every card receives in an all-to-all what it sends.
TEST(OperatorGraph, BalancedExchangesReceiveWhatTheySend) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    if (!job.model.moe) continue;
    const auto rows = static_cast<std::int64_t>(
        [&] {  // sent by each card, gathered over expert tensor parallelism
          const MoeSpec& moe = *job.model.moe;
          const std::int64_t assignments = job.sharded_tokens() * moe.topk;
          if (!job.options.moe_pad_expert_input_to_capacity) return assignments;
          const double share =
              static_cast<double>(assignments) / static_cast<double>(moe.num_experts);
          return moe.num_experts * static_cast<std::int64_t>(
                                       std::ceil(share * *job.options.moe_expert_capacity_factor));
        }() *
        job.layout.expert_tensor);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      for (std::size_t i = 0; i < graph.size(); ++i) {
        const auto* work = std::get_if<CollectiveWork>(&graph.at(i).work);
        if (work == nullptr || work->group != Group::kExpert) continue;
        ASSERT_EQ(work->send.at(rows), work->receive.at(rows))
            << graph.at(i).name << " " << describe(job, seed);
      }
    }
  }
}

// --- What a layer keeps
// ---------------------------------------------------------------------------

// Symbols of memory_rules.md. T: tokens between tensor-parallel regions; R: tokens inside them.
struct Symbols {
  std::int64_t T, R, h, t, x, X, rstd;  // x, X: bytes of a hidden state of T and R tokens
  bool gathers;                         // sequence parallel
  bool flux;                            // saves what it gathered
  std::int64_t gate;                    // 2 for gated activations
};

Symbols symbols(const Job& job) {
  Symbols s{};
  s.t = job.layout.tensor;
  s.gathers = job.layout.sequence_parallel && s.t > 1;
  s.R = job.batch.seq_length / job.layout.context * job.batch.micro_batch_size;
  s.T = s.gathers ? s.R / s.t : s.R;
  s.h = job.model.hidden_size;
  s.x = 2 * s.T * s.h;
  s.X = 2 * s.R * s.h;
  // fp32 1/std, and the mean of a LayerNorm.
  s.rstd = job.model.normalization == Normalization::kLayerNorm ? 8 : 4;
  s.flux = s.gathers && job.options.linear_impl == LinearImpl::kFluxKeepGather;
  s.gate = job.model.activation == Activation::kSwiglu ? 2 : 1;
  return s;
}

// K5: the attention kernel keeps its output and the projection its input. These are two tensors
// after a head exchange of context parallelism, and where flash-attn's [batch, sequence, ..] is
// turned.
std::int64_t attention_outputs(const Job& job) {
  const bool exchanges =
      job.layout.context > 1 && job.options.cp_comm == ContextParallelComm::kAllToAll;
  const bool turns =
      job.options.attention_backend == AttentionBackend::kFlash && job.batch.micro_batch_size > 1;
  return exchanges || turns ? 2 : 1;
}

// The log-sum-exp in fp32, or the softmax of the scores in bf16.
std::int64_t attention_statistics(const Job& job, const Symbols& s, std::int64_t heads) {
  if (job.options.attention_backend == AttentionBackend::kUnfused) {
    return 2 * s.R * heads * job.batch.seq_length;
  }
  return 4 * s.R * heads;
}

std::int64_t grouped_attention_kept(const Job& job, const Symbols& s) {
  const AttentionSpec& a = job.model.attention;
  const std::int64_t heads = a.num_heads / s.t;
  const std::int64_t groups = a.num_query_groups / s.t;
  const std::int64_t q = 2 * s.R * heads * a.head_dim;
  const std::int64_t k = 2 * s.R * groups * a.head_dim;
  std::int64_t bytes = (s.flux ? s.X : s.x) + s.rstd * s.T;  // K1: norm; K4
  bytes += q + 2 * k + attention_outputs(job) * q;           // K1: attention
  bytes += attention_statistics(job, s, heads);
  if (a.qk_layernorm) bytes += q + k + s.rstd * s.R * (heads + groups);  // K2
  if (job.model.position_embedding == PositionEmbedding::kRope && !job.options.apply_rope_fusion) {
    const auto rotated =
        static_cast<std::int64_t>(static_cast<double>(a.head_dim) * job.model.rotary_percent);
    bytes += 4 * 2 * job.batch.seq_length / job.layout.context * rotated;  // cos, sin of q and k
  }
  return bytes;
}

std::int64_t latent_attention_kept(const Job& job, const Symbols& s) {
  const AttentionSpec& a = job.model.attention;
  const std::int64_t heads = a.num_heads / s.t;
  const std::int64_t qk = a.qk_head_dim + a.qk_pos_emb_head_dim;
  // Down-projections split over TP read the gathered norm output, replicated ones the sharded.
  const bool split = job.versions.megatron_core < Version{0, 14} && s.t > 1;
  const bool low_rank_query = a.q_lora_rank > 0;
  const int columns = (split || !low_rank_query ? 1 : 0) + (split ? 1 : 0);
  std::int64_t bytes = s.rstd * s.T;
  if (s.flux) bytes += columns * s.X;
  if (!s.flux || columns < 2) bytes += s.x;
  // K7: the gathered query latent, the copied key-value latent.
  const std::int64_t query_latent = 2 * (split ? s.R : s.T) * a.q_lora_rank;
  const std::int64_t latent = 2 * s.T * a.kv_lora_rank;
  // Operands of the up-projections: the norms' outputs or the latents.
  const auto up = [&](std::int64_t stored, std::int64_t rank) {
    const std::int64_t operand = s.flux ? 2 * s.R * rank : 2 * s.T * rank;
    if (a.qk_layernorm) return stored + s.rstd * s.T + operand;
    return s.flux ? operand : stored;
  };
  if (low_rank_query) bytes += up(query_latent, a.q_lora_rank);
  bytes += up(latent, a.kv_lora_rank);
  bytes += 2 * 2 * s.R * heads * qk + 2 * s.R * heads * a.v_head_dim;  // Q, K; V
  bytes += attention_outputs(job) * 2 * s.R * heads * a.v_head_dim;
  bytes += attention_statistics(job, s, heads);
  if (!job.options.apply_rope_fusion) {
    bytes += 4 * 2 * job.batch.seq_length / job.layout.context * a.qk_pos_emb_head_dim;
  }
  return bytes;
}

// K3, K4.
std::int64_t dense_mlp_kept(const Job& job, const Symbols& s) {
  const std::int64_t f = job.model.ffn_hidden_size / s.t;
  return (s.flux ? s.X : s.x) + s.rstd * s.T + 2 * s.R * (s.gate * f + f);
}

// K6.
Size moe_mlp_kept(const Job& job, const Symbols& s) {
  const MoeSpec& moe = *job.model.moe;
  const std::int64_t E = moe.num_experts;
  const std::int64_t TK = s.T * moe.topk;
  std::int64_t sent = TK;
  if (job.options.moe_pad_expert_input_to_capacity) {
    sent =
        E * static_cast<std::int64_t>(std::ceil(static_cast<double>(TK) / static_cast<double>(E) *
                                                *job.options.moe_expert_capacity_factor));
  }
  const std::int64_t ep = job.layout.expert;
  const std::int64_t etp = job.layout.expert_tensor;
  const std::int64_t fe = moe.ffn_hidden_size / etp;
  const bool hybrid = job.options.moe_dispatcher == MoeDispatcher::kHybridEp;
  const bool sorts = E / ep > 1 && !hybrid;
  const Size row{0, 2 * s.h};

  Size kept{s.x + s.rstd * s.T, 0};  // norm output and statistics
  const TrainingOptions& o = job.options;
  if (o.moe_router_fusion && job.versions.transformer_engine >= Version{2, 6}) {
    kept.fixed += s.T * E + 4 * s.T * E * (o.moe_aux_loss ? 2 : 1);  // fused router
  } else {
    kept.fixed += 4 * s.T * E + 2 * s.T * E + s.T * E + 12 * TK;  // router
    if (o.moe_aux_loss) kept.fixed += 4 * s.T * E;                // softmax of its own
  }
  if (!hybrid) kept.fixed += job.options.moe_permute_fusion ? 4 * s.T * (2 * E + 1) : 8 * sent;
  kept.per_row += 2 * (s.gate * fe + fe) + 4;  // fc1 output, activation, probabilities
  if (sorts) kept.per_row += 8;                // two maps
  // Input of the experts: the sorted copy, or what was gathered, received or permuted.
  kept = kept + (sorts || etp > 1 || ep > 1 || hybrid ? row : Size{2 * s.h * sent, 0});
  if (job.versions.megatron_core < Version{0, 13} && !hybrid) {
    // unpermute applies the probabilities: the rows that came back, or what the experts made.
    kept = kept + (ep > 1 || etp > 1 ? Size{2 * s.h * sent, 0} : row);
  }
  if (moe.shared_ffn_hidden_size > 0) {
    const std::int64_t fs = moe.shared_ffn_hidden_size / s.t;
    kept.fixed += 2 * s.R * (s.gate * fs + fs);
    const bool keeps_gathered = s.gathers && (job.options.moe_shared_expert_overlap || s.flux);
    if (keeps_gathered) kept.fixed += s.X;
  }
  return kept;
}

// Nor what is refused beside recomputation.
Job without_recompute(Job job) {
  job.options.overlap_moe_expert_parallel_comm = false;
  job.options.delay_wgrad_compute = false;
  job.options.ep_overlap_early_attn_memory_release = false;
  job.options.full_recompute.reset();
  job.options.recompute = {};
  job.options.offload = {};
  job.model.mtp_num_layers = 0;
  return job;
}

// Multi-token prediction adds one layer like the last and one loss.
TEST(KeptStorages, OfMultiTokenPredictionAreALayerItsInputsAndALoss) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    Job job = without_recompute(random_job(seed));
    job.options.hidden_dropout = 0;
    const std::int64_t last = job.layout.pipeline - 1;
    const auto kept = [&] {
      Size sum;
      const OperatorGraph graph = build_operator_graph(job, last);
      for (StorageId id : kept_storages(graph)) sum = sum + graph.storages[id.index()].bytes;
      return sum;
    };
    const Size before = kept();
    job.model.mtp_num_layers = 1;
    const Symbols s = symbols(job);
    const bool latent = job.model.attention.kind == AttentionKind::kMultiLatent;
    Size expected{latent ? latent_attention_kept(job, s) : grouped_attention_kept(job, s), 0};
    const bool moe = job.model.is_moe(job.model.num_layers - 1);
    expected = expected + (moe ? moe_mlp_kept(job, s) : Size{dense_mlp_kept(job, s), 0});
    // Inputs of the layer's norms and of the three of its own (the hidden state is kept anyhow),
    // three statistics, the concatenation, the final norm's output.
    expected.fixed += 3 * s.x + s.x + 3 * s.rstd * s.T + 2 * (s.flux ? s.X : s.x) + s.x;
    const std::int64_t logits = s.R * job.model.padded_vocab_size(s.t) / s.t;
    const bool in_place = job.options.cross_entropy == CrossEntropy::kTransformerEngine;
    expected.fixed += (in_place ? 2 : 4) * logits + 4 * s.R;
    ASSERT_EQ(kept() + -1 * before, expected) << describe(job, seed);
  }
}

// Whether a chunk's last layer is this one.
bool ends_chunk(const Job& job, std::int64_t layer) {
  for (std::int64_t vs = 0; vs < job.layout.virtual_stages(); ++vs) {
    if (job.layout.chunk_layers(vs, job.model.num_layers).end == layer + 1) return true;
  }
  return false;
}

TEST(KeptStorages, OfEachLayerAddUpToTheClosedForm) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = without_recompute(random_job(seed));
    const Symbols s = symbols(job);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      std::map<std::int64_t, Size> kept;  // by layer
      for (StorageId id : kept_storages(graph)) {
        Size& sum = kept[graph.storages[id.index()].layer];
        sum = sum + graph.storages[id.index()].bytes;
      }
      for (const std::int64_t layer : job.layout.stage_layers(stage, job.model.num_layers)) {
        const bool sent_away = ends_chunk(job, layer) && layer + 1 < job.model.num_layers;
        const bool latent = job.model.attention.kind == AttentionKind::kMultiLatent;
        Size expected{latent ? latent_attention_kept(job, s) : grouped_attention_kept(job, s), 0};
        expected = expected + (job.model.is_moe(layer) ? moe_mlp_kept(job, s)
                                                       : Size{dense_mlp_kept(job, s), 0});
        // Inputs of both norms are outputs of residual additions. A layer's own two are that of its
        // attention and its output, which is sent away at the end of a chunk.
        expected.fixed += s.x;
        if (!sent_away) expected.fixed += s.x;
        if (job.options.hidden_dropout > 0) expected.fixed += 2 * s.T * s.h;  // masks
        ASSERT_EQ(kept[layer].fixed, expected.fixed)
            << "layer " << layer << " " << describe(job, seed);
        ASSERT_EQ(kept[layer].per_row, expected.per_row)
            << "layer " << layer << " " << describe(job, seed);
        ++seen[latent ? "latent" : "grouped"];
        ++seen[job.model.is_moe(layer) ? "experts" : "dense"];
      }
      // Outside layers: the embedding's output; final norm and loss.
      Size outside{0, 0};
      if (stage == 0) outside.fixed += s.x;
      if (stage == job.layout.pipeline - 1) {
        const std::int64_t logits = s.R * job.model.padded_vocab_size(s.t) / s.t;
        outside.fixed += s.x + s.rstd * s.T + 4 * s.R;  // norm output, its statistics, loss
        const bool in_place = job.options.cross_entropy == CrossEntropy::kTransformerEngine;
        outside.fixed += (in_place ? 2 : 4) * logits;  // T2: bf16 gradient or fp32 softmax
      }
      ASSERT_EQ(kept[-1], outside) << describe(job, seed);
    }
  }
  for (const char* kind : {"latent", "grouped", "experts", "dense"})
    EXPECT_GT(seen[kind], static_cast<int>(kJobs) / 8) << kind;
}

// --- Recomputation: what is no longer kept ------------------------------------------------------

Size kept_bytes(const Job& job) {
  Size sum;
  for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
    const OperatorGraph graph = build_operator_graph(job, stage);
    for (StorageId id : kept_storages(graph)) {
      if (graph.storages[id.index()].layer >= 0) sum = sum + graph.storages[id.index()].bytes;
    }
  }
  return sum;
}

TEST(FullRecompute, KeepsNothingButTheInputOfEachCheckpoint) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    Job job = without_recompute(random_job(seed));
    const std::int64_t n = 1 + static_cast<std::int64_t>(seed % 3);
    job.options.full_recompute = FullRecompute{RecomputeMethod::kUniform, n};
    const std::int64_t x = symbols(job).x;
    std::int64_t inner = 0;  // inputs that are another layer's output; the first is not a layer's
    for (std::int64_t vs = 0; vs < job.layout.virtual_stages(); ++vs) {
      inner += ceil_div(job.layout.chunk_layers(vs, job.model.num_layers).size(), n) - 1;
    }
    ++inner;  // the last layer's output is the loss head's input
    ASSERT_EQ(kept_bytes(job), (Size{inner * x, 0})) << describe(job, seed);
  }
}

TEST(FullRecompute, ByBlockSparesAsManyLayersOfEachChunk) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    Job job = without_recompute(random_job(seed));
    job.options.full_recompute = FullRecompute{RecomputeMethod::kBlock, 1000};
    const Size all = kept_bytes(job);
    job.options.full_recompute->method = RecomputeMethod::kUniform;
    job.options.full_recompute->num_layers = 1;
    ASSERT_EQ(all, kept_bytes(job)) << describe(job, seed);
    // Only the first layer of each chunk is checkpointed: the others keep what they kept.
    job.options.full_recompute = FullRecompute{RecomputeMethod::kBlock, 1};
    const Symbols s = symbols(job);
    Size expected{s.x, 0};  // the last layer's output
    for (std::int64_t vs = 0; vs < job.layout.virtual_stages(); ++vs) {
      const auto layers = job.layout.chunk_layers(vs, job.model.num_layers);
      for (std::int64_t layer = layers.begin + 1; layer < layers.end; ++layer) {
        const bool latent = job.model.attention.kind == AttentionKind::kMultiLatent;
        expected.fixed += latent ? latent_attention_kept(job, s) : grouped_attention_kept(job, s);
        expected = expected + (job.model.is_moe(layer) ? moe_mlp_kept(job, s)
                                                       : Size{dense_mlp_kept(job, s), 0});
        expected.fixed += 2 * s.x;  // inputs of its two norms
        if (job.options.hidden_dropout > 0) expected.fixed += 2 * s.T * s.h;
      }
    }
    ASSERT_EQ(kept_bytes(job), expected) << describe(job, seed);
  }
}

// What each module gives back, over all layers that have it.
TEST(SelectiveRecompute, GivesBackWhatItsModuleKeepsButItsInputs) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    Job job = without_recompute(random_job(seed));
    const Symbols s = symbols(job);
    const AttentionSpec& a = job.model.attention;
    const bool latent = a.kind == AttentionKind::kMultiLatent;
    const std::int64_t dense = job.model.num_layers - job.model.num_moe_layers();
    const std::int64_t moe = job.model.num_moe_layers();
    const Size before = kept_bytes(job);
    const auto given_back = [&](bool SelectiveRecompute::*module) {
      job.options.recompute.*module = true;
      const Size after = kept_bytes(job);
      job.options.recompute.*module = false;
      return before + -1 * after;
    };
    ASSERT_EQ(given_back(&SelectiveRecompute::mlp), (Size{dense * dense_mlp_kept(job, s), 0}))
        << describe(job, seed);
    // Norms by themselves: MLA's input norm and the norm before experts.
    const std::int64_t norms = moe + (latent ? job.model.num_layers : 0);
    if (!s.flux) {  // which keeps the gathered copy of a norm's output
      ASSERT_EQ(given_back(&SelectiveRecompute::layernorm), (Size{norms * (s.x + s.rstd * s.T), 0}))
          << describe(job, seed);
    }
    if (moe == 0) continue;
    const MoeSpec& spec = *job.model.moe;
    ASSERT_EQ(given_back(&SelectiveRecompute::moe_act),
              (Size{0, moe * 2 * spec.ffn_hidden_size / job.layout.expert_tensor}))
        << describe(job, seed);
    // All but the norm's output, which is the module's input, and its statistics.
    Size module = moe_mlp_kept(job, s);
    module.fixed -= s.x + s.rstd * s.T;
    ASSERT_EQ(given_back(&SelectiveRecompute::moe), moe * module) << describe(job, seed);
    if (spec.shared_ffn_hidden_size > 0 && !job.options.moe_shared_expert_overlap) {
      const std::int64_t fs = spec.shared_ffn_hidden_size / s.t;
      const std::int64_t gathered = s.gathers && s.flux ? s.X : 0;
      ASSERT_EQ(given_back(&SelectiveRecompute::shared_experts),
                (Size{moe * (2 * s.R * (s.gate + 1) * fs + gathered), 0}))
          << describe(job, seed);
      ++seen["shared"];
    }
  }
  EXPECT_GT(seen["shared"], static_cast<int>(kJobs) / 40);
}

// MLA keeps the latent vectors and gives back queries, keys, values, the norms in the projections
// and the rotary tables; attention then keeps its output and statistics alone.
TEST(SelectiveRecompute, OfMlaUpProjectionGivesBackHeads) {
  int seen = 0;
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    Job job = without_recompute(random_job(seed));
    const AttentionSpec& a = job.model.attention;
    const Symbols s = symbols(job);
    const bool exchanges =
        job.layout.context > 1 && job.options.cp_comm == ContextParallelComm::kAllToAll;
    const bool copies =
        job.options.attention_backend == AttentionBackend::kFlash && job.batch.micro_batch_size > 1;
    // Where the attention keeps copies of its operands it goes on keeping them.
    if (a.kind != AttentionKind::kMultiLatent || s.flux || exchanges || copies) continue;
    const Size before = kept_bytes(job);
    job.options.recompute.mla_up_proj = true;
    const Size after = kept_bytes(job);
    const std::int64_t heads = a.num_heads / s.t;
    const std::int64_t qk = a.qk_head_dim + a.qk_pos_emb_head_dim;
    std::int64_t layer = 2 * 2 * s.R * heads * qk + 2 * s.R * heads * a.v_head_dim;
    if (a.qk_layernorm) {
      layer += s.T * (2 * a.kv_lora_rank + s.rstd);
      if (a.q_lora_rank > 0) layer += s.T * (2 * a.q_lora_rank + s.rstd);
    }
    if (!job.options.apply_rope_fusion) {
      layer += 4 * 2 * job.batch.seq_length / job.layout.context * a.qk_pos_emb_head_dim;
    }
    // The key's position part is now an input: a view of the gathered down-projection, unless that
    // is gathered for itself.
    const bool split = job.versions.megatron_core < Version{0, 14} && s.t > 1;
    const std::int64_t position = a.qk_pos_emb_head_dim;
    layer -= !split && s.gathers ? 2 * s.R * position
                                 : 2 * (split ? s.R : s.T) * (a.kv_lora_rank + position);
    ASSERT_EQ(before + -1 * after, (Size{job.model.num_layers * layer, 0})) << describe(job, seed);
    ++seen;
  }
  EXPECT_GT(seen, static_cast<int>(kJobs) / 20);
}

}  // namespace
}  // namespace tidemark::graph_property_test
