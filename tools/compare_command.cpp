#include <sstream>
#include <vector>

#include "planner/static_policies.h"
#include "tools/command.h"
#include "tools/job_input.h"
#include "tools/quantity_text.h"
#include "tools/run_report.h"
#include "tools/simulation_report.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

constexpr const char* kDefaultPolicies = "as-given,keep-everything,full-recompute";

std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) out.push_back(name);
  return out;
}

struct Compared {
  std::string name;
  JobInput input;
  RunResult run;
};

std::string comparison_text(const std::vector<Compared>& all) {
  TextTable table({{"policy", TextTable::Align::kLeft},
                   {"useful tokens/s"},
                   {"MFU"},
                   {"without losses"},
                   {"iteration"},
                   {"out of memory"},
                   {"lost"},
                   {"highest reserved"},
                   {"of"}});
  for (const Compared& c : all) {
    const RunResult& r = c.run;
    Bytes reserved;
    std::int64_t time = 0;
    for (const IterationRecord& i : r.iterations) {
      reserved = std::max(reserved, i.peak_reserved);
      if (!i.out_of_memory) time += i.time_ns;
    }
    const auto percent = [](double share) { return fixed_text(100 * share, 1) + " %"; };
    table.add_row({c.name, fixed_text(r.tokens_per_second(c.input.job), 0),
                   percent(mfu_with_losses(c.input, r)), percent(mfu_without_losses(c.input, r)),
                   r.finished == 0 ? "-" : duration_text(SimDuration(time / r.finished)),
                   grouped_text(std::ssize(r.out_of_memory)) + (r.stuck ? ", stuck" : ""),
                   share_text(static_cast<double>(r.lost_ns), static_cast<double>(r.total_ns)),
                   gib_text(reserved), gib_text(r.limit)});
  }
  return table.text();
}

Report run(const Arguments& arguments) {
  const JobInput input = read_job_input(arguments);
  const RunSpec spec = run_spec(input.job, arguments);
  std::vector<Compared> all;
  for (const std::string& name : names_of(arguments.text("policies").value_or(kDefaultPolicies))) {
    JobInput with = input;
    with.job = static_policy(input.job, name).job;
    all.push_back({name, std::move(with), {}});
  }
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  for (Compared& c : all) {
    c.run = run_job(c.input, spec, seed_of(arguments), c.name + ": ");
    nlohmann::ordered_json one;
    one["policy"] = c.name;
    add_run(one, c.input, c.run);
    report.json["policies"].push_back(std::move(one));
  }
  report.text = job_text(input) + "\n" + comparison_text(all) + warnings_text(input.job);
  return report;
}

}  // namespace

Command compare_command() {
  std::vector<Flag> flags = job_flags();
  for (Flag& flag : run_flags()) flags.push_back(std::move(flag));
  std::string forms;
  for (const std::string& form : static_policy_forms()) forms += (forms.empty() ? "" : ", ") + form;
  flags.push_back({"policies", "A,B,C", "which to run: " + forms});
  return {"compare", "JOB.json | --megatron-args FILE --hardware NAME",
          "a run under several memory policies, on the same routing", std::move(flags), run};
}

}  // namespace tidemark
