#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "models/job_reader.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/log_comparison.h"
#include "tools/quantity_text.h"
#include "traces/routing.h"

namespace tidemark::claims {

namespace {

constexpr double kMibPerGib = 1 << 10;

// A counter of Megatron's memory lines: measured, predicted, error.
struct MemoryField {
  const char* name;
  double LoggedMemory::*measured_mib;
  Bytes ComparedMemory::*predicted;
  double (ComparedMemory::*error_percent)() const;
};
constexpr MemoryField kMemoryFields[] = {
    {"allocated", &LoggedMemory::allocated_mib, &ComparedMemory::allocated,
     &ComparedMemory::allocated_error_percent},
    {"max_allocated", &LoggedMemory::max_allocated_mib, &ComparedMemory::max_allocated,
     &ComparedMemory::max_allocated_error_percent},
    {"max_reserved", &LoggedMemory::max_reserved_mib, &ComparedMemory::max_reserved,
     &ComparedMemory::max_reserved_error_percent}};

MemoryField read_memory_field(JsonReader& claim) {
  std::vector<std::string> names;
  for (const MemoryField& field : kMemoryFields) names.emplace_back(field.name);
  const std::string name = claim.choice("field", names);
  const auto* found = std::find_if(std::begin(kMemoryFields), std::end(kMemoryFields),
                                   [&](const MemoryField& f) { return f.name == name; });
  return found == std::end(kMemoryFields) ? kMemoryFields[0] : *found;
}

struct MemoryRun {
  std::string name;
  std::vector<ComparedMemory> lines;
};

// Shown: the worst line of each run, in MiB, and means.
std::vector<ClaimLine> memory_lines(const std::vector<MemoryRun>& runs, const MemoryField& field,
                                    const Tolerance& tolerance) {
  std::vector<ClaimLine> lines;
  std::vector<double> run_means;
  std::vector<double> all;
  for (const MemoryRun& run : runs) {
    std::vector<double> errors;
    ClaimLine worst{run.name, "no memory lines", "", std::nullopt, false};
    for (const ComparedMemory& line : run.lines) {
      const double error = (line.*field.error_percent)();
      errors.push_back(error);
      if (worst.error_percent && std::abs(error) <= std::abs(*worst.error_percent)) continue;
      worst = percent_line(run.name + " rank " + std::to_string(line.logged.rank) + " after " +
                               std::to_string(line.logged.after_iterations),
                           line.logged.*field.measured_mib, to_mib(line.*field.predicted), error,
                           tolerance.max_percent);
    }
    lines.push_back(std::move(worst));
    if (errors.empty()) continue;
    run_means.push_back(summarize(errors).mean);
    all.insert(all.end(), errors.begin(), errors.end());
  }
  lines.push_back(mean_line("mean over runs of each run's mean over its lines",
                            summarize(run_means).mean, tolerance.mean_percent));
  lines.push_back({"mean over all " + std::to_string(all.size()) + " lines", "", "",
                   summarize(all).mean, true});
  return lines;
}

// What is reserved beyond the peak allocated, of each rank's last line: an error of its own, since
// it is a small difference of large numbers. No bound.
std::vector<ClaimLine> unused_lines(const std::vector<MemoryRun>& runs) {
  std::vector<ClaimLine> lines;
  std::vector<double> run_means;
  for (const MemoryRun& run : runs) {
    std::map<std::int64_t, const ComparedMemory*> last;  // [rank]
    for (const ComparedMemory& line : run.lines) last[line.logged.rank] = &line;
    std::vector<double> errors;
    double measured = 0;
    double predicted = 0;
    for (const auto& [rank, line] : last) {
      const double logged = line->logged.max_reserved_mib - line->logged.max_allocated_mib;
      const double ours = to_mib(line->max_reserved - line->max_allocated);
      errors.push_back(percent_off(ours, logged));
      measured += logged;
      predicted += ours;
    }
    if (errors.empty()) continue;
    run_means.push_back(summarize(errors).mean);
    const auto ranks = static_cast<double>(last.size());
    lines.push_back({run.name + ": reserved - peak allocated, mean over ranks",
                     fixed_text(measured / ranks, 1), fixed_text(predicted / ranks, 1),
                     run_means.back(), true});
  }
  lines.push_back(
      {"reserved - peak allocated, mean over runs", "", "", summarize(run_means).mean, true});
  return lines;
}

}  // namespace

// One counter of every memory line of the logs.
ClaimCheck memory(JsonReader& claim, const fs::path& root) {
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  return [=, cases = read_log_cases(claim, root)] {
    std::vector<MemoryRun> runs;
    for (const LogCase& c : cases) runs.push_back({c.name(), simulate_log(c).comparison.memory});
    std::vector<ClaimLine> lines = memory_lines(runs, field, tolerance);
    if (field.predicted == &ComparedMemory::max_reserved) {
      const std::vector<ClaimLine> more = unused_lines(runs);
      lines.insert(lines.end(), more.begin(), more.end());
    }
    return lines;
  };
}

// One counter of every rank after two iterations of our own job files, and beside ours the error of
// another simulator for the fullest rank.
ClaimCheck rank_memory(JsonReader& claim, const fs::path& root) {
  constexpr std::int64_t kIterations = 2;
  struct Case {
    fs::path job;
    std::vector<double> measured_mib;  // [rank]
    double rival_gib = 0;              // of the fullest rank
  };
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  const std::string rival = claim.string("rival");
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{root / in.string("job"), {}, in.number("rival_gib", kCardGib)};
    for (const nlohmann::json& mib : in.raw("measured_mib")) {
      c.measured_mib.push_back(mib.is_number() ? mib.get<double>() : 0);
    }
    if (c.measured_mib.empty() || std::ranges::min(c.measured_mib) <= 0) {
      in.violate("measured_mib", in.raw("measured_mib").dump(), "a list of numbers > 0");
    }
    return c;
  });
  return [=] {
    std::vector<MemoryRun> runs;
    std::vector<double> ours;
    std::vector<double> theirs;
    for (const Case& c : cases) {
      TrainingLog measured;
      measured.arguments.source = c.job.string();
      for (const double mib : c.measured_mib) {
        LoggedMemory& line = measured.memory.emplace_back();
        line.rank = std::ssize(measured.memory) - 1;
        line.after_iterations = kIterations;
        line.*field.measured_mib = mib;
      }
      const Job job = read_job(c.job);
      const Simulation simulation = simulate_balanced(job);
      runs.push_back({job.name, compare_with_log(measured, job, simulation.result).memory});
      const ComparedMemory& fullest = *std::ranges::max_element(
          runs.back().lines, {},
          [&](const ComparedMemory& line) { return line.logged.*field.measured_mib; });
      ours.push_back((fullest.*field.error_percent)());
      theirs.push_back(percent_off(c.rival_gib * kMibPerGib, fullest.logged.*field.measured_mib));
    }
    std::vector<ClaimLine> lines = memory_lines(runs, field, tolerance);
    const auto beside = [&](const char* what, double their, double our) {
      lines.push_back({std::string("fullest rank of each run: ") + what,
                       rival + " " + fixed_text(their, 3) + " %", "", our, true});
    };
    beside("mean", summarize(theirs).mean, summarize(ours).mean);
    beside("largest", summarize(theirs).max, summarize(ours).max);
    return lines;
  };
}

// Peak of the last rank after the first iteration, and after later ones.
ClaimCheck last_rank_memory(JsonReader& claim, const fs::path& root) {
  struct Case {
    ArgumentsCase run;
    std::vector<std::int64_t> measured_bytes;  // after the first iteration, after a later one
  };
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{read_arguments_case(in, root), {}};
    for (const nlohmann::json& bytes : in.raw("measured_bytes")) {
      c.measured_bytes.push_back(bytes.is_number_integer() ? bytes.get<std::int64_t>() : 0);
    }
    if (c.measured_bytes.empty() || std::ranges::min(c.measured_bytes) <= 0) {
      in.violate("measured_bytes", in.raw("measured_bytes").dump(), "a list of integers > 0");
    }
    return c;
  });
  return [=] {
    std::vector<MemoryRun> runs;
    for (const Case& c : cases) {
      TrainingLog measured;
      measured.arguments.source = c.run.arguments.string();
      for (const std::int64_t bytes : c.measured_bytes) {
        LoggedMemory& line = measured.memory.emplace_back();
        line.rank = c.run.cards - 1;
        line.after_iterations = std::ssize(measured.memory);
        line.*field.measured_mib = to_mib(Bytes(bytes));
      }
      const Job job = c.run.job();
      runs.push_back(
          {c.run.name(), compare_with_log(measured, job, simulate_balanced(job).result).memory});
    }
    return memory_lines(runs, field, tolerance);
  };
}

// The highest peak allocated of all ranks, for variants of one job.
// Variants that ran out of memory are listed with what we predict.
ClaimCheck highest_rank_memory(JsonReader& claim, const fs::path& root) {
  struct Case {
    std::string what;
    Job job;
    std::optional<std::int64_t> measured;  // empty: out of memory
  };
  const Tolerance tolerance = read_tolerance(claim);
  const JobVariants variants(claim, root);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c;
    c.what = in.string("what");
    c.job = variants.read(in);
    c.measured = in.optional_integer("measured_bytes", {1, std::int64_t{1} << 50});
    return c;
  });
  return [=, cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    std::vector<double> errors;
    for (const Case& c : cases) {
      const HardwareProfile profile = load_hardware_profile(c.job.hardware);
      const Simulation simulation = simulate(c.job, profile, balanced_routing(c.job));
      const std::int64_t peak = highest_peak(c.job, profile, simulation).peak.value;
      if (!c.measured) {
        lines.push_back({c.what, "out of memory", peak, std::nullopt, true});
        continue;
      }
      errors.push_back(percent_off(static_cast<double>(peak), static_cast<double>(*c.measured)));
      lines.push_back(
          percent_line(c.what, *c.measured, peak, errors.back(), tolerance.max_percent));
    }
    lines.push_back(mean_line("mean", summarize(errors).mean, tolerance.mean_percent));
    return lines;
  };
}

}  // namespace tidemark::claims
