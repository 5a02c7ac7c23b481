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

namespace tidemark {
namespace {

constexpr std::uint64_t kJobs = 400;

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

// A linear does 2 * out * tokens * in FLOPs in each of its three products.
TEST(OperatorGraph, BackwardOfMatrixProductsTakesTwiceTheirForward) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      const auto sum = [](const std::vector<Operator>& list) {
        double total = 0;
        for (const Operator& op : list) {
          if (!std::holds_alternative<AttentionWork>(op.work)) total += flops(op, 48);
        }
        return total;
      };
      ASSERT_DOUBLE_EQ(sum(graph.backward), 2 * sum(graph.forward)) << describe(job, seed);
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

std::int64_t grouped_attention_kept(const Job& job, const Symbols& s) {
  const AttentionSpec& a = job.model.attention;
  const std::int64_t heads = a.num_heads / s.t;
  const std::int64_t groups = a.num_query_groups / s.t;
  const std::int64_t q = 2 * s.R * heads * a.head_dim;
  const std::int64_t k = 2 * s.R * groups * a.head_dim;
  std::int64_t bytes = (s.flux ? s.X : s.x) + s.rstd * s.T;              // K1: norm; K4
  bytes += q + 2 * k + attention_outputs(job) * q + 4 * s.R * heads;     // K1: attention
  if (a.qk_layernorm) bytes += q + k + s.rstd * s.R * (heads + groups);  // K2
  if (job.model.position_embedding == PositionEmbedding::kRope && !job.options.apply_rope_fusion) {
    bytes += 4 * 2 * job.batch.seq_length / job.layout.context * a.head_dim;  // cos, sin of q and k
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
  bytes += attention_outputs(job) * 2 * s.R * heads * a.v_head_dim + 4 * s.R * heads;
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
  const bool sorts = E / ep > 1;
  const Size row{0, 2 * s.h};

  Size kept{s.x + s.rstd * s.T, 0};  // norm output and statistics
  const TrainingOptions& o = job.options;
  if (o.moe_router_fusion && job.versions.transformer_engine >= Version{2, 6}) {
    kept.fixed += s.T * E + 4 * s.T * E * (o.moe_aux_loss ? 2 : 1);  // fused router
  } else {
    kept.fixed += 4 * s.T * E + 2 * s.T * E + s.T * E + 12 * TK;  // router
  }
  kept.fixed += job.options.moe_permute_fusion ? 4 * s.T * (2 * E + 1) : 8 * sent;
  kept.per_row += 2 * (s.gate * fe + fe) + 4;  // fc1 output, activation, probabilities
  if (sorts) kept.per_row += 8;                // two maps
  // Input of the experts: the sorted copy, or what was gathered, received or permuted.
  kept = kept + (sorts || etp > 1 || ep > 1 ? row : Size{2 * s.h * sent, 0});
  if (job.versions.megatron_core < Version{0, 13}) {
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

TEST(KeptStorages, OfEachLayerAddUpToTheClosedForm) {
  std::map<std::string, int> seen;
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const Symbols s = symbols(job);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      std::map<std::int64_t, Size> kept;  // by layer
      for (StorageId id : kept_storages(graph)) {
        Size& sum = kept[graph.storages[id.index()].layer];
        sum = sum + graph.storages[id.index()].bytes;
      }
      const bool last_stage = stage == job.layout.pipeline - 1;
      const auto layers = job.layout.stage_layers(stage, job.model.num_layers);
      for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
        const bool latent = job.model.attention.kind == AttentionKind::kMultiLatent;
        Size expected{latent ? latent_attention_kept(job, s) : grouped_attention_kept(job, s), 0};
        expected = expected + (job.model.is_moe(layer) ? moe_mlp_kept(job, s)
                                                       : Size{dense_mlp_kept(job, s), 0});
        // Inputs of both norms are outputs of residual additions. A layer's own two are that of its
        // attention and its output, which is sent away at the end of a stage.
        expected.fixed += s.x;
        if (last_stage || layer + 1 < layers.end) expected.fixed += s.x;
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
      if (last_stage) {
        const std::int64_t logits = s.R * job.model.padded_vocab_size(s.t) / s.t;
        outside.fixed += s.x + s.rstd * s.T + 4 * s.R;  // norm output, its statistics, loss
        const bool in_place = job.options.cross_entropy == CrossEntropy::kTransformerEngine;
        outside.fixed += (in_place ? 2 : 4) * logits;  // T2: bf16 gradient or fp32 softmax
      }
      ASSERT_EQ(kept[-1], outside) << describe(job, seed);
    }
  }
  for (const char* kind : {"latent", "grouped", "experts", "dense"})
    EXPECT_GT(seen[kind], 50) << kind;
}

}  // namespace
}  // namespace tidemark
