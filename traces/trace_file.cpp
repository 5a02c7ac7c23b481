#include "traces/trace_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "models/input_error.h"
#include "models/json_fields.h"

namespace tidemark {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kHeaderStep = 256;  // headers are padded, so that `iterations` can grow
constexpr std::size_t kLongestHeader = std::size_t{1} << 20;

const Names<CountOf> kCountsOf = {{CountOf::kExpert, "expert"}, {CountOf::kRank, "rank"}};

std::string header_text(const TraceInfo& info) {
  nlohmann::ordered_json json;
  json["schema_version"] = 1;
  json["kind"] = "routing_trace";
  json["iterations"] = info.iterations;
  json["units"] = info.shape.units;
  json["microbatches"] = info.shape.microbatches;
  json["moe_layers"] = info.shape.moe_layers;
  json["experts"] = info.shape.experts;
  json["topk"] = info.shape.topk;
  json["tokens"] = info.shape.tokens;
  json["ranks"] = info.shape.ranks;
  json["count_of"] = name_of(kCountsOf, info.count_of);
  json["totals"] = info.exact_totals ? "exact" : "at_most";
  json["count_bytes"] = info.count_bytes();
  json["origin"] = info.origin;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

TraceInfo read_header(const std::string& text, const std::string& file) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw InputError(file, "byte " + std::to_string(error.byte), "not JSON",
                     "the one-line header of a routing trace");
  }
  std::vector<Violation> violations;
  JsonReader in(json, file, "", violations);
  in.integer("schema_version", {1, 1});
  in.choice("kind", {"routing_trace"});
  TraceInfo info;
  info.iterations = in.integer("iterations", kPositive);
  info.shape.units = in.integer("units", kDegree);
  info.shape.microbatches = in.integer("microbatches", kDegree);
  info.shape.moe_layers = in.integer("moe_layers", kDegree);
  info.shape.experts = in.integer("experts", kDegree);
  info.shape.topk = in.integer("topk", kDegree);
  info.shape.tokens = in.integer("tokens", kSize);
  info.shape.ranks = in.integer("ranks", kDegree);
  read_choice(in, "count_of", kCountsOf, info.count_of);
  info.exact_totals = in.choice("totals", {"exact", "at_most"}) == "exact";
  const std::int64_t bytes = in.integer("count_bytes", {2, 4});
  info.origin = in.raw("origin");
  in.finish();
  throw_if_any(violations);
  const RoutingShape& shape = info.shape;
  if (shape.topk > shape.experts) {
    in.violate("topk", std::to_string(shape.topk), "at most experts");
  }
  if (shape.experts % shape.ranks != 0) {
    in.violate("ranks", std::to_string(shape.ranks), "a divisor of experts");
  }
  if (bytes != info.count_bytes()) {
    in.violate("count_bytes", std::to_string(bytes), "2, or 4 for more than 65,535 tokens");
  }
  // Keeps offsets within 64 bits.
  const double counts = static_cast<double>(info.iterations) * static_cast<double>(shape.units) *
                        static_cast<double>(shape.microbatches) *
                        static_cast<double>(shape.moe_layers) * static_cast<double>(shape.experts);
  if (counts > 0x1p60) in.violate("iterations", "more counts than a file can hold", "fewer");
  throw_if_any(violations);
  return info;
}

// Returns: what is wrong with the counts of a microbatch and layer, or "".
std::string complaint(const TraceInfo& info, std::span<const std::int64_t> row) {
  const std::int64_t most = info.count_of == CountOf::kRank ? info.shape.rows() : info.shape.tokens;
  std::int64_t sum = 0;
  for (const std::int64_t count : row) {
    if (count < 0 || count > most) {
      return "a count of " + std::to_string(count) + ", expected 0 to " + std::to_string(most);
    }
    sum += count;
  }
  const std::int64_t rows = info.shape.rows();
  if (info.exact_totals ? sum == rows : sum <= rows) return "";
  return "counts that add up to " + std::to_string(sum) + ", expected " +
         (info.exact_totals ? "" : "at most ") + "tokens * topk = " + std::to_string(rows);
}

}  // namespace

TraceWriter::TraceWriter(std::ostream& out, TraceInfo info) : out_(out), info_(std::move(info)) {
  TraceInfo longest = info_;
  longest.iterations = std::numeric_limits<std::int64_t>::max();
  const std::size_t size = header_text(longest).size() + 1;
  buffer_.assign((size + kHeaderStep - 1) / kHeaderStep * kHeaderStep, ' ');
  buffer_.back() = '\n';
  out_ << buffer_;
}

void TraceWriter::write(const RoutingCounts& counts) {
  const std::int64_t bytes = info_.count_bytes();
  buffer_.resize(counts.counts.size() * static_cast<std::size_t>(bytes));
  for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
      const std::string wrong = complaint(info_, counts.row(mb, layer));
      if (wrong.empty()) continue;
      throw InputError("",
                       "iteration " + std::to_string(written_ / info_.shape.units) + ", unit " +
                           std::to_string(written_ % info_.shape.units) + ", microbatch " +
                           std::to_string(mb) + ", MoE layer " + std::to_string(layer),
                       wrong, "");
    }
  }
  char* at = buffer_.data();
  for (const std::int64_t count : counts.counts) {
    std::memcpy(at, &count, static_cast<std::size_t>(bytes));  // the low bytes
    at += bytes;
  }
  out_.write(buffer_.data(), std::ssize(buffer_));
  ++written_;
}

TraceInfo TraceWriter::finish() {
  if (written_ == 0 || written_ % info_.shape.units != 0) {
    throw InputError("", "iteration " + std::to_string(written_ / info_.shape.units),
                     std::to_string(written_ % info_.shape.units) + " units",
                     std::to_string(info_.shape.units));
  }
  info_.iterations = written_ / info_.shape.units;
  out_.seekp(0);
  out_ << header_text(info_);
  out_.seekp(0, std::ios::end);
  return info_;
}

TraceFile::TraceFile(std::filesystem::path path) : path_(std::move(path)) {
  const auto refuse = [&](const std::string& place, const std::string& found,
                          const std::string& allowed) {
    if (descriptor_ >= 0) close(descriptor_);
    throw InputError(path_.string(), place, found, allowed);
  };
  struct stat status {};
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) refuse("", "cannot be opened", "a readable routing trace");
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse("", "not a regular file", "a readable routing trace");
  }
  std::string header(
      std::min<std::size_t>(kLongestHeader, static_cast<std::size_t>(status.st_size)), '\0');
  const ssize_t got = pread(descriptor_, header.data(), header.size(), 0);
  header.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  const std::size_t end = header.find('\n');
  if (end == std::string::npos) {
    refuse("byte " + std::to_string(header.size()), "no end of the header line",
           "one line of JSON, then counts");
  }
  try {
    info_ = read_header(header.substr(0, end), path_.string());
  } catch (...) {
    close(descriptor_);
    throw;
  }
  body_ = static_cast<std::int64_t>(end) + 1;
  const std::int64_t expected = body_ + info_.iterations * info_.shape.units *
                                            info_.shape.counts_per_unit() * info_.count_bytes();
  if (status.st_size != expected) {
    refuse("byte " + std::to_string(std::min<std::int64_t>(status.st_size, expected)),
           status.st_size < expected ? "the file ends (truncated?)" : "bytes after the last count",
           std::to_string(expected) + " bytes");
  }
}

TraceFile::~TraceFile() { close(descriptor_); }

void TraceFile::read(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const {
  if (iteration >= info_.iterations || unit >= info_.shape.units) {
    throw InputError(path_.string(), "",
                     "iteration " + std::to_string(iteration) + " of unit " + std::to_string(unit) +
                         " is asked for",
                     "a trace of more than " + std::to_string(info_.iterations) +
                         " iterations and " + std::to_string(info_.shape.units) + " units");
  }
  resize(out, info_.shape);
  const std::int64_t bytes = info_.count_bytes();
  const std::int64_t size = info_.shape.counts_per_unit() * bytes;
  const std::int64_t begin = body_ + (iteration * info_.shape.units + unit) * size;
  std::string buffer(static_cast<std::size_t>(size), '\0');
  for (std::int64_t done = 0; done < size;) {
    const ssize_t got = pread(descriptor_, buffer.data() + done,
                              static_cast<std::size_t>(size - done), begin + done);
    if (got <= 0) {
      throw InputError(path_.string(), "byte " + std::to_string(begin + done), "cannot be read",
                       "a file that does not change while it is read");
    }
    done += got;
  }
  const char* at = buffer.data();
  for (std::int64_t& count : out.counts) {
    count = 0;
    std::memcpy(&count, at, static_cast<std::size_t>(bytes));
    at += bytes;
  }
  for (std::int64_t mb = 0; mb < out.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < out.moe_layers; ++layer) {
      const std::string wrong = complaint(info_, out.row(mb, layer));
      if (wrong.empty()) continue;
      const std::int64_t offset = begin + (mb * out.moe_layers + layer) * out.experts * bytes;
      throw InputError(path_.string(), "byte " + std::to_string(offset), wrong, "");
    }
  }
}

namespace {

class TraceRouting : public RoutingSource {
 public:
  TraceRouting(const std::filesystem::path& path, const RoutingShape& shape)
      : file_(path), shape_(shape) {}

  const TraceInfo& info() const { return file_.info(); }

  void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const override {
    if (info().count_of == CountOf::kExpert) {
      file_.read(iteration, unit, out);
      return;
    }
    RoutingCounts ranks;
    file_.read(iteration, unit, ranks);
    resize(out, shape_);
    const std::int64_t size = shape_.experts_per_rank();
    for (std::size_t i = 0; i < out.counts.size(); ++i) {
      const auto expert = static_cast<std::int64_t>(i);
      const std::int64_t rows = ranks.counts[static_cast<std::size_t>(expert / size)];
      out.counts[i] = even_share(rows, size, expert % size);
    }
  }

 private:
  TraceFile file_;
  RoutingShape shape_;
};

}  // namespace

std::unique_ptr<RoutingSource> trace_routing(const std::filesystem::path& path,
                                             const RoutingShape& shape) {
  auto source = std::make_unique<TraceRouting>(path, shape);
  const TraceInfo& info = source->info();
  std::vector<Violation> all;
  const auto require = [&](const char* key, std::int64_t found, std::int64_t expected, bool pass) {
    if (pass) return;
    all.push_back({path.string(), std::string("/") + key, std::to_string(found),
                   std::to_string(expected) + ", as the job has"});
  };
  const auto equal = [&](const char* key, std::int64_t found, std::int64_t expected) {
    require(key, found, expected, found == expected);
  };
  equal("moe_layers", info.shape.moe_layers, shape.moe_layers);
  equal("microbatches", info.shape.microbatches, shape.microbatches);
  require("units", info.shape.units, shape.units, info.shape.units >= shape.units);
  if (info.count_of == CountOf::kExpert) {
    equal("experts", info.shape.experts, shape.experts);
    equal("topk", info.shape.topk, shape.topk);
    equal("tokens", info.shape.tokens, shape.tokens);
  } else {
    equal("ranks", info.shape.ranks, shape.ranks);
    equal("tokens", info.shape.tokens, shape.rows());
  }
  throw_if_any(all);
  return source;
}

}  // namespace tidemark
