#include "tools/pickle.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace tidemark {
namespace {

using Json = nlohmann::ordered_json;

// As Python's own pickler does; viewers spread a batch over a call's arguments.
constexpr std::size_t kBatch = 1000;

void write_little_endian(std::ostream& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.put(static_cast<char>(value >> (8 * i)));
}

void write_string(std::ostream& out, const std::string& text) {
  out.put('X');  // BINUNICODE
  write_little_endian(out, text.size(), 4);
  out << text;
}

void write_value(std::ostream& out, const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      out.put('N');
      return;
    case Json::value_t::boolean:
      out.put(value.get<bool>() ? '\x88' : '\x89');  // NEWTRUE, NEWFALSE
      return;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      out << "\x8a\x08";  // LONG1 of eight bytes
      write_little_endian(out, static_cast<std::uint64_t>(value.get<std::int64_t>()), 8);
      return;
    case Json::value_t::string:
      write_string(out, value.get_ref<const std::string&>());
      return;
    case Json::value_t::array:
      out.put(']');  // EMPTY_LIST
      for (std::size_t begin = 0; begin < value.size(); begin += kBatch) {
        out.put('(');  // MARK
        const std::size_t end = std::min(begin + kBatch, value.size());
        for (std::size_t i = begin; i < end; ++i) write_value(out, value[i]);
        out.put('e');  // APPENDS
      }
      return;
    case Json::value_t::object:
      out << "}(";  // EMPTY_DICT, MARK
      for (const auto& [key, item] : value.items()) {
        write_string(out, key);
        write_value(out, item);
      }
      out.put('u');  // SETITEMS
      return;
    default:
      throw std::logic_error("a pickle of " + std::string(value.type_name()));
  }
}

}  // namespace

void write_pickle(std::ostream& out, const Json& value) {
  out << "\x80\x02";  // PROTO 2
  write_value(out, value);
  out.put('.');  // STOP
}

}  // namespace tidemark
