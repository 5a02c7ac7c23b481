#include "tests/support/random_provision.h"

#include <algorithm>
#include <sstream>

#include "tests/support/random_jobs.h"

namespace tidemark {
namespace {

Size small_size(Rng& rng, std::int64_t most) { return {rng.below(most + 1), rng.below(2)}; }

StorageAction small_action(Rng& rng, std::int64_t moments, std::int64_t outs, std::int64_t ins) {
  StorageAction a;
  a.kind = rng.pick({ActionKind::kSave, ActionKind::kRecompute, ActionKind::kOffload});
  for (std::int64_t t = 0; t < moments; ++t) a.held[t] = small_size(rng, 6);
  // Whole nanoseconds half of the time, so that many plans cost the same.
  const std::int64_t unit = rng.coin() ? 1000 : 700;
  if (rng.coin()) a.compute_ps = unit * small_size(rng, 4);
  if (outs > 0 && rng.coin()) {
    a.out_ps = unit * small_size(rng, 4);
    a.out_deadline = static_cast<std::int32_t>(rng.below(outs));
  }
  if (ins > 0 && rng.coin()) {
    a.in_ps = unit * small_size(rng, 4);
    a.in_deadline = static_cast<std::int32_t>(rng.below(ins));
  }
  if (rng.coin()) a.host_bytes = small_size(rng, 3);
  a.collective = rng.below(6) == 0;
  return a;
}

// Budgets between what must be and what could be held.
void set_limits(Rng& rng, ProvisionProblem& p, std::int64_t storages) {
  const std::int64_t moments = rng.between(1, 2);
  for (std::int64_t t = 0; t < moments; ++t) p.floor.push_back(small_size(rng, 3));
  const std::int64_t lanes = rng.between(1, 3);
  for (std::int64_t l = 0; l < lanes; ++l) {
    ProvisionLane lane;
    lane.rows = rng.below(4);
    for (std::int64_t t = 0; t < moments; ++t)
      lane.budget[t] = rng.between(2 * storages, 7 * storages + 8);
    lane.host_budget = rng.between(storages, 4 * storages);
    p.lanes.push_back(lane);
  }
  p.compute_slack_ps = 1000 * rng.below(2 * storages);
}

void set_capacities(Rng& rng, std::vector<std::int64_t>& capacity, std::int64_t deadlines) {
  std::int64_t so_far = 0;
  for (std::int64_t d = 0; d < deadlines; ++d) {
    so_far += 1000 * rng.below(4);
    capacity.push_back(so_far);
  }
}

// Drawn last, so that seeds of old tests still mean what they did; none for seeds that are 1
// modulo 4.
void add_exposed(Rng& rng, std::uint64_t seed, ProvisionProblem& p) {
  if (seed % 4 == 1 || rng.coin()) return;
  for (StorageClass& c : p.classes) {
    for (StorageAction& a : c.actions) {
      if (rng.coin()) a.exposed_ps = (rng.coin() ? 1000 : 700) * small_size(rng, 1);
    }
  }
}

void add_rule(Rng& rng, ProvisionProblem& p) {
  Rule rule;
  for (int i = 0; i < 2; ++i) {
    const std::int64_t c = rng.below(std::ssize(p.classes));
    const auto& actions = p.classes[static_cast<std::size_t>(c)].actions;
    rule.actions.push_back(
        {static_cast<std::int32_t>(c), static_cast<std::int32_t>(rng.below(std::ssize(actions)))});
  }
  rule.count = rng.between(1, 2);
  p.rules.push_back(rule);
}

}  // namespace

ProvisionProblem random_small_problem(std::uint64_t seed, std::int64_t max_classes) {
  Rng rng(seed);
  ProvisionProblem p;
  const std::int64_t outs = rng.below(3);
  const std::int64_t ins = rng.below(3);
  set_capacities(rng, p.out_capacity_ps, outs);
  set_capacities(rng, p.in_capacity_ps, ins);
  const std::int64_t classes = rng.between(1, max_classes);
  std::int64_t storages = 0;
  for (std::int64_t c = 0; c < classes; ++c) {
    StorageClass storage_class;
    storage_class.name = "class " + std::to_string(c);
    storage_class.count = rng.below(4) == 0 ? 2 : 1;
    storages += storage_class.count;
    const std::int64_t actions = rng.below(8) == 0 ? 1 : rng.between(2, 3);
    for (std::int64_t a = 0; a < actions; ++a) {
      storage_class.actions.push_back(small_action(rng, kMaxMoments, outs, ins));
    }
    p.classes.push_back(std::move(storage_class));
  }
  set_limits(rng, p, storages);
  const std::int64_t rules = rng.below(3);
  for (std::int64_t k = 0; k < rules; ++k) add_rule(rng, p);
  add_exposed(rng, seed, p);
  return p;
}

ProvisionProblem random_wide_problem(std::uint64_t seed, std::int64_t classes) {
  Rng rng(seed);
  ProvisionProblem p;
  set_capacities(rng, p.out_capacity_ps, 2);
  for (std::int64_t c = 0; c < classes; ++c) {
    StorageClass storage_class;
    storage_class.name = "class " + std::to_string(c);
    const std::int64_t actions = rng.between(2, 3);
    for (std::int64_t a = 0; a < actions; ++a) {
      storage_class.actions.push_back(small_action(rng, kMaxMoments, 2, 0));
    }
    p.classes.push_back(std::move(storage_class));
  }
  set_limits(rng, p, classes);
  p.lanes.resize(
      static_cast<std::size_t>(rng.between(1, std::min<std::int64_t>(2, std::ssize(p.lanes)))));
  return p;
}

PlantedProblem planted_problem(std::uint64_t seed, std::int64_t classes, std::int64_t lanes,
                               double headroom) {
  Rng rng(seed);
  PlantedProblem out;
  ProvisionProblem& p = out.problem;
  const std::int64_t deadlines = 3;
  for (std::int64_t c = 0; c < classes; ++c) {
    StorageClass s;
    s.name = "class " + std::to_string(c);
    s.count = rng.between(1, 8);
    // 1 MiB to 128 MiB at 8,192 rows, half of the classes routed.
    const std::int64_t bytes = (std::int64_t{1} << rng.between(20, 26)) + rng.below(1 << 20);
    const Size size = rng.coin() ? Size{bytes, 0} : Size{0, bytes / 8192};
    StorageAction save;
    save.held[0] = save.held[1] = size;
    s.actions.push_back(save);
    // A re-run at 0.2 to 4 TB/s; what it makes is there again in the backward.
    StorageAction recompute = save;
    recompute.kind = ActionKind::kRecompute;
    recompute.held[0] = {};
    const std::int64_t ps_per_kib = rng.between(256, 5120);
    recompute.compute_ps = {size.fixed * ps_per_kib / 1024, size.per_row * ps_per_kib / 1024};
    recompute.collective = rng.below(10) == 0;
    if (rng.below(5) != 0) s.actions.push_back(recompute);
    // 25 GB/s each way.
    StorageAction offload = save;
    offload.kind = ActionKind::kOffload;
    offload.held[0] = {};
    offload.out_ps = 40 * size;
    offload.in_ps = 40 * size;
    offload.out_deadline = static_cast<std::int32_t>(rng.below(deadlines));
    offload.in_deadline = static_cast<std::int32_t>(rng.below(deadlines));
    offload.host_bytes = size;
    if (rng.below(3) != 0) s.actions.push_back(offload);
    StorageAction quantize = save;
    quantize.kind = ActionKind::kQuantize;
    quantize.held[0] = {size.fixed / 2, size.per_row / 2};
    quantize.held[1] = quantize.held[0] + size;
    quantize.compute_ps = 2 * size;  // a pass each way over bf16 and 8 bits
    if (rng.below(4) == 0) s.actions.push_back(quantize);
    // The plan.
    std::vector<std::int32_t> counts(s.actions.size(), 0);
    for (std::int64_t i = 0; i < s.count; ++i) {
      ++counts[static_cast<std::size_t>(rng.below(std::ssize(s.actions)))];
    }
    out.counts.insert(out.counts.end(), counts.begin(), counts.end());
    p.classes.push_back(std::move(s));
  }
  p.floor = {{1 << 28, 16384}, {1 << 28, 32768}};
  const auto total = [&](auto amount) {
    Size sum;
    std::size_t i = 0;
    for (const StorageClass& s : p.classes) {
      for (const StorageAction& a : s.actions) sum = sum + out.counts[i++] * amount(a);
    }
    return sum;
  };
  const auto percent = [&](std::int64_t x, std::int64_t of) { return x / 100 * of; };
  for (std::int64_t l = 0; l < lanes; ++l) {
    ProvisionLane lane;
    lane.rows = l == 0 ? 8192 * rng.between(10, 26) / 10 : rng.between(2048, 8192);
    for (std::size_t t = 0; t < p.floor.size(); ++t) {
      const std::int64_t held =
          (p.floor[t] + total([&](const StorageAction& a) { return a.held[t]; })).at(lane.rows);
      lane.budget[t] =
          held + static_cast<std::int64_t>(headroom * static_cast<double>(held) *
                                           static_cast<double>(rng.below(1000)) / 1000);
    }
    const Size host = total([](const StorageAction& a) { return a.host_bytes; });
    lane.host_budget = host.at(lane.rows) + rng.below(1 << 28);
    p.lanes.push_back(lane);
  }
  const std::int64_t rows = p.lanes[0].rows;
  const auto compute = total([](const StorageAction& a) { return a.compute_ps; }).at(rows);
  p.compute_slack_ps = percent(compute, rng.below(80));
  for (std::int64_t d = 0; d < deadlines; ++d) {
    const auto due = [&](auto ps, auto deadline) {
      return total([&](const StorageAction& a) { return deadline(a) <= d ? ps(a) : Size{}; })
          .at(rows);
    };
    p.out_capacity_ps.push_back(percent(due([](const StorageAction& a) { return a.out_ps; },
                                            [](const StorageAction& a) { return a.out_deadline; }),
                                        80));
    p.in_capacity_ps.push_back(percent(due([](const StorageAction& a) { return a.in_ps; },
                                           [](const StorageAction& a) { return a.in_deadline; }),
                                       90));
  }
  return out;
}

std::string describe(const ProvisionProblem& p) {
  std::ostringstream out;
  const auto size = [](Size s) {
    return std::to_string(s.fixed) + "+" + std::to_string(s.per_row);
  };
  for (const StorageClass& c : p.classes) {
    out << c.name << " x" << c.count << '\n';
    for (const StorageAction& a : c.actions) {
      out << "  held";
      for (std::size_t t = 0; t < p.floor.size(); ++t) out << ' ' << size(a.held[t]);
      out << " exposed " << size(a.exposed_ps) << " compute " << size(a.compute_ps) << " out "
          << size(a.out_ps) << '@' << a.out_deadline << " in " << size(a.in_ps) << '@'
          << a.in_deadline << " host " << size(a.host_bytes) << (a.collective ? " collective" : "")
          << '\n';
    }
  }
  for (const Rule& rule : p.rules) {
    out << "rule";
    for (const ActionRef& r : rule.actions) out << ' ' << r.storage_class << '.' << r.action;
    out << " at most " << rule.count << '\n';
  }
  out << "floor";
  for (Size s : p.floor) out << ' ' << size(s);
  for (const ProvisionLane& l : p.lanes) {
    out << "\nlane rows " << l.rows << " budget";
    for (std::size_t t = 0; t < p.floor.size(); ++t) out << ' ' << l.budget[t];
    out << " host " << l.host_budget;
  }
  out << "\nslack " << p.compute_slack_ps << " out";
  for (std::int64_t c : p.out_capacity_ps) out << ' ' << c;
  out << " in";
  for (std::int64_t c : p.in_capacity_ps) out << ' ' << c;
  out << '\n';
  return out.str();
}

}  // namespace tidemark
