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

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += '\'';
    if (c != '\n') out += c;
  }
  return out + "'";
}

std::string script(const std::filesystem::path& png, const std::vector<Panel>& panels) {
  std::ostringstream out;
  out << "set terminal pngcairo noenhanced size 1000," << 360 * panels.size() << " font 'sans,11'\n"
      << "set output " << quoted(png.string()) << "\nset multiplot layout " << panels.size()
      << ",1\nset grid\nset key outside right top\n";
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
  out << "unset multiplot\nset output\n";
  return out.str();
}

}  // namespace

void draw_png(const std::filesystem::path& png, const std::vector<Panel>& panels) {
  const std::filesystem::path temporary = png.string() + "." + std::to_string(getpid()) + ".tmp";
  std::FILE* gnuplot = popen("gnuplot >/dev/null 2>&1", "w");
  if (gnuplot == nullptr) throw std::system_error(errno, std::generic_category(), "popen");
  const std::string text = script(temporary, panels);
  std::fwrite(text.data(), 1, text.size(), gnuplot);
  const int status = pclose(gnuplot);
  std::error_code error;
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchCommand) {
    throw InputError("", "gnuplot", "not installed",
                     "it for drawings (Debian: apt-get install gnuplot-nox)");
  }
  if (status == 0) std::filesystem::rename(temporary, png, error);
  if (status != 0 || error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw InputError(png.string(), "", "cannot be drawn", "a writable place for a PNG file");
  }
}

}  // namespace tidemark
