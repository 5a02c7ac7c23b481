#include "tools/gnuplot.h"

#include <cstdio>
#include <sstream>
#include <system_error>

#include <sys/wait.h>
#include <unistd.h>

#include "models/input_error.h"

namespace tidemark {
namespace {

constexpr int kNoSuchCommand = 127;  // the shell's exit status
constexpr int kPanelHeight = 360;

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    if (c != '\n') out += c;
  }
  return out + "'";
}

std::string terminal(const std::filesystem::path& output, int width, int height) {
  const std::string size = " size " + std::to_string(width) + "," + std::to_string(height);
  if (output.extension() == ".svg") return "svg noenhanced background rgb 'white'" + size;
  if (output.extension() == ".png") return "pngcairo noenhanced font 'sans,11'" + size;
  throw InputError(output.string(), "", "not a drawing's name", "a name that ends in .svg or .png");
}

}  // namespace

void plot(const std::string& script, const std::filesystem::path& output, int width, int height) {
  const std::filesystem::path temporary = output.string() + "." + std::to_string(getpid()) + ".tmp";
  const std::string whole = "set terminal " + terminal(output, width, height) + "\nset output " +
                            quoted(temporary.string()) + "\n" + script + "\nset output\n";
  std::FILE* gnuplot = popen("gnuplot >/dev/null 2>&1", "w");
  if (gnuplot == nullptr) throw std::system_error(errno, std::generic_category(), "popen");
  const bool written = std::fwrite(whole.data(), 1, whole.size(), gnuplot) == whole.size();
  const int status = pclose(gnuplot);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchCommand) {
    throw InputError("", "gnuplot", "not installed",
                     "it for drawings (Debian: apt-get install gnuplot-nox)");
  }
  std::error_code error;
  if (written && status == 0) std::filesystem::rename(temporary, output, error);
  if (!written || status != 0 || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw InputError(output.string(), "", "cannot be drawn", "a writable place for a drawing");
  }
}

void plot_panels(const std::vector<Panel>& panels, const std::filesystem::path& output) {
  std::ostringstream out;
  out << "set multiplot layout " << panels.size() << ",1\nset grid\nset key outside right top\n";
  for (std::size_t p = 0; p < panels.size(); ++p) {
    const Panel& panel = panels[p];
    for (std::size_t c = 0; c < panel.curves.size(); ++c) {
      out << "$d" << p << "_" << c << " << EOD\n";
      for (const auto& [x, y] : panel.curves[c].points) out << x << ' ' << y << '\n';
      out << "EOD\n";
    }
    out << "set title " << quoted(panel.title) << "\nset xlabel " << quoted(panel.x_label)
        << "\nset ylabel " << quoted(panel.y_label) << "\nplot ";
    for (std::size_t c = 0; c < panel.curves.size(); ++c) {
      out << (c == 0 ? "" : ", ") << "$d" << p << "_" << c << " using 1:2 with lines linewidth 1.5"
          << " title " << quoted(panel.curves[c].title);
    }
    out << "\n";
  }
  out << "unset multiplot\n";
  plot(out.str(), output, 1000, kPanelHeight * static_cast<int>(panels.size()));
}

}  // namespace tidemark
