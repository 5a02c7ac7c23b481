// Tables of real router decisions: how many tokens each expert of a layer received, a row for each
// task and layer (validation/esft_routing).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hw_profiles/csv_table.h"
#include "traces/workload.h"

namespace tidemark::claims {

struct RecordedLayer {
  std::string task;
  std::int64_t tokens = 0;
  std::int64_t topk = 0;
  std::vector<std::int64_t> counts;                      // [expert]
  std::map<std::int64_t, double> printed_max_over_mean;  // [expert-parallel ranks]
};

// Calls `read` with each row, in file order. Throws: InputError as read_csv does.
void read_recorded_routers(const std::filesystem::path& table,
                           const std::function<void(const RecordedLayer&, const CsvRow&)>& read);

// The workload fitted to each task (traces/workload_fit.h): one microbatch of one iteration, which
// tells the experts' loads, but not how they change over either. Order: by task.
// Throws: InputError when a task's layers differ in their experts, tokens or top-k.
std::vector<Workload> fit_recorded_routers(const std::filesystem::path& table);

}  // namespace tidemark::claims
