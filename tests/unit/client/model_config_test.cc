#include "client/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "q_proj 4096x5376 x62", with " bias" and " fused" where they are.
std::vector<std::string> Described(const absl::StatusOr<std::vector<LinearLayer>>& layers) {
  if (!layers.ok()) return {std::string(layers.status().message())};
  std::vector<std::string> lines;
  for (const LinearLayer& layer : *layers) {
    lines.push_back(absl::StrCat(layer.name, " ", layer.n, "x", layer.k, " x", layer.count,
                                 layer.bias ? " bias" : "", layer.fused ? " fused" : ""));
  }
  return lines;
}

std::vector<std::string> DescribedFile(const std::string& name) {
  return Described(ReadModelConfig(absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/", name, "-config.json")));
}

std::string ErrorOf(const std::string& text) {
  const auto layers = ParseModelConfig(text);
  EXPECT_TRUE(absl::IsInvalidArgument(layers.status())) << layers.status();
  return std::string(layers.status().message());
}

// A small model's config with one more entry, which may repeat (and so replace) an earlier one.
std::string SmallConfig(const std::string& model_type, const std::string& entries = "") {
  return absl::StrCat(R"({"model_type": ")", model_type,
                      R"(", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000)",
                      entries.empty() ? "" : ", ", entries, "}");
}

TEST(ModelConfig, Gemma3) {
  EXPECT_THAT(DescribedFile("gemma-3-27b-text"),
              ElementsAre("q_proj 4096x5376 x62", "k_proj 2048x5376 x62", "v_proj 2048x5376 x62",
                          "qkv_proj 8192x5376 x62 fused", "o_proj 5376x4096 x62", "gate_proj 21504x5376 x62",
                          "up_proj 21504x5376 x62", "gate_up_proj 43008x5376 x62 fused",
                          "down_proj 5376x21504 x62", "lm_head 262208x5376 x1"));
}

TEST(ModelConfig, Llama70B) {
  EXPECT_THAT(DescribedFile("llama-3.1-70b"),
              ElementsAre("q_proj 8192x8192 x80", "k_proj 1024x8192 x80", "v_proj 1024x8192 x80",
                          "qkv_proj 10240x8192 x80 fused", "o_proj 8192x8192 x80", "gate_proj 28672x8192 x80",
                          "up_proj 28672x8192 x80", "gate_up_proj 57344x8192 x80 fused",
                          "down_proj 8192x28672 x80", "lm_head 128256x8192 x1"));
}

TEST(ModelConfig, Llama8B) {
  EXPECT_THAT(DescribedFile("llama-3.1-8b"),
              ElementsAre("q_proj 4096x4096 x32", "k_proj 1024x4096 x32", "v_proj 1024x4096 x32",
                          "qkv_proj 6144x4096 x32 fused", "o_proj 4096x4096 x32", "gate_proj 14336x4096 x32",
                          "up_proj 14336x4096 x32", "gate_up_proj 28672x4096 x32 fused",
                          "down_proj 4096x14336 x32", "lm_head 128256x4096 x1"));
}

TEST(ModelConfig, Qwen3) {
  EXPECT_THAT(DescribedFile("qwen3-8b"),
              ElementsAre("q_proj 4096x4096 x36", "k_proj 1024x4096 x36", "v_proj 1024x4096 x36",
                          "qkv_proj 6144x4096 x36 fused", "o_proj 4096x4096 x36", "gate_proj 12288x4096 x36",
                          "up_proj 12288x4096 x36", "gate_up_proj 24576x4096 x36 fused",
                          "down_proj 4096x12288 x36", "lm_head 151936x4096 x1"));
}

TEST(ModelConfig, EqualShapesAreOneProblem) {
  const auto layers =
      ReadModelConfig(absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/llama-3.1-70b-config.json"));
  ASSERT_TRUE(layers.ok()) << layers.status();
  std::vector<std::string> groups;
  for (const LayerGroup& group : GroupLayers(*layers)) {
    groups.push_back(absl::StrCat(group.Names(), " ", group.Variants(), " ", group.Count()));
  }
  EXPECT_THAT(groups, ElementsAre("q_proj,o_proj separate 160", "k_proj,v_proj separate 160",
                                  "qkv_proj fused 80", "gate_proj,up_proj separate 160",
                                  "gate_up_proj fused 80", "down_proj separate 80", "lm_head separate 1"));
}

TEST(ModelConfig, SeparateAndFusedLayersOfOneShapeAreBoth) {
  const std::vector<LayerGroup> groups = GroupLayers(
      {{"a", 64, 64, 2, false, false}, {"b", 64, 64, 3, false, true}, {"c", 64, 64, 5, true, false}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].Names(), "a,b");
  EXPECT_EQ(groups[0].Variants(), "both");
  EXPECT_EQ(groups[0].Count(), 5);
  EXPECT_EQ(groups[1].Names(), "c");  // a bias is another problem
}

TEST(ModelConfig, HeadDimDefaultsByFamily) {
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("llama")))[0], "q_proj 256x256 x2");
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("mistral", R"("head_dim": null)")))[0],
            "q_proj 256x256 x2");
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("mistral", R"("head_dim": 32)")))[0], "q_proj 128x256 x2");
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("qwen3")))[0], "q_proj 512x256 x2");
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("gemma2")))[0], "q_proj 1024x256 x2");
}

TEST(ModelConfig, KeyValueHeadsDefaultToAttentionHeads) {
  EXPECT_EQ(Described(ParseModelConfig(SmallConfig("llama", R"("num_key_value_heads": null)")))[1],
            "k_proj 256x256 x2");
}

TEST(ModelConfig, BiasesFollowTheFamily) {
  const auto qwen2 = Described(ParseModelConfig(SmallConfig("qwen2")));
  EXPECT_EQ(qwen2[0], "q_proj 256x256 x2 bias");
  EXPECT_EQ(qwen2[3], "qkv_proj 512x256 x2 bias fused");
  EXPECT_EQ(qwen2[4], "o_proj 256x256 x2");
  const auto llama =
      Described(ParseModelConfig(SmallConfig("llama", R"("attention_bias": true, "mlp_bias": true)")));
  EXPECT_EQ(llama[4], "o_proj 256x256 x2 bias");
  EXPECT_EQ(llama[8], "down_proj 256x512 x2 bias");
  EXPECT_EQ(llama[9], "lm_head 1000x256 x1");
}

TEST(ModelConfig, ReadsTheTextConfigOfAMultimodalModel) {
  // What gemma3's files leave out, its configuration class adds.
  const auto layers = Described(ParseModelConfig(R"({
    "model_type": "gemma3", "vision_config": {"hidden_size": 1152},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                    "num_hidden_layers": 34}})"));
  ASSERT_EQ(layers.size(), 10u) << layers[0];
  EXPECT_EQ(layers[0], "q_proj 2048x2560 x34");
  EXPECT_EQ(layers[1], "k_proj 1024x2560 x34");
  EXPECT_EQ(layers[9], "lm_head 262208x2560 x1");
}

// The activation of the fused layer, or why there is none.
std::string GateOf(const std::string& config) {
  const auto layers = ParseModelConfig(config, /*tp=*/1, /*fuse_gate_up=*/true);
  if (!layers.ok()) return std::string(layers.status().message());
  std::string gates;
  for (const LinearLayer& layer : *layers) {
    if (layer.gate != Activation::kNone) {
      absl::StrAppend(&gates, layer.name, " ", layer.n, " ", ActivationName(layer.gate));
    }
  }
  return gates;
}

TEST(ModelConfig, GateAndUpAreFusedWithTheModelsActivation) {
  EXPECT_EQ(GateOf(SmallConfig("llama")), "gate_up_proj 1024 silu");
  EXPECT_EQ(GateOf(SmallConfig("llama", R"("hidden_act": "relu")")), "gate_up_proj 1024 relu");
  EXPECT_EQ(GateOf(SmallConfig("qwen2", R"("hidden_act": "silu")")), "gate_up_proj 1024 silu");
  EXPECT_EQ(GateOf(SmallConfig("gemma2")), "gate_up_proj 1024 gelu_tanh");
  // Gemma's files have the historic hidden_act beside hidden_activation, which alone counts.
  EXPECT_EQ(GateOf(SmallConfig("gemma", R"("hidden_act": "gelu", "hidden_activation": null)")),
            "gate_up_proj 1024 gelu_tanh");
  EXPECT_EQ(GateOf(SmallConfig("llama", R"("hidden_act": "gelu")")),
            "hidden_act is \"gelu\": gate and up can be fused with silu, gelu_pytorch_tanh or relu");
  EXPECT_EQ(GateOf(SmallConfig("gemma3", R"("hidden_activation": 7)")),
            "hidden_activation is 7: gate and up can be fused with silu, gelu_pytorch_tanh or relu");
  EXPECT_EQ(GateOf(SmallConfig("gemma3_text", R"("head_dim": 64, "num_attention_heads": 4)")),
            "gate_up_proj 1024 gelu_tanh");
  // Experts have gates, too.
  EXPECT_EQ(GateOf(SmallConfig("mixtral", R"("num_local_experts": 8)")), "expert_gate_up_proj 1024 silu");
  // Nobody asked.
  EXPECT_TRUE(ParseModelConfig(SmallConfig("llama", R"("hidden_act": "gelu")")).ok());
}

TEST(ModelConfig, AGatedLayerIsAProblemOfItsOwn) {
  const std::vector<LayerGroup> groups =
      GroupLayers({{"a", 64, 64, 2, false, true}, {"b", 64, 64, 3, false, true, Activation::kSilu}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].Names(), "b");
}

TEST(ModelConfig, NamesTheKnownModelTypes) {
  const auto known =
      AllOf(HasSubstr("llama"), HasSubstr("mistral"), HasSubstr("qwen2"), HasSubstr("gemma3_text"));
  EXPECT_THAT(ErrorOf(SmallConfig("gpt_neox")), AllOf(HasSubstr("model_type is \"gpt_neox\""), known));
  EXPECT_THAT(ErrorOf(SmallConfig("deepseek_v3")), AllOf(HasSubstr("model_type is \"deepseek_v3\""), known));
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("num_local_experts": 8)")),
              AllOf(HasSubstr("num_local_experts is 8"), known));
  EXPECT_THAT(ErrorOf(R"({"hidden_size": 8})"), AllOf(HasSubstr("model_type is missing"), known));
  EXPECT_THAT(ErrorOf(R"({"model_type": 7})"), HasSubstr("model_type is 7"));
}

TEST(ModelConfig, EveryDeviceHasItsPartOfEachLayer) {
  const std::string path = absl::StrCat(QGEMM_SOURCE_DIR, "/deploy/models/llama-3.1-70b-config.json");
  EXPECT_THAT(Described(ReadModelConfig(path, 8)),
              ElementsAre("q_proj 1024x8192 x80", "k_proj 128x8192 x80", "v_proj 128x8192 x80",
                          "qkv_proj 1280x8192 x80 fused", "o_proj 8192x1024 x80", "gate_proj 3584x8192 x80",
                          "up_proj 3584x8192 x80", "gate_up_proj 7168x8192 x80 fused",
                          "down_proj 8192x3584 x80", "lm_head 16032x8192 x1"));
}

TEST(ModelConfig, KeyValueHeadsAreRepeatedWhereDevicesAreMore) {
  const auto layers = Described(ParseModelConfig(SmallConfig("llama"), 4));
  EXPECT_EQ(layers[0], "q_proj 64x256 x2");
  EXPECT_EQ(layers[1], "k_proj 64x256 x2");
  EXPECT_EQ(layers[3], "qkv_proj 192x256 x2 fused");
  EXPECT_EQ(layers[4], "o_proj 256x64 x2");
  EXPECT_EQ(layers[9], "lm_head 256x256 x1");  // 1000 padded to 1024
}

TEST(ModelConfig, ABiasAfterASumOverDevicesIsNoKernels) {
  const std::string config = SmallConfig("llama", R"("attention_bias": true, "mlp_bias": true)");
  const auto layers = Described(ParseModelConfig(config, 2));
  EXPECT_EQ(layers[0], "q_proj 128x256 x2 bias");
  EXPECT_EQ(layers[4], "o_proj 256x128 x2");
  EXPECT_EQ(layers[5], "gate_proj 256x256 x2 bias");
  EXPECT_EQ(layers[8], "down_proj 256x256 x2");
}

TEST(ModelConfig, NamesWhatCannotBeSplit) {
  const auto error = [](const std::string& entries, int tp) {
    return std::string(ParseModelConfig(SmallConfig("llama", entries), tp).status().message());
  };
  EXPECT_EQ(error("", 3), "num_attention_heads is 4: allowed with --tp 3 are multiples of 3");
  EXPECT_EQ(error(R"("num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 8)", 6),
            "num_key_value_heads is 4: allowed with --tp 6 are multiples of 6");
  EXPECT_EQ(error(R"("intermediate_size": 514)", 4),
            "intermediate_size is 514: allowed with --tp 4 are multiples of 4");
  EXPECT_THAT(error("", 0), HasSubstr("tp 0 is not allowed: use 1 to 1024"));
}

TEST(ModelConfig, ExpertsOfMixtralAreInEveryLayer) {
  const std::string config = SmallConfig("mixtral", R"("num_local_experts": 8)");
  EXPECT_THAT(Described(ParseModelConfig(config)),
              ElementsAre("q_proj 256x256 x2", "k_proj 128x256 x2", "v_proj 128x256 x2",
                          "qkv_proj 512x256 x2 fused", "o_proj 256x256 x2", "expert_gate_proj 512x256 x16",
                          "expert_up_proj 512x256 x16", "expert_gate_up_proj 1024x256 x16 fused",
                          "expert_down_proj 256x512 x16", "lm_head 1000x256 x1"));
  EXPECT_EQ(Described(ParseModelConfig(config, 2))[5], "expert_gate_proj 256x256 x16");
  EXPECT_THAT(ErrorOf(SmallConfig("mixtral")), HasSubstr("num_experts is missing"));
}

TEST(ModelConfig, SparseLayersStandBetweenDenseOnes) {
  // Layers 1, 3 and 5 would be sparse; 3 is excepted, and 2 is dense anyway.
  const std::string config = SmallConfig("qwen2_moe", R"("num_hidden_layers": 6, "num_experts": 10,
      "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128, "decoder_sparse_step": 2,
      "mlp_only_layers": [2, 3])");
  const auto layers = Described(ParseModelConfig(config));
  ASSERT_EQ(layers.size(), 18u) << layers[0];
  EXPECT_EQ(layers[5], "gate_proj 512x256 x4");
  EXPECT_EQ(layers[8], "down_proj 256x512 x4");
  EXPECT_EQ(layers[9], "expert_gate_proj 64x256 x20");
  EXPECT_EQ(layers[12], "expert_down_proj 256x64 x20");
  EXPECT_EQ(layers[13], "shared_expert_gate_proj 128x256 x2");
  EXPECT_EQ(layers[16], "shared_expert_down_proj 256x128 x2");
  EXPECT_THAT(ErrorOf(SmallConfig("qwen2_moe", R"("mlp_only_layers": 3)")),
              HasSubstr("mlp_only_layers is 3: a list of layer numbers is needed"));
}

TEST(ModelConfig, Qwen3MoeHasExpertsAlone) {
  const auto layers = Described(ParseModelConfig(
      SmallConfig("qwen3_moe", R"("num_experts": 128, "moe_intermediate_size": 96, "head_dim": 128,
                      "mlp_only_layers": [])")));
  ASSERT_EQ(layers.size(), 10u) << layers[0];
  EXPECT_EQ(layers[0], "q_proj 512x256 x2");
  EXPECT_EQ(layers[5], "expert_gate_proj 96x256 x256");
}

TEST(ModelConfig, NamesTheFieldThatIsWrong) {
  EXPECT_THAT(ErrorOf(R"({"model_type": "llama"})"), HasSubstr("hidden_size is missing"));
  for (const char* value : {"0", "-1", "2147483648", "1e3", "4096.5", "\"4096\"", "[1]", "true", "1e99"}) {
    EXPECT_THAT(ErrorOf(SmallConfig("llama", absl::StrCat(R"("hidden_size": )", value))),
                AllOf(HasSubstr("hidden_size is "), HasSubstr("1 to 2147483647")))
        << value;
  }
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("num_key_value_heads": 3)")),
              HasSubstr("num_key_value_heads is 3: allowed are divisors of num_attention_heads, 4"));
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("num_attention_heads": 6)")),
              HasSubstr("hidden_size, 256, is no multiple of num_attention_heads, 6"));
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("head_dim": 2147483647)")), HasSubstr("the shape of q_proj"));
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("intermediate_size": 2147483647)")),
              HasSubstr("the shape of gate_up_proj"));
  EXPECT_THAT(ErrorOf(SmallConfig("llama", R"("attention_bias": "yes")")),
              HasSubstr("attention_bias is \"yes\": allowed are true and false"));
}

TEST(ModelConfig, RefusesWhatIsNoConfig) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("not a well-formed JSON document"));
  EXPECT_THAT(ErrorOf("{\"hidden_size\": 12"), HasSubstr("not a well-formed JSON document"));
  EXPECT_THAT(ErrorOf("[1, 2]"), HasSubstr("an object is needed"));
  EXPECT_THAT(ErrorOf(R"({"text_config": 3})"), HasSubstr("text_config is 3"));
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("not a well-formed JSON document"));
}

TEST(ModelConfig, NamesTheFileThatCannotBeRead) {
  const auto missing = ReadModelConfig("/nonexistent/config.json");
  EXPECT_TRUE(absl::IsNotFound(missing.status())) << missing.status();
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/config.json"));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadModelConfig("/").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadModelConfig("/dev/zero").status()));
}

}  // namespace
}  // namespace qgemm
