#include <algorithm>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "tools/claim.h"
#include "tools/command.h"
#include "tools/job_input.h"
#include "tools/log_comparison.h"
#include "tools/simulation_report.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

Report compare_log(const Arguments& arguments, const std::string& log) {
  if (!arguments.positionals().empty()) {
    throw InputError("", "claim", arguments.positionals().front(), "claims or --log, not both");
  }
  const LogInput run = read_log_input(log, read_log_context(arguments));
  const Simulation simulation =
      simulate(run.input.job, run.input.profile, balanced_routing(run.input.job));
  const LogComparison comparison = compare_with_log(run.log, run.input.job, simulation.result);
  const Verdict verdict = judge(run.input, simulation);

  Report report;
  report.json = result_with_provenance(run.input.files, arguments);
  add_simulation(report.json, run.input, simulation, verdict);
  report.json["comparison"] = comparison_json(run.log, comparison);
  report.text = verdict.text + "\n\n" + job_text(run.input) + "\n" +
                simulation_text(run.input, simulation) + "\nBeside the log of the real run, " +
                log + ":\n\n" + comparison_text(run.log, comparison) + warnings_text(run.input.job);
  return report;
}

Report check_claims(const Arguments& arguments) {
  for (const Flag& flag : log_context_flags()) {
    if (arguments.has(flag.name)) {
      throw InputError("", "--" + flag.name, "given without --log", "it with --log FILE");
    }
  }
  const std::vector<std::string>& asked = arguments.positionals();
  std::vector<ClaimResult> results;
  std::vector<std::filesystem::path> files;
  for (const std::string& name : asked.empty() ? claim_names() : asked) {
    results.push_back(check_claim(name));
    files.push_back(results.back().file);
  }
  const auto passed =
      std::count_if(results.begin(), results.end(), [](const ClaimResult& r) { return r.pass(); });
  const bool all = passed == std::ssize(results);
  Report report;
  report.exit = all ? ExitCode::kOk : ExitCode::kCheckFailed;
  report.json = result_with_provenance(files, arguments);
  report.json["pass"] = all;
  for (const ClaimResult& result : results) {
    report.json["claims"].push_back(claim_json(result));
    report.text += claim_text(result) + "\n";
  }
  report.text +=
      std::to_string(passed) + " of " + std::to_string(results.size()) + " claims hold.\n";
  return report;
}

Report run_validate(const Arguments& arguments) {
  const auto log = arguments.text("log");
  return log ? compare_log(arguments, *log) : check_claims(arguments);
}

}  // namespace

Command validate_command() {
  std::vector<Flag> flags = log_context_flags();
  flags.insert(flags.begin(), {"log", "FILE",
                               "a Megatron-LM training log with its arguments: simulate its job "
                               "and print measured, predicted and error"});
  return {"validate", "[CLAIM...] | --log FILE --hardware NAME",
          "recompute the claims of validation/, or compare with a training log", std::move(flags),
          run_validate};
}

}  // namespace tidemark
