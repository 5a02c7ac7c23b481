#include "models/allocator_options.h"

#include <algorithm>
#include <array>
#include <bit>

#include "models/parse_number.h"

namespace tidemark {
namespace {

// They move copies to the host, or when a lock is held.
constexpr std::array<std::string_view, 6> kSkipped = {
    "release_lock_on_cudamalloc",   "release_lock_on_hipmalloc",   "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register", "pinned_num_register_threads", "pinned_use_background_threads"};

std::string without_spaces(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out), [](char c) { return c != ' '; });
  return out;
}

}  // namespace

bool is_power2_divisions(std::int64_t divisions) {
  return divisions == 0 || (divisions > 0 && divisions <= kMostPower2Divisions &&
                            std::has_single_bit(static_cast<std::uint64_t>(divisions)));
}

AllocatorOptions parse_allocator_conf(std::string_view text, const std::string& file,
                                      const std::string& place,
                                      std::vector<Violation>& violations) {
  AllocatorOptions options;
  const std::string conf = without_spaces(text);
  for (std::size_t begin = 0; begin < conf.size();) {
    const std::size_t end = std::min(conf.find(',', begin), conf.size());
    const std::string item = conf.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t colon = std::min(item.find(':'), item.size());
    const std::string key = item.substr(0, colon);
    const std::string value = colon < item.size() ? item.substr(colon + 1) : "";
    const auto refuse = [&](const std::string& allowed) {
      violations.push_back({file, place, item, allowed});
    };
    if (key == "max_split_size_mb") {
      options.max_split_size_mb = parse_number<std::int64_t>(value);
      const std::int64_t mb = options.max_split_size_mb.value_or(0);
      if (mb < kSmallestMaxSplitMb || mb > kLargestMaxSplitMb) refuse("an integer above 20");
    } else if (key == "garbage_collection_threshold") {
      const double threshold = parse_number<double>(value).value_or(0);
      options.garbage_collection_threshold = threshold;
      if (threshold <= 0 || threshold >= 1) refuse("a number between 0 and 1");
    } else if (key == "roundup_power2_divisions") {
      const std::int64_t divisions = parse_number<std::int64_t>(value).value_or(-1);
      options.roundup_power2_divisions = divisions;
      if (!is_power2_divisions(divisions)) {
        refuse(
            "0 or a power of two up to 64 (one for all sizes; divisions by size are not "
            "modelled)");
        if (value.find('[') != std::string::npos) {  // its items have commas of their own
          begin = std::min(conf.find(']', begin), conf.size() - 1) + 1;
          if (begin < conf.size()) ++begin;
        }
      }
    } else if (key == "expandable_segments") {
      options.expandable_segments = value == "True";
      if (value != "True" && value != "False") refuse("True or False");
    } else if (key == "backend") {
      if (value != "native") refuse("native (cudaMallocAsync is not modelled)");
    } else if (std::find(kSkipped.begin(), kSkipped.end(), key) == kSkipped.end()) {
      refuse(
          "max_split_size_mb, garbage_collection_threshold, roundup_power2_divisions, "
          "expandable_segments or backend");
    }
  }
  return options;
}

}  // namespace tidemark
