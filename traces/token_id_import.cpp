#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_fields.h"
#include "traces/trace_import.h"

namespace tidemark {
namespace {

struct Dump {
  std::int64_t id_bytes = 0;
  std::int64_t layers = 0;
  std::int64_t tokens = 0;
  std::int64_t topk = 0;
};

Dump read_description(const std::filesystem::path& path) {
  const nlohmann::json json = load_json(path);
  std::vector<Violation> violations;
  JsonReader in(json, path.string(), "", violations);
  const std::string type = in.choice("dtype", {"uint8", "uint16", "int32"});
  Dump dump;
  dump.id_bytes = type == "uint8" ? 1 : type == "uint16" ? 2 : 4;
  const nlohmann::json& shape = in.raw("shape");
  const auto whole = [&](std::size_t i) {
    return shape[i].is_number_integer() && shape[i].get<std::int64_t>() >= 1 &&
           shape[i].get<std::int64_t>() <= kSize.high;
  };
  if (!shape.is_array() || shape.size() != 3 || !whole(0) || !whole(1) || !whole(2)) {
    in.violate("shape", shape.dump(), "[layers, tokens, topk]");
  }
  throw_if_any(violations);  // other keys are the describer's own
  dump.layers = shape[0].get<std::int64_t>();
  dump.tokens = shape[1].get<std::int64_t>();
  dump.topk = shape[2].get<std::int64_t>();
  return dump;
}

}  // namespace

ImportReport import_token_ids(const std::filesystem::path& ids, const TokenIdShape& given,
                              std::ostream& out) {
  const std::string file = ids.string();
  std::filesystem::path description = ids;
  const Dump dump = read_description(description.replace_extension(".json"));
  std::ifstream in(ids, std::ios::binary);
  if (!in) throw InputError(file, "", "cannot be opened", "a readable file of expert ids");
  std::error_code error;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(ids, error));
  const std::int64_t expected = dump.layers * dump.tokens * dump.topk * dump.id_bytes;
  std::array<char, 2> magic{};
  in.read(magic.data(), 2);
  if (magic[0] == '\x1f' && magic[1] == '\x8b') {
    throw InputError(file, "byte 0", "compressed", "the ids as they are (gunzip it)");
  }
  if (size != expected) {
    throw InputError(file, "byte " + std::to_string(std::min(size, expected)),
                     std::to_string(size) + " bytes",
                     std::to_string(expected) + ", as " + description.string() + " says");
  }
  const std::int64_t tokens = given.microbatch_tokens > 0 ? given.microbatch_tokens : dump.tokens;
  const std::int64_t pieces = dump.tokens / tokens;
  const std::int64_t microbatches = given.microbatches > 0 ? given.microbatches : pieces;
  if (pieces < std::max<std::int64_t>(microbatches, 1)) {
    throw InputError(file, "", std::to_string(dump.tokens) + " tokens",
                     "at least " + std::to_string(tokens) + " for each of " +
                         std::to_string(std::max<std::int64_t>(microbatches, 1)) + " microbatches");
  }
  if (given.experts % given.ranks != 0 || dump.topk > given.experts) {
    throw InputError(file, "experts", std::to_string(given.experts),
                     "a multiple of the " + std::to_string(given.ranks) +
                         " ranks, at least top-k " + std::to_string(dump.topk));
  }
  ImportReport report;
  TraceInfo& info = report.info;
  info.shape = {1, microbatches, dump.layers, given.experts, dump.topk, tokens, given.ranks};
  info.origin = {{"importer", "token_ids"}, {"file", ids.filename().string()}};
  TraceWriter writer(out, info);
  RoutingCounts counts;
  std::string buffer(static_cast<std::size_t>(tokens * dump.topk * dump.id_bytes), '\0');
  const std::int64_t iterations = pieces / microbatches;
  for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
    resize(counts, info.shape);
    std::fill(counts.counts.begin(), counts.counts.end(), 0);
    for (std::int64_t mb = 0; mb < microbatches; ++mb) {
      for (std::int64_t layer = 0; layer < dump.layers; ++layer) {
        const std::int64_t first = (iteration * microbatches + mb) * tokens;
        const std::int64_t begin = (layer * dump.tokens + first) * dump.topk * dump.id_bytes;
        in.seekg(begin);
        in.read(buffer.data(), std::ssize(buffer));
        if (!in) {
          throw InputError(file, "byte " + std::to_string(begin), "cannot be read",
                           "a file that does not change while it is read");
        }
        const auto row = counts.row(mb, layer);
        for (std::int64_t i = 0; i < tokens * dump.topk; ++i) {
          std::int64_t id = 0;
          std::memcpy(&id, buffer.data() + i * dump.id_bytes,
                      static_cast<std::size_t>(dump.id_bytes));
          if (id >= given.experts) {
            throw InputError(file, "byte " + std::to_string(begin + i * dump.id_bytes),
                             "expert " + std::to_string(id),
                             "0 to " + std::to_string(given.experts - 1));
          }
          ++row[static_cast<std::size_t>(id)];
        }
      }
    }
    writer.write(counts);
  }
  info = writer.finish();
  if (const std::int64_t left = dump.tokens - iterations * microbatches * tokens; left > 0) {
    report.notes.push_back(std::to_string(left) + " of " + std::to_string(dump.tokens) +
                           " tokens are left over");
  }
  return report;
}

}  // namespace tidemark
