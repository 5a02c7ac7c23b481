#include "models/launch_script.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "models/characters.h"
#include "models/input_error.h"
#include "models/megatron_argument_table.h"

namespace tidemark {
namespace {

struct Word {
  std::string text;
  std::int64_t line = 0;
};

// A simple command, or `name=( words )` if `array` is set.
struct Statement {
  std::string array;
  bool append = false;
  std::vector<Word> words;
};

// Splits a script into statements. Words keep their quotes and `$` for `Shell::expand`.
class ScriptLexer {
 public:
  explicit ScriptLexer(std::string_view text) : text_(text) {}

  std::vector<Statement> statements() {
    while (at_ < text_.size()) step();
    end_statement();
    return std::move(statements_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void take() {
    if (text_[at_] == '\n') ++line_;
    word_ += text_[at_++];
  }

  void skip() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }

  void step() {
    const char c = peek();
    const bool escaped_newline =
        c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'));
    if (escaped_newline) {
      end_word();
      skip();
      while (peek() == '\r') skip();
      skip();
    } else if (c == '#' && word_.empty()) {
      while (at_ < text_.size() && peek() != '\n') skip();
    } else if (c == '\n' || c == ';' || c == '|' || c == '&') {
      skip();
      end_word();
      if (!in_array_) end_statement();
    } else if (is_space(c)) {
      skip();
      end_word();
    } else if (c == '<' || c == '>') {
      // A file descriptor ("2>") is no argument; what follows a redirection is not read.
      if (std::all_of(word_.begin(), word_.end(), is_digit)) word_.clear();
      skip();
      end_word();
      end_statement();
    } else if (c == '(') {
      skip();
      begin_array();
    } else if (c == ')') {
      skip();
      end_word();
      end_statement();
    } else {
      if (word_.empty()) word_line_ = line_;
      take_piece();
    }
  }

  void take_piece() {
    switch (peek()) {
      case '\\':
        take();
        if (at_ < text_.size()) take();
        break;
      case '\'':
      case '`':
        take_until(peek());
        break;
      case '"':
        take();
        while (at_ < text_.size() && peek() != '"') take_quoted();
        if (at_ < text_.size()) take();
        break;
      case '$':
        take_dollar();
        break;
      default:
        take();
    }
  }

  void take_quoted() {
    if (peek() == '$') {
      take_dollar();
      return;
    }
    if (peek() == '\\') take();
    if (at_ < text_.size()) take();
  }

  void take_until(char end) {
    take();
    while (at_ < text_.size() && peek() != end) take();
    if (at_ < text_.size()) take();
  }

  void take_dollar() {
    take();
    if (peek() != '{' && peek() != '(') return;
    const char open = peek();
    const char close = open == '{' ? '}' : ')';
    int depth = 0;
    while (at_ < text_.size()) {
      if (peek() == open) ++depth;
      if (peek() == close) --depth;
      take();
      if (depth == 0) return;
    }
  }

  void begin_array() {
    const bool assignment = word_.size() > 1 && word_.back() == '=';
    if (!assignment) {
      end_word();
      end_statement();
      return;
    }
    std::string name = word_.substr(0, word_.size() - 1);
    word_.clear();
    end_statement();
    current_.append = name.back() == '+';
    if (current_.append) name.pop_back();
    current_.array = std::move(name);
    in_array_ = true;
  }

  void end_word() {
    if (!word_.empty()) current_.words.push_back({std::move(word_), word_line_});
    word_.clear();
  }

  void end_statement() {
    end_word();
    if (!current_.array.empty() || !current_.words.empty()) {
      statements_.push_back(std::move(current_));
    }
    current_ = {};
    in_array_ = false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::int64_t line_ = 1;
  std::string word_;
  std::int64_t word_line_ = 1;
  bool in_array_ = false;
  Statement current_;
  std::vector<Statement> statements_;
};

// Integers, + - * / % and parentheses, as in $(( )). Returns: empty for anything else.
class Arithmetic {
 public:
  static std::optional<std::int64_t> evaluate(std::string_view text) {
    Arithmetic a(text);
    const std::optional<std::int64_t> value = a.sum();
    a.skip_spaces();
    return a.at_ == a.text_.size() ? value : std::nullopt;
  }

 private:
  explicit Arithmetic(std::string_view text) : text_(text) {}

  void skip_spaces() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  // The next character if it is one of `operators`.
  char accept(std::string_view operators) {
    skip_spaces();
    if (at_ < text_.size() && operators.find(text_[at_]) != std::string_view::npos) {
      return text_[at_++];
    }
    return '\0';
  }

  std::optional<std::int64_t> sum() {
    std::optional<std::int64_t> left = product();
    while (left) {
      const char op = accept("+-");
      if (op == '\0') break;
      left = combine(op, *left, product());
    }
    return left;
  }

  std::optional<std::int64_t> product() {
    std::optional<std::int64_t> left = atom();
    while (left) {
      const char op = accept("*/%");
      if (op == '\0') break;
      left = combine(op, *left, atom());
    }
    return left;
  }

  std::optional<std::int64_t> atom() {
    if (accept("(") != '\0') {
      if (++depth_ > kDeepest) return std::nullopt;
      const std::optional<std::int64_t> inner = sum();
      --depth_;
      return accept(")") != '\0' ? inner : std::nullopt;
    }
    skip_spaces();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  static std::optional<std::int64_t> combine(char op, std::int64_t a,
                                             std::optional<std::int64_t> right) {
    if (!right || ((op == '/' || op == '%') && *right == 0)) return std::nullopt;
    const std::int64_t b = *right;
    std::int64_t result = 0;
    bool overflow = false;
    switch (op) {
      case '+':
        overflow = __builtin_add_overflow(a, b, &result);
        break;
      case '-':
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
      case '*':
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
      case '/':
        overflow = a == INT64_MIN && b == -1;
        if (!overflow) result = a / b;
        break;
      default:
        result = b == -1 ? 0 : a % b;
    }
    return overflow ? std::nullopt : std::optional(result);
  }

  static constexpr int kDeepest = 100;

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Runs the assignments of a script and expands the words of its commands.
class Shell {
 public:
  explicit Shell(std::string file) : file_(std::move(file)) {}

  void assign(const std::string& name, std::vector<Word> words, bool append, bool conditional) {
    Variable& v = variables_[name];
    if (!append) v.words.clear();
    v.words.insert(v.words.end(), words.begin(), words.end());
    v.conditional = conditional || (append && v.conditional);
    order_.push_back(name);
  }

  // A variable of the environment.
  void set(const std::string& name, const std::string& text) {
    variables_[name].words = {{text, 0}};
  }

  void append_text(const std::string& name, const Word& word, bool conditional) {
    Variable& v = variables_[name];
    if (v.words.empty()) v.words.push_back({"", word.line});
    v.words.back().text += word.text;
    v.conditional = v.conditional || conditional;
    order_.push_back(name);
  }

  std::vector<Word> expand(const Word& raw) {
    Expansion out;
    expand_into(out, raw.text, raw.line, false);
    out.end_word();
    return std::move(out.words);
  }

  std::vector<Word> expand(const std::vector<Word>& raw) {
    std::vector<Word> out;
    for (const Word& word : raw) {
      std::vector<Word> more = expand(word);
      out.insert(out.end(), more.begin(), more.end());
    }
    return out;
  }

  // The right side of an assignment: one word, however many spaces it has.
  Word expand_text(const Word& raw) {
    std::string text;
    for (const Word& word : expand({"\"" + unquote(raw.text) + "\"", raw.line})) {
      if (!text.empty()) text += ' ';
      text += word.text;
    }
    return {text, raw.line};
  }

  // Every variable's words, in order of first assignment.
  std::vector<Word> all_words() {
    std::vector<Word> out;
    std::set<std::string> seen;
    for (const std::string& name : order_) {
      if (!seen.insert(name).second) continue;
      for (const Word& word : variables_[name].words) {
        for (Word& piece : split(word)) out.push_back(std::move(piece));
      }
    }
    return out;
  }

  // Returns: null when the script does not set it.
  const Word* find(const std::string& name) const {
    const auto it = variables_.find(name);
    return it == variables_.end() || it->second.words.empty() ? nullptr : &it->second.words.front();
  }

  // Variables set in a branch that some expansion used.
  const std::set<std::string>& conditional_uses() const { return conditional_uses_; }

 private:
  struct Variable {
    std::vector<Word> words;
    bool conditional = false;
  };

  struct Expansion {
    std::vector<Word> words;
    std::string current;
    std::int64_t line = 0;
    bool open = false;

    void add(std::string_view text, std::int64_t at) {
      if (!open) line = at;
      open = true;
      current += text;
    }
    void end_word() {
      if (open) words.push_back({std::move(current), line});
      current.clear();
      open = false;
    }
  };

  static std::vector<Word> split(const Word& word) {
    std::vector<Word> out;
    std::istringstream in(word.text);
    for (std::string piece; in >> piece;) out.push_back({piece, word.line});
    return out;
  }

  // Drops one enclosing pair of double quotes; single quotes stay for `expand`.
  static std::string unquote(const std::string& text) {
    const bool whole = text.size() >= 2 && text.front() == '"' && text.back() == '"' &&
                       text.find('"', 1) == text.size() - 1;
    if (whole) return text.substr(1, text.size() - 2);
    std::string out;
    for (const char c : text) {
      if (c != '"' && c != '\'') out += c;
    }
    return out;
  }

  void expand_into(Expansion& out, std::string_view text, std::int64_t line, bool quoted) {
    bound(line, text.size());
    ++depth_;
    for (std::size_t i = 0; i < text.size();) {
      const char c = text[i];
      if (c == '"') {
        quoted = !quoted;
        out.add("", line);
        ++i;
      } else if (c == '\'' && !quoted) {
        const std::size_t end = std::min(text.find('\'', i + 1), text.size());
        out.add(text.substr(i + 1, end - i - 1), line);
        i = end + 1;
      } else if (c == '\\' && i + 1 < text.size()) {
        // A continued line within quotes separates words of the flags in it.
        const bool newline = text[i + 1] == '\n' || text[i + 1] == '\r';
        const bool kept = quoted && !newline &&
                          std::string_view("$`\"\\").find(text[i + 1]) == std::string_view::npos;
        out.add(newline ? " " : text.substr(kept ? i : i + 1, kept ? 2 : 1), line);
        i += 2;
      } else if (c == '$') {
        i = expand_dollar(out, text, i, line, quoted);
      } else {
        out.add(text.substr(i, 1), line);
        ++i;
      }
    }
    --depth_;
  }

  // Variables that double themselves, and references within references, must not exhaust memory.
  void bound(std::int64_t line, std::size_t size) {
    constexpr std::size_t kLargestExpansion = std::size_t{16} << 20;
    constexpr int kDeepest = 100;
    expanded_ += size;
    if (expanded_ > kLargestExpansion || depth_ > kDeepest) {
      throw InputError(file_, at_line(line), "variables that expand without end",
                       "a launch script");
    }
  }

  // Returns: the position after the reference that begins at `i`.
  std::size_t expand_dollar(Expansion& out, std::string_view text, std::size_t i, std::int64_t line,
                            bool quoted) {
    const std::size_t begin = i++;
    if (i < text.size() && (text[i] == '{' || text[i] == '(')) {
      const char open = text[i];
      const char close = open == '{' ? '}' : ')';
      int depth = 0;
      std::size_t end = i;
      for (; end < text.size(); ++end) {
        if (text[end] == open) ++depth;
        if (text[end] == close && --depth == 0) break;
      }
      const std::string_view whole = text.substr(begin, std::min(end + 1, text.size()) - begin);
      const std::string_view body = text.substr(i + 1, end - std::min(end, i + 1));
      if (open == '{') {
        expand_braces(out, whole, body, line, quoted);
      } else {
        expand_arithmetic(out, whole, body, line);
      }
      return std::min(end + 1, text.size());
    }
    std::size_t end = i;
    while (end < text.size() && is_name_char(text[end])) ++end;
    substitute(out, std::string(text.substr(i, end - i)), text.substr(begin, end - begin), line,
               quoted);
    return end;
  }

  // ${name}, ${name[@]}, ${name:-default}, ${name-default}, ${name:=default}.
  void expand_braces(Expansion& out, std::string_view whole, std::string_view body,
                     std::int64_t line, bool quoted) {
    std::size_t end = 0;
    while (end < body.size() && is_name_char(body[end])) ++end;
    const std::string name(body.substr(0, end));
    std::string_view rest = body.substr(end);
    if (rest == "[@]" || rest == "[*]") rest = {};
    const bool colon = !rest.empty() && rest.front() == ':';
    const std::string_view op = colon ? rest.substr(1) : rest;
    if (!op.empty() && (op.front() == '-' || op.front() == '=')) {
      const auto it = variables_.find(name);
      const bool empty = it == variables_.end() || it->second.words.empty() ||
                         (it->second.words.size() == 1 && it->second.words[0].text.empty());
      if (colon ? empty : it == variables_.end()) {
        expand_into(out, op.substr(1), line, quoted);
        return;
      }
      rest = {};
    }
    if (rest.empty()) {
      substitute(out, name, whole, line, quoted);
    } else {
      out.add(whole, line);  // ${#x}, ${x%y} and the like stay as written
    }
  }

  void expand_arithmetic(Expansion& out, std::string_view whole, std::string_view body,
                         std::int64_t line) {
    const bool arithmetic = body.size() >= 2 && body.front() == '(' && body.back() == ')';
    if (arithmetic) {
      std::string text;
      for (const Word& word : expand({with_dollars(body.substr(1, body.size() - 2)), line})) {
        text += word.text;
      }
      if (const auto value = Arithmetic::evaluate(text)) {
        out.add(std::to_string(*value), line);
        return;
      }
    }
    out.add(whole, line);
  }

  // In arithmetic a variable needs no `$`.
  static std::string with_dollars(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size();) {
      const bool begins = is_name_char(text[i]) && !is_digit(text[i]);
      if (begins && (i == 0 || (text[i - 1] != '$' && text[i - 1] != '{'))) out += '$';
      if (!is_name_char(text[i])) {
        out += text[i++];
        continue;
      }
      while (i < text.size() && is_name_char(text[i])) out += text[i++];
    }
    return out;
  }

  void substitute(Expansion& out, const std::string& name, std::string_view whole,
                  std::int64_t line, bool quoted) {
    const auto it = variables_.find(name);
    if (name.empty() || it == variables_.end()) {
      out.add(whole, line);
      return;
    }
    if (it->second.conditional) conditional_uses_.insert(name);
    bool first = true;
    for (const Word& word : it->second.words) {
      // Quoted, an array's elements stay whole; unquoted, spaces split them.
      const std::vector<Word> pieces = quoted ? std::vector<Word>{word} : split(word);
      for (const Word& piece : pieces) {
        bound(line, piece.text.size());
        if (!first) out.end_word();
        out.add(piece.text, piece.line);
        first = false;
      }
    }
  }

  std::string file_;
  std::size_t expanded_ = 0;
  int depth_ = 0;
  std::map<std::string, Variable> variables_;
  std::vector<std::string> order_;
  std::set<std::string> conditional_uses_;
};

// "name=value" or "name+=value": the length of the name, or 0.
std::size_t assignment_name(const std::string& word) {
  std::size_t end = 0;
  while (end < word.size() && is_name_char(word[end])) ++end;
  if (end == 0 || is_digit(word[0]) || end == word.size()) return 0;
  if (word[end] == '=') return end;
  return word[end] == '+' && end + 1 < word.size() && word[end + 1] == '=' ? end : 0;
}

bool is_flag(const std::string& word) { return word.size() > 2 && word.rfind("--", 0) == 0; }

std::ptrdiff_t known_flags(const std::vector<Word>& words) {
  return std::count_if(words.begin(), words.end(), [](const Word& word) {
    return is_flag(word.text) && resolve_flag(word.text.substr(0, word.text.find('='))).known;
  });
}

// The words of the command with the most known flags: the launch. Without one (a file of arrays
// that another script reads), every variable's words.
std::vector<Word> launch_words(const std::vector<Statement>& statements, Shell& shell) {
  static const std::set<std::string> kOpen = {"if", "for", "while", "until", "case"};
  static const std::set<std::string> kClose = {"fi", "done", "esac"};
  static const std::set<std::string> kPrefix = {"then", "do",     "else",  "{",       "}",   "!",
                                                "time", "export", "local", "declare", "eval"};
  static const std::set<std::string> kCondition = {"if",  "elif", "while", "until",
                                                   "for", "case", "[[",    "["};
  const bool argument_list = !statements.empty() && statements.front().array.empty() &&
                             is_flag(statements.front().words.front().text);
  int depth = 0;
  std::vector<Word> listed;
  std::vector<Word> best;
  std::ptrdiff_t most = 0;
  for (const Statement& statement : statements) {
    if (!statement.array.empty()) {
      shell.assign(statement.array, shell.expand(statement.words), statement.append, depth > 0);
      continue;
    }
    std::vector<Word> words = statement.words;
    while (!words.empty() && kPrefix.contains(words.front().text)) words.erase(words.begin());
    if (words.empty()) continue;
    const std::string& first = words.front().text;
    if (kOpen.contains(first)) ++depth;
    if (kClose.contains(first)) --depth;
    if (kCondition.contains(first)) continue;
    while (!words.empty()) {
      const std::size_t length = assignment_name(words.front().text);
      if (length == 0) break;
      const std::string text = words.front().text;
      const bool append = text[length] == '+';
      const Word value = shell.expand_text({text.substr(length + (append ? 2 : 1)), words[0].line});
      if (append) {
        shell.append_text(text.substr(0, length), value, depth > 0);
      } else {
        shell.assign(text.substr(0, length), {value}, false, depth > 0);
      }
      words.erase(words.begin());
    }
    const std::vector<Word> expanded = shell.expand(words);
    if (argument_list) listed.insert(listed.end(), expanded.begin(), expanded.end());
    if (known_flags(expanded) > most) {
      most = known_flags(expanded);
      best = expanded;
    }
  }
  if (argument_list) return listed;
  return most > 0 ? best : shell.all_words();
}

// Flags before the Python program belong to the launcher; of them only known ones say something.
std::size_t program_position(const std::vector<Word>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i].text;
    if (text.size() > 3 && text.compare(text.size() - 3, 3, ".py") == 0) return i;
  }
  return 0;
}

void read_flags(const std::vector<Word>& words, const std::string& file, MegatronArguments& out) {
  std::vector<Violation> violations;
  const std::size_t program = program_position(words);
  for (std::size_t i = 0; i < words.size();) {
    const bool launcher = i < program;
    const Word& word = words[i++];
    if (!is_flag(word.text)) continue;
    const std::size_t equals = word.text.find('=');
    const FlagMeaning flag = resolve_flag(word.text.substr(0, equals));
    std::vector<std::string> values;
    if (equals != std::string::npos) {
      values.push_back(word.text.substr(equals + 1));
    } else if (flag.arity != Arity::kSwitch) {
      const std::size_t most = flag.arity == Arity::kValue ? i + 1 : words.size();
      while (i < std::min(most, words.size()) && !is_flag(words[i].text)) {
        values.push_back(words[i++].text);
      }
    }
    if (flag.known && flag.arity == Arity::kValue && values.empty()) {
      violations.push_back({file, at_line(word.line), word.text + " without a value", "a value"});
      continue;
    }
    if (!flag.known && launcher) continue;
    std::string text = values.empty() ? flag.switch_value : values.front();
    for (std::size_t v = 1; v < values.size(); ++v) text += " " + values[v];
    out.values[flag.name] = {text, at_line(word.line)};  // the last one counts, as in argparse
  }
  throw_if_any(violations);
}

// As a variable of the script, or of mpirun's `-x NAME=value`.
std::optional<Argument> allocator_conf(const Shell& shell, const std::vector<Word>& launch) {
  for (const std::string name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"}) {
    if (const Word* value = shell.find(name)) return Argument{value->text, at_line(value->line)};
    for (const Word& word : launch) {
      if (word.text.rfind(name + "=", 0) == 0) {
        return Argument{word.text.substr(name.size() + 1), at_line(word.line)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

MegatronArguments arguments_from_script(std::string_view text, const std::string& file,
                                        std::optional<std::int64_t> cards) {
  MegatronArguments out;
  out.source = file;
  Shell shell(file);
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    if (cards) shell.set(name, std::to_string(*cards));
  }
  const std::vector<Word> words = launch_words(ScriptLexer(text).statements(), shell);
  read_flags(words, file, out);
  out.allocator_conf = allocator_conf(shell, words);
  if (!shell.conditional_uses().empty()) {
    std::string names;
    for (const std::string& name : shell.conditional_uses()) {
      names += (names.empty() ? "" : ", ") + name;
    }
    out.warnings.push_back("conditions of the script are not evaluated, the last branch stands: " +
                           names);
  }
  return out;
}

}  // namespace tidemark
