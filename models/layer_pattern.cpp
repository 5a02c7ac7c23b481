#include "models/layer_pattern.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "models/characters.h"
#include "models/parse_number.h"

namespace tidemark {
namespace {

// [expr], (expr), sums and repetitions of lists of 0 and 1, as Megatron's _eval_pattern accepts.
class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) {}

  std::optional<std::vector<bool>> parse() {
    std::optional<std::vector<bool>> all = sum();
    return peek() == '\0' ? all : std::nullopt;
  }

 private:
  static constexpr std::size_t kLongest = 100'000;
  static constexpr int kDeepest = 100;

  char peek() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  std::optional<std::size_t> count() {
    peek();
    std::size_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::optional<std::vector<bool>> sum() {
    std::optional<std::vector<bool>> all = product();
    while (all && accept('+')) {
      const std::optional<std::vector<bool>> more = product();
      if (!more || all->size() + more->size() > kLongest) return std::nullopt;
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  std::optional<std::vector<bool>> product() {
    std::optional<std::vector<bool>> part = atom();
    while (part && accept('*')) {
      const std::optional<std::size_t> times = count();
      if (!times || *times > kLongest || part->size() * *times > kLongest) return std::nullopt;
      std::vector<bool> repeated;
      for (std::size_t i = 0; i < *times; ++i) {
        repeated.insert(repeated.end(), part->begin(), part->end());
      }
      part = std::move(repeated);
    }
    return part;
  }

  std::optional<std::vector<bool>> atom() {
    if (accept('(')) {
      if (++depth_ > kDeepest) return std::nullopt;
      std::optional<std::vector<bool>> inner = sum();
      --depth_;
      return accept(')') ? inner : std::nullopt;
    }
    if (!accept('[')) return std::nullopt;
    std::vector<bool> items;
    while (!accept(']')) {
      if (!items.empty() && !accept(',')) return std::nullopt;
      const std::optional<std::size_t> item = count();
      if (!item || *item > 1) return std::nullopt;
      items.push_back(*item == 1);
    }
    return items;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<std::vector<bool>> moe_layer_pattern(std::string_view frequency,
                                                   std::int64_t num_layers) {
  std::vector<bool> layers(static_cast<std::size_t>(std::max<std::int64_t>(0, num_layers)));
  if (const auto every = parse_number<std::size_t>(frequency)) {
    if (*every == 0) return std::nullopt;
    for (std::size_t i = 0; i < layers.size(); i += *every) layers[i] = true;
    return layers;
  }
  std::optional<std::vector<bool>> pattern = PatternParser(frequency).parse();
  if (!pattern || pattern->size() != layers.size()) return std::nullopt;
  return pattern;
}

}  // namespace tidemark
