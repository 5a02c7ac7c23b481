// Drawings by gnuplot: panels of curves, one beneath the other, as a PNG file.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

struct Curve {
  std::string title;
  std::vector<std::pair<double, double>> points;  // x, y
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Curve> curves;
};

// The file appears complete or not at all. Throws: InputError when gnuplot is not installed or the
// place cannot be written to.
void draw_png(const std::filesystem::path& png, const std::vector<Panel>& panels);

}  // namespace tidemark
