#include "hw_profiles/kernel_rates.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <string>

#include <Eigen/Dense>

#include "models/input_error.h"

namespace tidemark {
namespace {

constexpr double kBf16Bytes = 2;
constexpr std::int64_t kAttentionBlock = 128;
constexpr std::array<std::int64_t, 6> kTunedNormWidths = {512, 768, 1024, 2048, 4096, 8192};

double mean(const std::vector<double>& values) {
  assert(!values.empty());
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Minimizes sum |A x - b| / b by iteratively reweighted least squares.
Eigen::VectorXd least_relative_deviations(const Eigen::MatrixXd& a, const Eigen::VectorXd& b) {
  constexpr int kIterations = 200;
  constexpr double kSmallest = 1e-4;  // relative residual below which the weight stops growing
  const Eigen::MatrixXd relative = b.cwiseInverse().asDiagonal() * a;
  const Eigen::VectorXd ones = Eigen::VectorXd::Ones(b.size());
  Eigen::VectorXd weights = ones;
  Eigen::VectorXd x;
  for (int i = 0; i < kIterations; ++i) {
    const Eigen::VectorXd root = weights.cwiseSqrt();
    x = (root.asDiagonal() * relative).colPivHouseholderQr().solve(root);
    weights = (relative * x - ones).cwiseAbs().cwiseMax(kSmallest).cwiseInverse();
  }
  return x;
}

// The fit and what it is applied to, for one profile.
class Fit {
 public:
  Fit(const HardwareProfile& profile, KernelRates& rates)
      : name_(profile.name), table_(*profile.operators), rates_(rates) {}

  void run() {
    fit_head_rate_and_norm();
    rates_.linear = slowness(table_.linear);
    rates_.logits = slowness(table_.logits);
    rates_.grouped = grouped_slowness();
    fit_attention();
    rates_.rope_seconds_per_element =
        elementwise(table_.rope, "a rope row", kHarnessBytesPerOutput);
    // The loss is a scalar: the harness adds no output traffic.
    rates_.cross_entropy_seconds_per_logit =
        elementwise(table_.cross_entropy, "a cross_entropy row", 0);
  }

 private:
  // Known beforehand: the harness's traffic and norms that stream.
  double output_seconds(double outputs) const {
    return kHarnessBytesPerOutput * outputs / rates_.bytes_per_second;
  }

  double norm_seconds(std::int64_t tokens, std::int64_t width) const {
    const double elements = as_double(tokens) * as_double(width);
    if (!has_tuned_rms_norm(width)) return elements * rates_.general_norm_seconds_per_element;
    return elements * (kNormBytesForward + kNormBytesBackward) / rates_.bytes_per_second;
  }

  bool above_floor(double mean_ms) const { return mean_ms > table_.host_floor_ms.value; }

  void require(bool enough, const char* what) const {
    if (!enough) throw InputError(name_, "operators", "too few rows", what);
  }

  double gemm_seconds(const GemmRow& row) const {
    double seconds = 0;
    for (const auto& [m, n, k] : products(row)) seconds += rates_.gemm.seconds(m, n, k);
    return seconds;
  }

  // Unknowns: head, seconds per padded FLOP, seconds per element of the general norm. Which
  // products are bound by memory depends on the rate, hence the rounds; they settle after two.
  void fit_head_rate_and_norm() {
    constexpr int kRounds = 5;
    // Scaled so that the columns are of one size.
    constexpr double kMilli = 1e-3;
    constexpr double kFlops = 1e12;
    constexpr double kElements = 1e7;
    const std::vector<Equation> measured = equations();
    require(measured.size() >= 6, "at least 6 linear and rms_norm rows above host_floor_ms");
    const auto rows = static_cast<Eigen::Index>(measured.size());
    Eigen::MatrixXd a(rows, 3);
    Eigen::VectorXd b(rows);
    rates_.gemm.flops_per_second = 1;  // every product bound by its FLOPs
    for (int round = 0; round < kRounds; ++round) {
      for (Eigen::Index i = 0; i < rows; ++i) {
        const Equation& e = measured[static_cast<std::size_t>(i)];
        double flops = 0;
        double known = 0;
        for (const auto& [m, n, k] : e.products) {
          const double memory = rates_.gemm.memory_seconds(m, n, k);
          const double padded = rates_.gemm.padded_flops(m, n, k);
          const bool by_memory = memory > padded / rates_.gemm.flops_per_second;
          (by_memory ? known : flops) += by_memory ? memory : padded;
        }
        a.row(i) << kMilli, flops / kFlops, e.norm_elements / kElements;
        b(i) = e.seconds - known;
      }
      const Eigen::VectorXd x = least_relative_deviations(a, b);
      require(x.minCoeff() > 0, "rows that give a positive head, rate and norm time");
      rates_.head_seconds = x(0) * kMilli;
      rates_.gemm.flops_per_second = kFlops / x(1);
      rates_.general_norm_seconds_per_element = x(2) / kElements;
    }
  }

  // A row without what is known beforehand.
  struct Equation {
    std::vector<std::array<std::int64_t, 3>> products;  // rows, columns, depth
    double norm_elements = 0;                           // of the general kernel
    double seconds = 0;
  };

  static std::vector<std::array<std::int64_t, 3>> products(const GemmRow& row) {
    return {{row.tokens, row.out_features, row.in_features},
            {row.tokens, row.in_features, row.out_features},
            {row.out_features, row.in_features, row.tokens}};
  }

  std::vector<Equation> equations() const {
    std::vector<Equation> all;
    for (const GemmRow& row : table_.linear) {
      if (!above_floor(row.mean_ms)) continue;
      Equation e;
      e.products = products(row);
      e.seconds = row.mean_ms * 1e-3 - output_seconds(as_double(row.out_features * row.tokens));
      if (row.fused_norm && has_tuned_rms_norm(row.in_features)) {
        e.seconds -= norm_seconds(row.tokens, row.in_features);
      } else if (row.fused_norm) {
        e.norm_elements = as_double(row.tokens * row.in_features);
      }
      all.push_back(e);
    }
    for (const ElementwiseRow& row : table_.rms_norm) {
      if (!above_floor(row.mean_ms) || has_tuned_rms_norm(row.width)) continue;
      const double elements = as_double(row.elements);
      all.push_back({{}, elements, row.mean_ms * 1e-3 - output_seconds(elements)});
    }
    return all;
  }

  // Several rows of one shape are averaged.
  SlownessTable slowness(const std::vector<GemmRow>& rows) const {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<double>> found;
    SlownessTable result;
    for (const GemmRow& row : rows) {
      if (!above_floor(row.mean_ms)) continue;
      double seconds = row.mean_ms * 1e-3 - rates_.head_seconds -
                       output_seconds(as_double(row.out_features * row.tokens));
      if (row.fused_norm) seconds -= norm_seconds(row.tokens, row.in_features);
      if (seconds <= 0) continue;
      const std::pair key(row.out_features, row.in_features);
      found[key].push_back(seconds / gemm_seconds(row));
      result.exact[key].tokens = row.tokens;
    }
    std::vector<double> all;
    for (const auto& [key, values] : found) {
      result.exact[key].slowness = mean(values);
      all.push_back(result.exact[key].slowness);
    }
    require(!all.empty(), "a linear and a logits row above host_floor_ms");
    result.typical = mean(all);
    return result;
  }

  SlownessTable grouped_slowness() const {
    constexpr double kIssueMargin = 1.25;
    constexpr double kProducts = 3;  // forward, dgrad, wgrad
    const auto seconds = [&](const GroupedGemmRow& row) {
      const double outputs = as_double(row.out_features * row.tokens * row.experts);
      return row.mean_ms * 1e-3 - rates_.head_seconds - output_seconds(outputs);
    };
    std::vector<double> per_product;
    for (const GroupedGemmRow& row : table_.grouped_gemm) {
      per_product.push_back(seconds(row) / (kProducts * as_double(row.experts)));
    }
    require(!per_product.empty(), "a grouped_gemm row");
    const double issue = *std::min_element(per_product.begin(), per_product.end()) * kIssueMargin;
    SlownessTable result;
    std::vector<double> all;
    for (std::size_t i = 0; i < per_product.size(); ++i) {
      if (per_product[i] <= issue) continue;
      const GroupedGemmRow& row = table_.grouped_gemm[i];
      const GemmRow one{"", row.out_features, row.in_features, row.tokens, false, 0};
      const double value = seconds(row) / (as_double(row.experts) * gemm_seconds(one));
      result.exact[{row.out_features, row.in_features}] = {value, row.tokens};
      all.push_back(value);
    }
    require(!all.empty(), "a grouped_gemm row that did not time the issue of its kernels");
    result.typical = mean(all);
    return result;
  }

  // Unknowns: the tail and one seconds_per_flop for each pair of head dimensions.
  void fit_attention() {
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;
    for (const AttentionRow& row : table_.attention) dims.emplace_back(row.qk_dim, row.v_dim);
    std::sort(dims.begin(), dims.end());
    dims.erase(std::unique(dims.begin(), dims.end()), dims.end());
    require(table_.attention.size() > dims.size(), "more attention rows than head dimensions");
    const auto rows = static_cast<Eigen::Index>(table_.attention.size());
    Eigen::MatrixXd a = Eigen::MatrixXd::Zero(rows, 1 + static_cast<Eigen::Index>(dims.size()));
    Eigen::VectorXd b(rows);
    for (Eigen::Index i = 0; i < rows; ++i) {
      const AttentionRow& row = table_.attention[static_cast<std::size_t>(i)];
      const double heads = as_double(row.heads);
      const double tokens = heads * as_double(row.seq);
      const double bytes = attention_bytes_forward(row.qk_dim, row.v_dim) +
                           attention_bytes_backward(row.qk_dim, row.v_dim);
      const auto it = std::lower_bound(dims.begin(), dims.end(), std::pair(row.qk_dim, row.v_dim));
      a(i, 0) = as_double(row.seq);
      a(i, 1 + (it - dims.begin())) = heads * attention_pairs(row.seq, row.seq, true) *
                                      (attention_flops_forward(row.qk_dim, row.v_dim) +
                                       attention_flops_backward(row.qk_dim, row.v_dim));
      b(i) = row.mean_ms * 1e-3 - rates_.head_seconds -
             output_seconds(tokens * as_double(row.v_dim)) -
             tokens * bytes / rates_.bytes_per_second;
    }
    // Columns of one size, relative residuals.
    const Eigen::VectorXd scale = a.colwise().maxCoeff().transpose();
    const Eigen::MatrixXd relative =
        b.cwiseInverse().asDiagonal() * a * scale.cwiseInverse().asDiagonal();
    const Eigen::VectorXd x =
        relative.colPivHouseholderQr().solve(Eigen::VectorXd::Ones(rows)).cwiseQuotient(scale);
    require(x.minCoeff() > 0, "attention rows that give positive rates");
    rates_.attention_tail_seconds_per_token = x(0);
    for (std::size_t i = 0; i < dims.size(); ++i) {
      rates_.attention.push_back(
          {dims[i].first, dims[i].second, x(1 + static_cast<Eigen::Index>(i))});
    }
  }

  // Time per element of the largest row, in which the host counts least.
  double elementwise(const std::vector<ElementwiseRow>& rows, const char* what,
                     double harness_bytes) const {
    require(!rows.empty(), what);
    const ElementwiseRow& row = *std::max_element(
        rows.begin(), rows.end(),
        [](const ElementwiseRow& x, const ElementwiseRow& y) { return x.elements < y.elements; });
    return (row.mean_ms * 1e-3 - rates_.head_seconds) / as_double(row.elements) -
           harness_bytes / rates_.bytes_per_second;
  }

  std::string name_;
  const OperatorTable& table_;
  KernelRates& rates_;
};

}  // namespace

double TiledGemm::padded_flops(std::int64_t rows, std::int64_t columns, std::int64_t depth) const {
  const std::int64_t tiles = ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns);
  const std::int64_t in_waves = round_up(tiles, compute_units);
  return 2 * as_double(in_waves) * as_double(tile_rows * tile_columns) * as_double(depth);
}

double TiledGemm::memory_seconds(std::int64_t rows, std::int64_t columns,
                                 std::int64_t depth) const {
  const std::int64_t elements = rows * depth + columns * depth + rows * columns;
  return kBf16Bytes * as_double(elements) / bytes_per_second;
}

double TiledGemm::seconds(std::int64_t rows, std::int64_t columns, std::int64_t depth) const {
  return std::max(padded_flops(rows, columns, depth) / flops_per_second,
                  memory_seconds(rows, columns, depth));
}

double attention_flops_forward(std::int64_t qk_dim, std::int64_t v_dim) {
  return 2 * as_double(qk_dim + v_dim);
}

double attention_flops_backward(std::int64_t qk_dim, std::int64_t v_dim) {
  return 2 * as_double(3 * qk_dim + 2 * v_dim);
}

double attention_bytes_forward(std::int64_t qk_dim, std::int64_t v_dim) {
  return kBf16Bytes * as_double(2 * qk_dim + 2 * v_dim);  // q, k; v, o
}

double attention_bytes_backward(std::int64_t qk_dim, std::int64_t v_dim) {
  const double row_sums = kBf16Bytes * as_double(2 * v_dim);               // o, do
  const double accumulator = (4 + 4 + kBf16Bytes) * as_double(qk_dim);     // clear; convert
  const double operands = kBf16Bytes * as_double(2 * qk_dim + 2 * v_dim);  // q, k; v, do
  const double gradients = 2 * kBf16Bytes * as_double(qk_dim + v_dim);     // dk, dv; added up
  return row_sums + accumulator + operands + gradients;
}

double attention_pairs(std::int64_t seq_q, std::int64_t seq_kv, bool causal) {
  assert(seq_kv >= seq_q);
  if (!causal) return as_double(seq_q) * as_double(seq_kv);
  // Keys before the mask's diagonal, then the triangle of blocks, the diagonal ones whole.
  const std::int64_t blocks = ceil_div(seq_q, kAttentionBlock);
  const double triangle = as_double(blocks * (blocks + 1) / 2) * as_double(kAttentionBlock) *
                          as_double(kAttentionBlock);
  return as_double(seq_q) * as_double(seq_kv - seq_q) + triangle;
}

bool has_tuned_rms_norm(std::int64_t width) {
  return std::find(kTunedNormWidths.begin(), kTunedNormWidths.end(), width) !=
         kTunedNormWidths.end();
}

KernelRates kernel_rates(const HardwareProfile& profile) {
  constexpr double kTera = 1e12;
  constexpr double kGiga = 1e9;
  KernelRates rates;
  rates.bytes_per_second = profile.hbm.copy_gb_per_s.value * kGiga;
  rates.streamed = profile.hbm.copy_gb_per_s.kind == NumberKind::kAssumed ? CostKind::kAssumed
                                                                          : CostKind::kRoofline;
  rates.gemm.bytes_per_second = rates.bytes_per_second;
  rates.gemm.tile_rows = static_cast<std::int64_t>(profile.gemm_tile.rows.value);
  rates.gemm.tile_columns = static_cast<std::int64_t>(profile.gemm_tile.columns.value);
  rates.gemm.compute_units = static_cast<std::int64_t>(profile.compute_units.value);
  if (profile.operators) {
    const bool measured = profile.operators->kind == NumberKind::kMeasured;
    rates.measured = measured ? CostKind::kMeasured : CostKind::kAssumed;
    rates.fitted = measured ? CostKind::kInterpolated : CostKind::kAssumed;
    Fit(profile, rates).run();
    return rates;
  }
  assert(profile.efficiency);
  const KernelEfficiency& efficiency = *profile.efficiency;
  const double peak = profile.peak_bf16_tflops.value * kTera;
  rates.gemm.flops_per_second = peak * efficiency.gemm.value;
  rates.grouped.typical = efficiency.gemm.value / efficiency.grouped_gemm.value;
  rates.attention.push_back({128, 128, 1 / (peak * efficiency.attention.value)});
  rates.general_norm_seconds_per_element =
      (kNormBytesForward + kNormBytesBackward) / rates.bytes_per_second;
  rates.rope_seconds_per_element = kRopeBytes / rates.bytes_per_second;
  rates.cross_entropy_seconds_per_logit = kUnfusedLossBytes / rates.bytes_per_second;
  return rates;
}

}  // namespace tidemark
