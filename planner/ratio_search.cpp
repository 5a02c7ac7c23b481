#include "planner/ratio_search.h"

#include "models/input_error.h"
#include "sim/simulation.h"
#include "traces/routing.h"

namespace tidemark {

RatioSearch least_offload_ratio(const Job& job, const HardwareProfile& profile) {
  if (job.versions.fork != Fork::kKwai) {
    throw InputError("", "/frameworks/fork", "\"none\"", "\"kwai\" for a ratio of offloading");
  }
  RatioSearch out;
  const auto setting = [&](bool recomputes, int hundredths) {
    Job one = job;
    one.options.recompute = {};
    one.options.recompute.layernorm = one.options.recompute.mlp_act = recomputes;
    one.options.offload_ratio = hundredths / 100.0;
    return one;
  };
  const auto fits = [&](bool recomputes, int hundredths) {
    ++out.simulated;
    const Job one = setting(recomputes, hundredths);
    return simulate(one, profile, balanced_routing(one)).result.fits();
  };
  for (const bool recomputes : {false, true}) {
    int least = 100;
    if (!fits(recomputes, least)) continue;
    for (int below = -1; least - below > 1;) {  // `below` does not fit
      const int middle = (least + below) / 2;
      (fits(recomputes, middle) ? least : below) = middle;
    }
    out.best = setting(recomputes, least);
    out.ratio = out.best->options.offload_ratio;
    out.recomputes = recomputes;
    break;
  }
  return out;
}

}  // namespace tidemark
