// Drawings by gnuplot.
#pragma once

#include <filesystem>
#include <string>

namespace tidemark {

// Runs a gnuplot script whose drawing goes to `output`, an .svg or .png file.
// Throws: InputError for another kind of file, one that cannot be written, or without gnuplot.
void plot(const std::string& script, const std::filesystem::path& output);

}  // namespace tidemark
