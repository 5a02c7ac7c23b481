#include "models/json_reader.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tidemark::json_reader_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> texts(const std::vector<Violation>& violations) {
  std::vector<std::string> out;
  for (const Violation& v : violations) out.push_back(v.text());
  return out;
}

// The violations of reading `json` with `read`, unknown keys included.
std::vector<std::string> violations_of(const char* json,
                                       const std::function<void(JsonReader&)>& read) {
  const nlohmann::json node = nlohmann::json::parse(json);
  std::vector<Violation> violations;
  JsonReader in(node, "f.json", "", violations);
  read(in);
  in.finish();
  return texts(violations);
}

TEST(JsonReader, ReturnsValuesOfTheRightType) {
  EXPECT_THAT(violations_of(R"({"i": 3, "d": 0.5, "b": true, "s": "x", "c": "red"})",
                            [](JsonReader& in) {
                              EXPECT_EQ(in.integer("i"), 3);
                              EXPECT_DOUBLE_EQ(in.number("d"), 0.5);
                              EXPECT_TRUE(in.boolean("b"));
                              EXPECT_EQ(in.string("s"), "x");
                              EXPECT_EQ(in.choice("c", {"red", "blue"}), "red");
                              EXPECT_FALSE(in.optional_integer("none").has_value());
                            }),
              IsEmpty());
}

TEST(JsonReader, BothEndsOfARangeAreAllowed) {
  const auto read = [](JsonReader& in) { in.integer("n", {1, 8}); };
  EXPECT_THAT(violations_of(R"({"n": 1})", read), IsEmpty());
  EXPECT_THAT(violations_of(R"({"n": 8})", read), IsEmpty());
  EXPECT_THAT(violations_of(R"({"n": 0})", read),
              ElementsAre("f.json: /n: 0, expected an integer from 1 to 8"));
  EXPECT_THAT(violations_of(R"({"n": 9})", read),
              ElementsAre("f.json: /n: 9, expected an integer from 1 to 8"));
}

TEST(JsonReader, AnIntegerIsNoFractionAndFitsSixtyFourBits) {
  const auto read = [](JsonReader& in) { in.integer("n"); };
  EXPECT_THAT(violations_of(R"({"n": 1.0})", read), ElementsAre(HasSubstr("/n: 1.0, expected")));
  EXPECT_THAT(violations_of(R"({"n": 9223372036854775807})", read), IsEmpty());
  EXPECT_THAT(violations_of(R"({"n": 9223372036854775808})", read),
              ElementsAre(HasSubstr("9223372036854775808, expected an integer")));
}

TEST(JsonReader, MissingKeysSayWhatIsExpected) {
  EXPECT_THAT(violations_of("{}",
                            [](JsonReader& in) {
                              in.integer("n", {1});
                              in.choice("c", {"red"});
                            }),
              ElementsAre("f.json: /n: missing, expected an integer >= 1",
                          "f.json: /c: missing, expected one of \"red\""));
}

TEST(JsonReader, UnknownKeysAreRefusedWithTheNearest) {
  EXPECT_THAT(violations_of(R"({"hiden_size": 1})",
                            [](JsonReader& in) {
                              in.optional_integer("hidden_size");
                              in.optional_integer("num_layers");
                            }),
              ElementsAre("f.json: /hiden_size: unknown key, expected a known key; did you mean "
                          "\"hidden_size\"?"));
}

TEST(JsonReader, NestedPlacesAreJsonPointers) {
  EXPECT_THAT(
      violations_of(R"({"a": {"n": "x"}, "list": [{}, {"m": 1}]})",
                    [](JsonReader& in) {
                      in.object("a", [](JsonReader& r) { r.integer("n"); });
                      in.objects("list", [](JsonReader& r) { r.optional_integer("k"); });
                    }),
      ElementsAre(HasSubstr("f.json: /a/n: \"x\""), HasSubstr("f.json: /list/1/m: unknown")));
}

TEST(JsonReader, AnythingButAnObjectIsRefusedOnce) {
  EXPECT_THAT(violations_of("[1]", [](JsonReader& in) { in.optional_integer("n"); }),
              ElementsAre("f.json: /: [1], expected an object"));
}

TEST(LoadJson, SaysWhereAFileBreaks) {
  const auto path = std::filesystem::path(testing::TempDir()) / "broken.json";
  const auto error_of = [&](const std::string& content) -> std::string {
    std::ofstream(path) << content;
    try {
      load_json(path, 100);
    } catch (const InputError& error) {
      return error.what();
    }
    return "(no error)";
  };
  EXPECT_THAT(error_of("{\n\"a\": 1,\n?\n}"), HasSubstr("line 3: not JSON"));
  EXPECT_THAT(error_of("{\"a\": "), HasSubstr("truncated"));
  EXPECT_EQ(error_of("[" + std::string(98, ' ') + "]"), "(no error)");
  EXPECT_THAT(error_of("[" + std::string(99, ' ') + "]"), HasSubstr("101 bytes, expected at most"));
}

TEST(Nearest, IsWithinAThirdOfTheLength) {
  EXPECT_EQ(nearest("hiden_size", {"hidden_size", "num_layers"}), "hidden_size");
  EXPECT_EQ(nearest("abc", {"abd"}), "abd");  // one of three letters
  EXPECT_EQ(nearest("abc", {"add"}), "");     // two of three
}

}  // namespace
}  // namespace tidemark::json_reader_test
