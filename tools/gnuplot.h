// Drawings by gnuplot. A file appears complete or not at all.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

// Runs a gnuplot script whose drawing goes to `output`, an .svg or .png file of so many pixels.
// Throws: InputError for another kind of file, a place that cannot be written to, or without
// gnuplot.
void plot(const std::string& script, const std::filesystem::path& output, int width = 1200,
          int height = 900);

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

// Panels of curves, one beneath the other. Throws: as plot.
void plot_panels(const std::vector<Panel>& panels, const std::filesystem::path& output);

}  // namespace tidemark
