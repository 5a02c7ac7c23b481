#include "tools/chrome_trace.h"
#include "tools/command.h"
#include "tools/job_input.h"
#include "tools/output_file.h"
#include "tools/simulation_report.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

void write_trace(const std::string& path, const Job& job, const Simulation& simulation) {
  OutputFile file(path);
  write_chrome_trace(file.stream(), job, simulation);
  file.commit();
}

Report run(const Arguments& arguments) {
  const JobInput input = read_job_input(arguments);
  const Simulation simulation = simulate(input.job, input.profile, balanced_routing(input.job));
  const Verdict verdict = judge(input, simulation);
  if (const auto path = arguments.text("trace")) write_trace(*path, input.job, simulation);

  Report report;
  report.exit = verdict.exit();
  report.json = result_with_provenance(input.files, arguments);
  add_simulation(report.json, input, simulation, verdict);
  if (arguments.has("lanes")) add_lanes(report.json, simulation);
  report.text = verdict.text + "\n\n" + job_text(input) + "\n" +
                simulation_text(input, simulation) + warnings_text(input.job);
  return report;
}

}  // namespace

Command simulate_command() {
  std::vector<Flag> flags = job_flags();
  flags.push_back({"lanes", "", "add the peak of every lane (card of a stage) to the JSON result"});
  flags.push_back({"trace", "FILE",
                   "write the iteration for chrome://tracing or ui.perfetto.dev: one lane of each "
                   "stage, its streams, memory and transfers"});
  return {"simulate", "JOB.json | --megatron-args FILE --hardware NAME",
          "one training iteration: does it fit, how long does it take, what holds the memory",
          std::move(flags), run};
}

}  // namespace tidemark
