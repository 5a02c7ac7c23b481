#include "models/megatron_arguments.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/launch_script.h"
#include "models/megatron_argument_table.h"

namespace tidemark::megatron_arguments_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::filesystem::path write(const std::string& name, const std::string& content) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string text_of(const MegatronArguments& arguments, const std::string& name) {
  const auto it = arguments.values.find(name);
  return it == arguments.values.end() ? "(absent)" : it->second.text;
}

std::string message_of(const std::function<void()>& read) {
  try {
    read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "(no error)";
}

MegatronArguments from_script(const std::string& text) {
  return arguments_from_script(text, "run.sh");
}

// --- the table -------------------------------------------------------------------------------

TEST(ArgumentTable, KnowsEveryNameOfTheElevenVendorLogs) {
  std::ifstream names(TIDEMARK_SOURCE_DIR "/tests/support/megatron_argument_names.txt");
  ASSERT_TRUE(names);
  int count = 0;
  for (std::string name; std::getline(names, name); ++count) {
    EXPECT_NE(find_argument(name), nullptr) << name;
  }
  EXPECT_EQ(count, 839);
}

TEST(ArgumentTable, TellsWhatMattersFromWhatDoesNot) {
  EXPECT_EQ(find_argument("hidden_size")->kind, ArgumentClass::kModelled);
  EXPECT_EQ(find_argument("lr")->kind, ArgumentClass::kIrrelevant);
  EXPECT_EQ(find_argument("fp4")->kind, ArgumentClass::kNotModelled);
  EXPECT_EQ(find_argument("no_such_argument"), nullptr);
}

TEST(ArgumentTable, AcceptsWhateverMeansOffUnlessValuesAreListed) {
  const ArgumentInfo& latent = *find_argument("moe_latent_size");
  EXPECT_TRUE(latent.accepts("None"));
  EXPECT_TRUE(latent.accepts("0"));
  EXPECT_FALSE(latent.accepts("1"));
  const ArgumentInfo& instances = *find_argument("num_distributed_optimizer_instances");
  EXPECT_TRUE(instances.accepts("1"));
  EXPECT_FALSE(instances.accepts("2"));
  // On by default; off is what is not modelled.
  const ArgumentInfo& clone = *find_argument("clone_scatter_output_in_embedding");
  EXPECT_TRUE(clone.accepts("True"));
  EXPECT_FALSE(clone.accepts("False"));
}

TEST(ResolveFlag, TurnsNegativeFlagsIntoTheirArgument) {
  const auto meaning = [](std::string_view flag) {
    const FlagMeaning m = resolve_flag(flag);
    return m.name + "=" + m.switch_value;
  };
  EXPECT_EQ(meaning("--no-rope-fusion"), "apply_rope_fusion=False");  // irregular
  EXPECT_EQ(meaning("--disable-bias-linear"), "add_bias_linear=False");
  EXPECT_EQ(meaning("--no-gradient-accumulation-fusion"), "gradient_accumulation_fusion=False");
  EXPECT_EQ(meaning("--disable-msc"), "enable_msc=False");
  EXPECT_EQ(meaning("--no-persist-layer-norm"), "no_persist_layer_norm=True");  // a name itself
  EXPECT_EQ(meaning("--recompute-activations"), "recompute_granularity=selective");
  EXPECT_EQ(resolve_flag("--fp8-format").name, "fp8");
  EXPECT_FALSE(resolve_flag("--no-such-thing").known);
}

TEST(ResolveFlag, KnowsThoseOfKwaiAndBaGuaLu2) {
  EXPECT_EQ(find_argument(resolve_flag("--kaimm-gc-interval").name)->kind,
            ArgumentClass::kIrrelevant);
  EXPECT_EQ(find_argument(resolve_flag("--kaimm-offload-activation-ratio").name)->kind,
            ArgumentClass::kNotModelled);
  // An alias, and a switch that turns off what is on by default.
  EXPECT_EQ(resolve_flag("--per-batch-offload-size").name, "bgl2_per_batch_offload_size");
  EXPECT_EQ(resolve_flag("--no-context-parallel-comm-overlap-gemm").switch_value, "False");
}

// --- scripts ---------------------------------------------------------------------------------

TEST(ArgumentsFromScript, ReadsArraysVariablesAndTheCommand) {
  const MegatronArguments a = from_script(R"sh(#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
TP=2
PP=${PP:-4}                       # a default
LAYERS=$((TP * PP * 4))
MODEL_ARGS=(
    --num-layers $LAYERS
    --hidden-size 4096 \
    #--num-experts 8
    --swiglu
    --moe-layer-freq "([0]*3+[1]*29)"
)
OPTIONS="--bf16 \
  --no-rope-fusion"
torchrun --nproc_per_node 8 --nnodes=4 --rdzv-conf x pretrain_gpt.py \
    "${MODEL_ARGS[@]}" $OPTIONS \
    --tensor-model-parallel-size ${TP} --cp-comm-type p2p a2a 2>&1 | tee log.txt
)sh");
  EXPECT_EQ(text_of(a, "num_layers"), "32");
  EXPECT_EQ(text_of(a, "hidden_size"), "4096");
  EXPECT_EQ(text_of(a, "num_experts"), "(absent)");
  EXPECT_EQ(text_of(a, "swiglu"), "True");
  EXPECT_EQ(text_of(a, "moe_layer_freq"), "([0]*3+[1]*29)");
  EXPECT_EQ(text_of(a, "bf16"), "True");
  EXPECT_EQ(text_of(a, "apply_rope_fusion"), "False");
  EXPECT_EQ(text_of(a, "tensor_model_parallel_size"), "2");
  EXPECT_EQ(text_of(a, "cp_comm_type"), "p2p a2a");
  // The launcher's own flags: world size is wanted, the rest is not Megatron's.
  EXPECT_EQ(text_of(a, "nproc_per_node"), "8");
  EXPECT_EQ(text_of(a, "nnodes"), "4");
  EXPECT_EQ(text_of(a, "rdzv_conf"), "(absent)");
  EXPECT_EQ(a.values.at("hidden_size").place, "line 8");
  EXPECT_THAT(a.warnings, IsEmpty());
}

TEST(ArgumentsFromScript, ReadsAPlainListOfFlags) {
  const MegatronArguments a = from_script("# model\n--num-layers 4\n--swiglu\n--lr -1.0\n");
  EXPECT_EQ(text_of(a, "num_layers"), "4");
  EXPECT_EQ(text_of(a, "swiglu"), "True");
  EXPECT_EQ(text_of(a, "lr"), "-1.0");
}

TEST(ArgumentsFromScript, ComputesWithTheWorldSizeOfTheCaller) {
  const std::string script =
      "mpirun -np 64 python x.py --world-size $OMPI_COMM_WORLD_SIZE "
      "--global-batch-size $((64 * $(($OMPI_COMM_WORLD_SIZE / 2 / 4 / 1))))";
  const MegatronArguments a = arguments_from_script(script, "run.sh", 64);
  EXPECT_EQ(text_of(a, "world_size"), "64");
  EXPECT_EQ(text_of(a, "global_batch_size"), std::to_string(64 * (64 / 2 / 4 / 1)));
}

TEST(ArgumentsFromScript, ReadsTheAllocatorsSettings) {
  const auto conf = [](const std::string& script) {
    const auto found = from_script(script + "python x.py --num-layers 4").allocator_conf;
    return found ? found->place + " " + found->text : "";
  };
  EXPECT_EQ(conf(""), "");
  EXPECT_EQ(conf("set -x\nexport PYTORCH_CUDA_ALLOC_CONF=\"max_split_size_mb:21\"\n"),
            "line 2 max_split_size_mb:21");
  EXPECT_EQ(conf("MB=64\nPYTORCH_HIP_ALLOC_CONF=max_split_size_mb:$MB "),
            "line 2 max_split_size_mb:64");
  EXPECT_EQ(conf("mpirun -x PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "),
            "line 1 expandable_segments:True");
}

TEST(ArgumentsFromScript, TheLastOfRepeatedFlagsCounts) {
  EXPECT_EQ(text_of(from_script("python x.py --num-layers 4 --num-layers 8"), "num_layers"), "8");
}

TEST(ArgumentsFromScript, KeepsWhatOnlyTheEnvironmentKnows) {
  const MegatronArguments a = from_script("python x.py --num-layers $LAYERS --seq-length $(f 1)");
  EXPECT_EQ(text_of(a, "num_layers"), "$LAYERS");
  EXPECT_EQ(text_of(a, "seq_length"), "$(f 1)");
}

TEST(ArgumentsFromScript, WarnsWhereABranchDecides) {
  const MegatronArguments a = from_script(R"(
if [ "$SIZE" == 8B ]; then
  LAYERS=32
else
  LAYERS=80
fi
python x.py --num-layers $LAYERS
)");
  EXPECT_EQ(text_of(a, "num_layers"), "80");
  EXPECT_THAT(a.warnings, ElementsAre(HasSubstr("LAYERS")));
}

TEST(ArgumentsFromScript, RefusesAFlagWithoutItsValue) {
  const std::string error =
      message_of([] { from_script("python x.py --num-layers \\\n --swiglu --hidden-size\n"); });
  EXPECT_THAT(error, HasSubstr("run.sh: line 1: --num-layers without a value"));
  EXPECT_THAT(error, HasSubstr("line 2: --hidden-size without a value"));
}

TEST(ArgumentsFromScript, RefusesVariablesThatDoubleWithoutEnd) {
  std::string script = "A='--lr 1 '\n";
  for (int i = 0; i < 60; ++i) script += "A=\"$A$A\"\n";  // 2^60 copies
  EXPECT_THAT(message_of([&] { from_script(script + "python x.py $A"); }),
              HasSubstr("expand without end"));
}

// --- JSON ------------------------------------------------------------------------------------

TEST(ArgumentsFromJson, TakesPythonTextAndJsonTypesAlike) {
  const MegatronArguments a = arguments_from_json({{"bf16", "True"},
                                                   {"swiglu", true},
                                                   {"num_layers", 4},
                                                   {"num_experts", nullptr},
                                                   {"moe_layer_freq", {0, 1}}},
                                                  "a.json");
  EXPECT_EQ(text_of(a, "bf16"), "True");
  EXPECT_EQ(text_of(a, "swiglu"), "True");
  EXPECT_EQ(text_of(a, "num_layers"), "4");
  EXPECT_EQ(text_of(a, "num_experts"), "None");
  EXPECT_EQ(text_of(a, "moe_layer_freq"), "[0, 1]");
  EXPECT_EQ(a.values.at("bf16").place, "/bf16");
}

TEST(ArgumentsFromJson, TakesFlagsAsKeys) {
  const MegatronArguments a = arguments_from_json({{"--no-rope-fusion", true},
                                                   {"disable-bias-linear", ""},
                                                   {"no-masked-softmax-fusion", false},
                                                   {"--fp8-format", "hybrid"},
                                                   {"use-mcore-models", ""}},
                                                  "a.json");
  EXPECT_EQ(text_of(a, "apply_rope_fusion"), "False");
  EXPECT_EQ(text_of(a, "add_bias_linear"), "False");
  EXPECT_EQ(text_of(a, "masked_softmax_fusion"), "(absent)");  // the flag is not given
  EXPECT_EQ(text_of(a, "fp8"), "hybrid");
  EXPECT_EQ(text_of(a, "deprecated_use_mcore_models"), "True");
}

TEST(ArgumentsFromJson, RefusesNestedValues) {
  EXPECT_THAT(message_of([] {
                arguments_from_json(nlohmann::json::parse(R"({"a": {"b": 1}, "c": [[1]]})"), "f");
              }),
              testing::AllOf(HasSubstr("f: /a: nested values"), HasSubstr("f: /c: nested")));
}

// --- logs ------------------------------------------------------------------------------------

constexpr const char* kDump = R"(using world size: 8
0: ------------------------ arguments ------------------------
0:   bf16 ............................................ True
1:   warnings.warn(message)
0:   config_logger_dir ............................... 
0:   cp_comm_type .................................... ['p2p']
0:   ddp_param_name_patterns_for_fp32_local_accumulation  []
0: -------------------- end of arguments ---------------------
0:   num_layers ...................................... 99
)";

TEST(ArgumentsFromLog, ReadsTheDumpBehindAPrefix) {
  const MegatronArguments a = arguments_from_log(write("dump.log", kDump));
  EXPECT_EQ(a.values.size(), 4U);
  EXPECT_EQ(text_of(a, "bf16"), "True");
  EXPECT_EQ(text_of(a, "config_logger_dir"), "");
  EXPECT_EQ(text_of(a, "cp_comm_type"), "['p2p']");
  // 51 characters: wider than the column, so without dots.
  EXPECT_EQ(text_of(a, "ddp_param_name_patterns_for_fp32_local_accumulation"), "[]");
  EXPECT_EQ(a.values.at("bf16").place, "line 3");
}

TEST(ArgumentsFromLog, RefusesALogWithoutTheDumpOrWithHalfOfIt) {
  const auto none = write("none.log", " iteration 1/ 15 | elapsed time per iteration (ms): 5.0\n");
  EXPECT_THAT(message_of([&] { arguments_from_log(none); }), HasSubstr("no `arguments` dump"));
  const std::string whole = kDump;
  const auto half = write("half.log", whole.substr(0, whole.find("cp_comm_type")));
  EXPECT_THAT(message_of([&] { arguments_from_log(half); }), HasSubstr("truncated"));
}

TEST(ReadMegatronArguments, TellsTheFormByTheContent) {
  const auto json = write("a.txt", "\n {\"num_layers\": 4}");
  EXPECT_EQ(text_of(read_megatron_arguments(json), "num_layers"), "4");
  EXPECT_EQ(text_of(read_megatron_arguments(write("b.txt", kDump)), "bf16"), "True");
  const auto script = write("c.txt", "python x.py --num-layers 4");
  EXPECT_EQ(text_of(read_megatron_arguments(script), "num_layers"), "4");
  const auto prose = write("d.txt", "Nothing to see here.\n");
  EXPECT_THAT(message_of([&] { read_megatron_arguments(prose); }),
              HasSubstr("no Megatron-LM arguments"));
  EXPECT_THAT(message_of([&] { read_megatron_arguments("/nonexistent"); }),
              HasSubstr("no such file"));
  EXPECT_THAT(message_of([&] { read_megatron_arguments(testing::TempDir()); }),
              HasSubstr("not a regular file"));
}

TEST(ForEachLine, RefusesALineOverOneMebibyte) {
  const std::size_t limit = std::size_t{1} << 20;
  std::size_t seen = 0;
  const auto measure = [&](std::string_view line, std::int64_t) {
    seen = line.size();
    return true;
  };
  for_each_line(write("fits.txt", std::string(limit, 'x') + "\n"), measure);
  EXPECT_EQ(seen, limit);
  const auto longer = write("longer.txt", "first\n" + std::string(limit + 1, 'x') + "\n");
  EXPECT_THAT(message_of([&] { for_each_line(longer, measure); }),
              HasSubstr("line 2: more than 1 MiB in one line"));
}

TEST(ForEachLine, DropsLineEndsOfBothKindsAndKeepsAnUnfinishedLine) {
  std::vector<std::string> lines;
  for_each_line(write("ends.txt", "a\r\n\nb"), [&](std::string_view line, std::int64_t) {
    lines.emplace_back(line);
    return true;
  });
  EXPECT_THAT(lines, ElementsAre("a", "", "b"));
}

TEST(ListItems, ReadsPythonListsAndWords) {
  EXPECT_THAT(list_items("['p2p', 'a2a']"), ElementsAre("p2p", "a2a"));
  EXPECT_THAT(list_items("p2p a2a"), ElementsAre("p2p", "a2a"));
  EXPECT_THAT(list_items("[]"), IsEmpty());
}

}  // namespace
}  // namespace tidemark::megatron_arguments_test
