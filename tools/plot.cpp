#include "tools/plot.h"

#include <cstdio>

#include "models/input_error.h"

namespace tidemark {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "''" : std::string(1, c);
  return out + "'";
}

std::string terminal(const std::filesystem::path& output) {
  if (output.extension() == ".svg") return "svg size 1200,900 background rgb 'white'";
  if (output.extension() == ".png") return "pngcairo size 1200,900";
  throw InputError(output.string(), "", "not a drawing's name", "a name that ends in .svg or .png");
}

}  // namespace

void plot(const std::string& script, const std::filesystem::path& output) {
  const std::string whole = "set terminal " + terminal(output) + "\nset output " +
                            quoted(output.string()) + "\n" + script + "\nset output\n";
  std::FILE* gnuplot = popen("gnuplot", "w");
  const bool written =
      gnuplot != nullptr && std::fwrite(whole.data(), 1, whole.size(), gnuplot) == whole.size();
  const int status = gnuplot != nullptr ? pclose(gnuplot) : -1;
  if (!written || status != 0) {
    throw InputError(output.string(), "", "gnuplot failed",
                     "a writable place, and gnuplot installed");
  }
}

}  // namespace tidemark
