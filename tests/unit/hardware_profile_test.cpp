#include "hw_profiles/hardware_profile.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/json_reader.h"

namespace tidemark::hardware_profile_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A profile in a directory of its own, made from one of ours.
class ProfileFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(::testing::TempDir()) / (std::string("profile_") + info->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static nlohmann::json ours(const std::string& name) {
    return load_json(hardware_profile_path(name));
  }

  void write(const std::string& file, const std::string& text) const {
    std::ofstream(directory_ / file) << text;
  }

  // What the loader says about this profile; "" if it is accepted.
  std::string complaint(const nlohmann::json& profile) const {
    write("profile.json", profile.dump());
    try {
      load_hardware_profile((directory_ / "profile.json").string());
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  fs::path directory_;
};

TEST(HardwareProfile, ShipsCardsWithSourcesForEveryNumber) {
  const HardwareProfile bw1000 = load_hardware_profile("bw1000");
  EXPECT_EQ(bw1000.architecture, "gfx936");
  EXPECT_EQ(bw1000.capacity(), Bytes(68'702'699'520));  // the device's own figure
  EXPECT_EQ(bw1000.peak_bf16_tflops.value, 480);
  EXPECT_EQ(bw1000.host_link.d2h_gb_per_s.kind, NumberKind::kMeasured);
  EXPECT_FALSE(bw1000.host_link.node_d2h_gb_per_s.has_value()) << "nobody measured it";
  ASSERT_TRUE(bw1000.operators.has_value());
  EXPECT_FALSE(bw1000.operators->linear.empty());
  ASSERT_TRUE(bw1000.collectives.has_value());

  // The vendor's profile says 64 GiB; its logs reserve 134,918 MiB.
  EXPECT_GT(load_hardware_profile("bw1100").capacity(), 134'918 * kMiB);
  // More than the 96 GB card has.
  EXPECT_GT(load_hardware_profile("h20").capacity(), 104'472 * kMiB);

  const HardwareProfile b200 = load_hardware_profile("b200");
  EXPECT_GT(b200.capacity(), 163'480 * kMiB) << "what SimuMax's fullest rank reserves";
  // PyTorch's ":4096:2:16:8": two pieces of 4,096 KiB and eight of 16.
  EXPECT_EQ(b200.allocator_for(std::nullopt).torch_workspace_mib.value,
            (2 * 4096 + 8 * 16) / 1024.);
}

TEST(HardwareProfile, NvidiaWorkspacesFollowTheArchitecture) {
  struct Card {
    const char* architecture;
    double te_mib;
    double torch_mib;
  };
  // Transformer Engine asks for compute capability 9 and above, PyTorch for 9.0 alone.
  constexpr double kTorchDefault = (2 * 4096 + 8 * 16) / 1024.;
  const std::map<std::string, Card> cards = {{"a100", {"sm80", 4, kTorchDefault}},
                                             {"b200", {"sm100", 32, kTorchDefault}},
                                             {"gb200", {"sm100", 32, kTorchDefault}},
                                             {"h100", {"sm90", 32, 8 * 4096 / 1024.}},
                                             {"h20", {"sm90", 32, 8 * 4096 / 1024.}}};
  for (const auto& [name, card] : cards) {
    const HardwareProfile profile = load_hardware_profile(name);
    EXPECT_EQ(profile.name, name);
    EXPECT_EQ(profile.architecture, card.architecture) << name;
    const AllocatorConstants& constants = profile.allocator_for(std::nullopt);
    EXPECT_EQ(constants.te_base_workspace_mib.value, card.te_mib) << name;
    EXPECT_EQ(constants.te_grouped_workspace_mib.value, card.te_mib) << name;
    EXPECT_EQ(constants.torch_workspace_mib.value, card.torch_mib) << name;
  }
}

TEST(HardwareProfile, CapacitiesAreWhatIsLeftOfTheDriversTotal) {
  // nvidia-smi's total in MiB; the runtime reports less, by its own share.
  for (const auto& [name, total_mib] :
       {std::pair{"a100", 81'920}, {"gb200", 189'471}, {"h100", 81'559}}) {
    const Bytes capacity = load_hardware_profile(name).capacity();
    EXPECT_LT(capacity, total_mib * kMiB) << name;
    EXPECT_GT(capacity, (total_mib - 1024) * kMiB) << name;
  }
}

TEST(HardwareProfile, AllocatorConstantsFollowTheSoftwareStack) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  EXPECT_FALSE(profile.allocator_for(Version{26, 4}).moe_stage_unexplained_mib.has_value());
  EXPECT_EQ(profile.allocator_for(Version{25, 4}).moe_stage_unexplained_mib->value, 576);
  EXPECT_EQ(&profile.allocator_for(std::nullopt), &profile.allocator_for(Version{26, 4}))
      << "an unknown version counts as the newest";
}

TEST(HardwareProfilePath, UnknownNameListsTheKnownOnes) {
  try {
    hardware_profile_path("bw2000");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"bw2000\""),
                                    HasSubstr("a100 b200 bw1000 bw1100 gb200 h100 h20 h800")));
  }
}

TEST_F(ProfileFile, IsFoundByPathAndInTheUsersDataDirectory) {
  fs::create_directories(directory_ / "mine");
  write("mine/profile.json", ours("h20").dump());
  EXPECT_EQ(load_hardware_profile((directory_ / "mine/profile.json").string()).name, "h20");
  ASSERT_EQ(setenv("TIDEMARK_DATA_DIR", directory_.c_str(), 1), 0);
  EXPECT_EQ(hardware_profile_path("mine"), directory_ / "mine/profile.json");
  unsetenv("TIDEMARK_DATA_DIR");
}

TEST_F(ProfileFile, RefusesNegativeBandwidthWithItsPlace) {
  nlohmann::json profile = ours("h20");
  EXPECT_EQ(complaint(profile), "");
  profile["hbm"]["copy_gb_per_s"]["value"] = -5;
  EXPECT_THAT(complaint(profile),
              HasSubstr("profile.json: /hbm/copy_gb_per_s/value: -5, expected a number > 0"));
}

TEST_F(ProfileFile, RefusesANumberWithoutSourceOrKind) {
  nlohmann::json profile = ours("h20");
  profile["capacity_gib"].erase("source");
  profile["peak_bf16_tflops"]["source"] = "";
  profile["kernel_launch_us"]["kind"] = "guessed";
  // All of them together.
  EXPECT_THAT(complaint(profile), AllOf(HasSubstr("/capacity_gib/source: missing"),
                                        HasSubstr("/peak_bf16_tflops/source"),
                                        HasSubstr("/kernel_launch_us/kind: \"guessed\"")));
}

TEST_F(ProfileFile, RefusesMissingAndUnknownKeys) {
  nlohmann::json profile = ours("h20");
  profile["capacity_gb"] = profile["capacity_gib"];
  profile.erase("capacity_gib");
  EXPECT_THAT(complaint(profile),
              AllOf(HasSubstr("/capacity_gib: missing"), HasSubstr("/capacity_gb: unknown key"),
                    HasSubstr("did you mean \"capacity_gib\"?")));
}

TEST_F(ProfileFile, RefusesTwoSourcesOfKernelTimesAndNone) {
  nlohmann::json profile = ours("h20");
  profile["operators"] = ours("bw1000")["operators"];
  EXPECT_THAT(complaint(profile), HasSubstr("/operators: given together with efficiency"));
  profile.erase("operators");
  profile.erase("efficiency");
  EXPECT_THAT(complaint(profile), HasSubstr("/operators: missing, and so is efficiency"));
}

TEST_F(ProfileFile, RefusesAFractionOfACard) {
  nlohmann::json profile = ours("h20");
  profile["cards_per_node"]["value"] = 7.5;
  EXPECT_THAT(complaint(profile), HasSubstr("/cards_per_node/value: 7.5, expected an integer"));
}

TEST_F(ProfileFile, NamesTheLineOfABadTableRow) {
  nlohmann::json profile = ours("bw1000");
  profile["operators"]["file"] =
      (hardware_profile_path("bw1000").parent_path() / "operators.csv").string();
  EXPECT_THAT(complaint(profile), HasSubstr("collectives.csv: cannot be opened"));
  write("collectives.csv", "# comment\nop,nodes,ranks,bytes\n");
  EXPECT_THAT(complaint(profile), HasSubstr("line 2: header op,nodes,ranks,bytes"));
  write("collectives.csv",
        "# comment\n"
        "op,nodes,ranks,bytes,bus_gb_per_s\n"
        "all_gather,1,2,1024,0\n"  // print rounding, not a bandwidth
        "all_gather,1,2,2048,fast\n"
        "all_gather,1,2,4096\n"
        "broadcast,1,2,4096,1\n");
  EXPECT_THAT(complaint(profile),
              AllOf(HasSubstr("line 3: bus_gb_per_s \"0\", expected a number > 0"),
                    HasSubstr("line 4: bus_gb_per_s \"fast\""), HasSubstr("line 5: 4 fields"),
                    HasSubstr("line 6: op \"broadcast\"")));
}

}  // namespace
}  // namespace tidemark::hardware_profile_test
