#include "planner/static_search.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/input_error.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::static_search_test {
namespace {

constexpr double kBound = 1.5;

const Job& small_job() {
  static const Job job = small_moe_job(4, 4);
  return job;
}

HardwareProfile card_of(double gib) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  profile.capacity_gib.value = gib;
  return profile;
}

struct Simulated {
  Job job;
  std::int64_t balanced_ns = 0;
  Bytes reserved;  // under the bound, on a card without limit
};

// Under the bound, where need be by giving cached memory back.
bool fits(const Job& job, const HardwareProfile& card) {
  return simulate(job, card, scaled(balanced_routing(job), kBound)).result.fits();
}

Simulated simulate_setting(const Job& job) {
  const HardwareProfile card = card_of(1000);
  const RoutingCounts counts = balanced_routing(job);
  const SimulationResult loaded = simulate(job, card, scaled(counts, kBound)).result;
  const Bytes reserved =
      loaded.stages[static_cast<std::size_t>(loaded.tightest_stage())].peak_reserved();
  return {job, simulate(job, card, counts).result.iteration.time_ns, reserved};
}

// Without any search: every setting that the job can have.
std::vector<Simulated> all_settings() {
  std::vector<std::string> texts{"keep-everything", "full-recompute", "block-recompute:1"};
  const auto subsets = [&](const std::string& form, const std::vector<std::string>& modules) {
    for (std::uint32_t mask = 1; mask < 1U << modules.size(); ++mask) {
      std::string text;
      for (std::size_t m = 0; m < modules.size(); ++m) {
        if ((mask >> m & 1U) != 0) text += (text.empty() ? "" : "+") + modules[m];
      }
      texts.push_back(form + ":" + text);
    }
  };
  subsets("selective", {"core_attn", "layernorm", "moe", "moe_act"});
  subsets("offload", {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1",
                      "moe_act"});
  std::vector<Simulated> out;
  for (const std::string& text : texts) {
    try {
      out.push_back(simulate_setting(static_policy(small_job(), text).job));
    } catch (const InputError&) {
      // attn_proj without core_attn
    }
  }
  return out;
}

TEST(StaticSearch, KeepsEverythingWhereItFits) {
  const StaticSearch search = best_static_policy(small_job(), card_of(1000), kBound);
  ASSERT_TRUE(search.best);
  EXPECT_EQ(search.best->name, "keep-everything");
  EXPECT_EQ(search.simulated, 1);
  EXPECT_EQ(search.iteration_ns, simulate_setting(search.best->job).balanced_ns);
}

TEST(StaticSearch, FindsNothingWhereNothingFits) {
  const StaticSearch search = best_static_policy(small_job(), card_of(2), kBound);
  EXPECT_FALSE(search.best);
  EXPECT_GT(search.settings, 0);
}

TEST(StaticSearch, FindsTheFastestOfAllThatFit) {
  const std::vector<Simulated> all = all_settings();
  const auto [least, most] = std::ranges::minmax(all, {}, &Simulated::reserved);
  const HardwareProfile any = card_of(1000);
  const Bytes outside = any.capacity() - segment_limit(small_job(), any);
#ifdef __SANITIZE_ADDRESS__
  const std::vector<std::int64_t> shares{50};
#else
  const std::vector<std::int64_t> shares{20, 50, 90};
#endif
  for (const std::int64_t share : shares) {
    const Bytes limit =
        least.reserved + Bytes((most.reserved - least.reserved).value * share / 100);
    const HardwareProfile card =
        card_of(static_cast<double>((limit + outside).value) / static_cast<double>(kGiB.value));
    std::int64_t fastest = std::numeric_limits<std::int64_t>::max();
    for (const Simulated& s : all) {
      if (s.balanced_ns < fastest && fits(s.job, card)) fastest = s.balanced_ns;
    }
    const StaticSearch search = best_static_policy(small_job(), card, kBound);
    ASSERT_TRUE(search.best) << share;
    EXPECT_EQ(search.settings, std::ssize(all));
    EXPECT_LT(search.simulated, search.settings);
    EXPECT_EQ(search.iteration_ns, fastest) << share << " " << search.best->name;
    const Simulated found = simulate_setting(search.best->job);
    EXPECT_EQ(found.balanced_ns, fastest);
    EXPECT_TRUE(fits(search.best->job, card)) << search.best->name;
  }
}

TEST(MegatronMemoryFlags, AreThoseOfTheSettings) {
  const auto flags = [](const std::string& policy) {
    return megatron_memory_flags(static_policy(small_job(), policy).job.options);
  };
  EXPECT_EQ(flags("keep-everything"), "");
  EXPECT_EQ(flags("full-recompute"),
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
  EXPECT_EQ(flags("block-recompute:3"),
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3");
  EXPECT_EQ(flags("selective:moe_act+core_attn"),
            "--recompute-granularity selective --recompute-modules core_attn moe_act");
  EXPECT_EQ(flags("offload:core_attn+attn_proj"),
            "--fine-grained-activation-offloading --offload-modules core_attn attn_proj");
}

}  // namespace
}  // namespace tidemark::static_search_test
