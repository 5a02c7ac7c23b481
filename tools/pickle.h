// JSON values as a Python pickle of protocol 2: None, booleans, integers, strings, lists and
// dictionaries, which is what PyTorch's memory snapshots are made of.
// Source: Python's Lib/pickletools.py.
#pragma once

#include <ostream>

#include <nlohmann/json_fwd.hpp>

namespace tidemark {

// Requires: no floating-point number.
void write_pickle(std::ostream& out, const nlohmann::ordered_json& value);

}  // namespace tidemark
