// How a table of operator timings becomes rates of kernels.
//
// A row of operators.csv is one call of HYGON-AI/hcu-train-simulator's benchmarks/operators.py: the
// module's forward, `y.float().sum()`, its backward, timed by events around the Python code with
// the card idle at the start. So, with m outputs, k inputs and n tokens,
//
//   mean_ms = head                      host time until the first kernel starts; the rest is hidden
//           + gemm(n,m,k) + gemm(n,k,m) + gemm(m,k,n)           forward, dgrad, wgrad
//           + 12 B * m * n / copy                     float (2 r, 4 w), sum (4 r), bf16 dy (2 w)
//           + [te.LayerNormLinear] norm(n, k)                    RMSNorm of all n tokens
//
//   gemm(M,N,K) = ceil(tiles / CUs) * 2 * tile * K / (rate / CUs),   tiles = ceil(M/256)ceil(N/256)
//
// One compute unit makes one 256x256 tile of the output at a time, so a product takes whole waves
// of CUs tiles (and no less than its memory traffic). Three numbers of this are not known
// beforehand: `head`, `rate` and the time of an element in Transformer Engine's general RMSNorm
// kernel. They are fitted to all rows of linear layers and general RMSNorms above the host's floor,
// by least absolute relative error (iteratively reweighted least squares): a few rows ran a badly
// chosen library kernel and must not pull the fit. BW1000: 0.30 ms, 374 TFLOPS, 63 ps; half of the
// shapes are then within 5 % of the model (BW1100: 0.18 ms, 290 TFLOPS, 58 ps; 7 %). Of nine tiles
// tried, 256x256 is the best on BW1000 (the others leave 25 to 40 % more error) and within an
// eighth of the best on BW1100. What looks like low efficiency of small shapes when rows are only
// divided into FLOPs is the head, the harness's traffic, the norm and unfilled waves.
//
// A measured shape keeps its slowness = measured / modelled, for any number of tokens. A shape that
// nobody measured takes the mean slowness of the table, because library kernels are a lottery whose
// mean, not median, adds up over a model: 1.08 for linear layers, 1.6 for vocabulary projections.
//
// RMSNorm widths {512, 768, 1024, 2048, 4096, 8192} have tuned kernels in Transformer Engine
// (normalization/rmsnorm/rmsnorm_fwd_cuda_kernel.cu and _bwd_): these stream 10 B an element
// (forward 2 r + 2 w, backward 4 r + 2 w), which the 4096-wide rows confirm. All other widths,
// 128 of the q/k norms among them, run the general kernel.
//
// Grouped products run their experts one after the other: the sum over experts of gemm(), times a
// slowness a weight shape. (On BW1100 seven of ten rows are 0.7 to 1.3 of that sum; one pool of all
// experts' tiles would be 3 to 16 times faster than measured.) Rows within 25 % of the table's
// smallest time per expert product timed the issue of kernels and are left out; other shapes take
// the mean. DeepSeek-V3's two shapes are in the table, at 128 tokens an expert, with slowness 4.8
// and 0.8 on BW1000 (below 1: narrower tiles for few tokens, not carried to more). That they hold
// at 2,048 tokens is the least certain statement here: the mean, 2.6, would make a layer's experts
// a quarter faster.
//
// Attention, causal: heads * (flops(s) * seconds_per_flop + bytes * s / copy) + tail * s.
// flops(s) are those of the 128x128 blocks that the mask touches, 2 (qk + v) a pair forward and
// 2 (3 qk + 2 v) backward, which computes the scores again. The bytes are those outside the pair
// loop (attention_bytes), 12 % of the time of a head at s = 4096. The tail is the mask's longest
// rows of blocks, which start last while other compute units idle: one row, so linear in s.
// seconds_per_flop per head dimension and the tail are fitted by least squares on the causal rows.
// All rows have s = 4096: how time grows with s is the model's, not the table's.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "hw_profiles/cost.h"
#include "hw_profiles/hardware_profile.h"

namespace tidemark {

// The tiled product model above. Quantities are counts and FLOP/s.
struct TiledGemm {
  double flops_per_second = 0;  // of full waves
  std::int64_t tile_rows = 0;
  std::int64_t tile_columns = 0;
  std::int64_t compute_units = 0;
  double bytes_per_second = 0;

  // Of one bf16 product out[rows][columns] over `depth`: the longer of its waves and of reading and
  // writing its matrices once.
  double seconds(std::int64_t rows, std::int64_t columns, std::int64_t depth) const;

  // FLOPs of the whole waves, padding included; seconds of the memory traffic.
  double padded_flops(std::int64_t rows, std::int64_t columns, std::int64_t depth) const;
  double memory_seconds(std::int64_t rows, std::int64_t columns, std::int64_t depth) const;
};

// Measured over modelled time per (out_features, in_features).
struct SlownessTable {
  struct Entry {
    double slowness = 1;
    std::int64_t tokens = 0;  // at which it was measured
  };
  std::map<std::pair<std::int64_t, std::int64_t>, Entry> exact;
  double typical = 1;
};

struct AttentionRate {
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  double seconds_per_flop = 0;
};

struct KernelRates {
  CostKind fitted = CostKind::kAssumed;    // of shapes that follow from a fit
  CostKind measured = CostKind::kAssumed;  // of shapes that are rows of the table
  CostKind streamed = CostKind::kRoofline;
  double bytes_per_second = 0;  // HBM, read plus written
  double head_seconds = 0;      // of the harness; no cost uses it
  TiledGemm gemm;
  SlownessTable linear;
  SlownessTable logits;
  SlownessTable grouped;
  std::vector<AttentionRate> attention;         // sorted by (qk_dim, v_dim)
  double attention_tail_seconds_per_token = 0;  // both directions together
  double general_norm_seconds_per_element = 0;  // both directions
  double rope_seconds_per_element = 0;          // "
  double cross_entropy_seconds_per_logit = 0;   // ", Megatron's unfused path
};

// FLOPs per pair of (query, key).
double attention_flops_forward(std::int64_t qk_dim, std::int64_t v_dim);
double attention_flops_backward(std::int64_t qk_dim, std::int64_t v_dim);

// Bytes per head and token that attention moves outside the pair loop, bf16: forward reads q, k, v
// and writes o; backward reads o, do (row sums), clears and converts the fp32 dq accumulator, reads
// q, k, v, do, writes dk and dv per query head and adds them up over the group.
double attention_bytes_forward(std::int64_t qk_dim, std::int64_t v_dim);
double attention_bytes_backward(std::int64_t qk_dim, std::int64_t v_dim);

// Pairs of (query, key) in the 128x128 blocks that a causal mask leaves at least partly visible, or
// all pairs. Requires: seq_kv >= seq_q.
double attention_pairs(std::int64_t seq_q, std::int64_t seq_kv, bool causal);

bool has_tuned_rms_norm(std::int64_t width);

// Bytes per element of an RMSNorm kernel that streams, forward and backward.
inline constexpr double kNormBytesForward = 4;
inline constexpr double kNormBytesBackward = 6;

// Bytes per element, both directions, where nothing was measured: rotary embedding reads and writes
// each element; the unfused loss as on BW1000, where the table gives 46 ps at 1146 GB/s.
inline constexpr double kRopeBytes = 8;
inline constexpr double kUnfusedLossBytes = 52;

// Bytes per output element that the harness adds to an operator.
inline constexpr double kHarnessBytesPerOutput = 12;

// Throws: InputError when a table has too few rows for the fit.
KernelRates kernel_rates(const HardwareProfile& profile);

}  // namespace tidemark
