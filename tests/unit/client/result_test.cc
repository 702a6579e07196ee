#include "client/qgemmctl/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/qgemmctl/json_output.h"

namespace qgemm {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kKeys[] = {
    "layers",           "n",         "k",          "m_bucket",      "format",       "group_size", "act",
    "act_quantization", "out",       "zero",       "scale",         "scale_levels", "epilogue",   "target",
    "source",           "cached",    "stale",      "config",        "split_k",      "reduction",  "time_us",
    "predicted_us",     "spread_us", "confidence", "kernel_sha256", "candidates",   "verified",   "timed",
    "rejected"};

std::vector<std::string> KeysOf(const nlohmann::ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& entry : json.items()) keys.push_back(entry.key());
  return keys;
}

Result MeasuredResult() {
  Problem problem{.n = 5376, .k = 4096};
  Result result = ResultFor({.problem = problem, .layers = "o_proj", .variant = "separate", .count = 62}, 16);
  v1::Pick pick;
  *pick.mutable_problem() = result.problem;
  pick.set_m_bucket(16);
  pick.set_target("h200");
  pick.set_source(v1::PICK_SOURCE_MEASURED);
  pick.set_config("mma_t2_r2_w4x2_s4_b2_slice_post");
  pick.set_split_k(4);
  pick.set_reduction(v1::REDUCTION_WORKSPACE);
  pick.set_time_us(9.3125);
  pick.set_predicted_us(8.5);
  pick.set_spread_us(0.125);
  pick.set_confidence(v1::CONFIDENCE_HIGH);
  pick.mutable_kernel()->set_sha256(std::string(64, 'a'));
  pick.set_candidates(96);
  pick.set_verified(90);
  pick.set_timed(89);
  pick.set_rejected(7);
  result.pick = pick;
  return result;
}

TEST(ResultJson, HasExactlyTheKeysThatScriptsRelyOn) {
  EXPECT_THAT(KeysOf(ResultToJson(MeasuredResult())), ElementsAreArray(kKeys));
}

TEST(ResultJson, NamesEveryReduction) {
  Result result = MeasuredResult();
  for (const auto& [reduction, word] : {std::pair{v1::REDUCTION_NONE, "none"},
                                        {v1::REDUCTION_WORKSPACE, "workspace"},
                                        {v1::REDUCTION_CLUSTER, "cluster"}}) {
    result.pick->set_reduction(reduction);
    EXPECT_EQ(ResultToJson(result)["reduction"], word);
  }
}

TEST(ResultJson, HoldsThePick) {
  EXPECT_EQ(ResultToJson(MeasuredResult()),
            nlohmann::ordered_json::parse(R"({"layers": "o_proj", "n": 5376, "k": 4096, "m_bucket": 16,
              "format": "int4", "group_size": 128, "act": "bf16", "act_quantization": "none", "out": "bf16",
              "zero": "none", "scale": "bf16", "scale_levels": 1, "epilogue": "none", "target": "h200", "source": "MEASURED", "cached": false, "stale": false,
              "config": "mma_t2_r2_w4x2_s4_b2_slice_post", "split_k": 4, "reduction": "workspace",
              "time_us": 9.313, "predicted_us": 8.5, "spread_us": 0.125, "confidence": "high",
              "kernel_sha256": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
              "candidates": 96, "verified": 90, "timed": 89, "rejected": 7})"));
}

// A result of a two-level format with everything in its epilogue.
Result EverythingResult() {
  Problem problem{.n = 64, .k = 256};
  problem.signature.format = {6, 16, ScalarType::kFp16, ZeroPoint::kFloat, 2};
  problem.signature.out = ScalarType::kFp32;
  problem.signature.epilogue = {
      .bias = true, .activation = Activation::kGeluTanh, .gated = true, .residual = true};
  return ResultFor({.problem = problem}, 1);
}

TEST(ResultJson, HoldsFormatTypesAndEpilogue) {
  const auto json = ResultToJson(EverythingResult());
  EXPECT_EQ(json["format"], "int6");
  EXPECT_EQ(json["group_size"], 16);
  EXPECT_EQ(json["out"], "fp32");
  EXPECT_EQ(json["zero"], "float");
  EXPECT_EQ(json["scale"], "fp16");
  EXPECT_EQ(json["scale_levels"], 2);
  EXPECT_EQ(json["epilogue"], "bias+gelu_tanh+gated+residual");
}

TEST(ResultJson, AnOldDaemonsAnswerHasOneScaleLevelAndNoActivation) {
  Result result = MeasuredResult();
  result.problem.mutable_format()->clear_scale_levels();
  result.problem.mutable_epilogue()->clear_activation();
  result.problem.clear_act_quantization();
  const auto json = ResultToJson(result);
  EXPECT_EQ(json["scale_levels"], 1);
  EXPECT_EQ(json["epilogue"], "none");
  EXPECT_EQ(json["act_quantization"], "none");
}

TEST(ResultJson, Int8ActivationsAreNamed) {
  Problem problem{.n = 64, .k = 256};
  problem.signature.quantization = ActivationQuantization::kInt8;
  const Result result = ResultFor({.problem = problem}, 8);
  EXPECT_EQ(ResultToJson(result)["act"], "bf16");
  EXPECT_EQ(ResultToJson(result)["act_quantization"], "int8");
  EXPECT_EQ(ResultName(result), "64x256 int4-g128 bf16 as int8 M <= 8");
  EXPECT_THAT(ResultsTable({result}), StartsWith("int4-g128 bf16 as int8"));
}

TEST(ResultName, SaysWhatIsNotAsItMostlyIs) {
  EXPECT_EQ(ResultName(EverythingResult()),
            "64x256 int6-g16 bf16 out fp32 scale fp16x2 zfloat bias+gelu_tanh+gated+residual M <= 1");
  Problem problem{.n = 64, .k = 256};
  problem.signature.format = {8, 0, ScalarType::kFp16, ZeroPoint::kInteger};
  EXPECT_EQ(ResultName(ResultFor({.problem = problem}, 8)),
            "64x256 int8-channel bf16 scale fp16 zint M <= 8");
  EXPECT_EQ(ResultName(MeasuredResult()), "5376x4096 int4-g128 bf16 M <= 16");
}

TEST(ResultJson, AModelPickHasNoTime) {
  Result result = MeasuredResult();
  result.pick->set_source(v1::PICK_SOURCE_MODEL);
  result.pick->clear_time_us();
  result.pick->clear_spread_us();
  result.pick->set_confidence(v1::CONFIDENCE_UNSPECIFIED);
  const auto json = ResultToJson(result);
  EXPECT_EQ(json["source"], "MODEL");
  EXPECT_TRUE(json["time_us"].is_null());
  EXPECT_TRUE(json["spread_us"].is_null());
  EXPECT_EQ(json["confidence"], "low");
  EXPECT_THAT(KeysOf(json), ElementsAreArray(kKeys));
}

TEST(ResultJson, AFailureKeepsTheKeysAndAddsTheError) {
  Result result = MeasuredResult();
  result.pick.reset();
  result.error = "no candidate is left";
  const auto json = ResultToJson(result);
  std::vector<std::string> keys(std::begin(kKeys), std::end(kKeys));
  keys.push_back("error");
  EXPECT_THAT(KeysOf(json), ElementsAreArray(keys));
  EXPECT_EQ(json["error"], "no candidate is left");
  EXPECT_EQ(json["n"], 5376);
  EXPECT_TRUE(json["config"].is_null());
}

TEST(ResultsTable, HasUnitsAndOneLinePerResult) {
  EXPECT_EQ(
      ResultsTable({MeasuredResult()}),
      "int4-g128 bf16, target h200\n"
      "layers  variant   count     N     K  M <=  source    time us  spread us  predicted us  confidence  "
      "config                           split  reduction  cached  kernel\n"
      "o_proj  separate     62  5376  4096    16  MEASURED     9.31       0.12          8.50  high        "
      "mma_t2_r2_w4x2_s4_b2_slice_post      4  workspace  no      aaaaaaaaaaaa\n");
}

TEST(ResultsTable, FormatAndTargetAreColumnsWhereTheyDiffer) {
  Result other = MeasuredResult();
  other.problem.mutable_epilogue()->set_bias(true);
  other.pick->set_target("a100");
  const std::string table = ResultsTable({MeasuredResult(), other});
  EXPECT_THAT(table,
              StartsWith("layers  variant   count     N     K  M <=  format               target  source"));
  EXPECT_THAT(table, HasSubstr("16  int4-g128 bf16 bias  a100    MEASURED"));
}

TEST(ResultsTable, TheLastBucketIsOpenEnded) {
  Result result = MeasuredResult();
  result.m_bucket = 4096;
  EXPECT_THAT(ResultsTable({result}), HasSubstr("  4096+  MEASURED"));
  EXPECT_THAT(ResultName(result), HasSubstr("M <= 4096+"));
}

TEST(ResultsTable, AShapeOfTheCommandLineNeedsNoLayerColumns) {
  Result result = MeasuredResult();
  result.layers = result.variant = "";
  result.count = 0;
  result.stale = true;
  const std::string table = ResultsTable({result});
  EXPECT_THAT(table, Not(HasSubstr("layers")));
  EXPECT_THAT(table, Not(HasSubstr("count")));
  EXPECT_THAT(table, HasSubstr("MEASURED (stale)"));
}

TEST(JsonOutput, LaunchSpecNumbersAreNumbers) {
  v1::LaunchSpec spec;
  spec.set_entry("qgemm_mma");
  spec.set_max_m(int64_t{1} << 40);
  auto* x = spec.add_arguments();
  x->set_name("x");
  x->mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_X);
  x->mutable_pointer()->set_read(true);
  x->mutable_pointer()->set_alignment(16);
  auto* m = spec.add_arguments();
  m->set_name("m");
  m->mutable_i32()->set_symbol(v1::KernelArgument::SYMBOL_M);
  auto* k = spec.add_arguments();
  k->set_name("k");
  k->mutable_i64()->set_constant(4096);
  const auto json = LaunchSpecToJson(spec);
  EXPECT_EQ(json["max_m"], int64_t{1} << 40);
  EXPECT_EQ(json["arguments"], nlohmann::ordered_json::parse(R"([
    {"kind": "pointer", "role": "x", "read": true, "written": false, "alignment": 16, "name": "x"},
    {"kind": "i32", "symbol": "m", "name": "m"},
    {"kind": "i64", "constant": 4096, "name": "k"}])"));
}

TEST(JsonOutput, LaunchSpecHasClusterAndTensorMaps) {
  v1::LaunchSpec spec;
  EXPECT_EQ(LaunchSpecToJson(spec)["cluster_z"], 1);
  spec.set_cluster_z(4);
  auto* weights = spec.add_arguments();
  weights->set_name("weights");
  auto* map = weights->mutable_tensor_map();
  map->set_role(v1::KernelArgument::POINTER_ROLE_WEIGHTS);
  map->set_element(v1::KernelArgument::TensorMap::ELEMENT_U32);
  map->set_columns(8192);
  map->set_rows(336);
  map->set_row_pitch_bytes(32768);
  map->set_box_columns(256);
  map->set_box_rows(4);
  map->set_swizzle_bytes(128);
  const auto json = LaunchSpecToJson(spec);
  EXPECT_EQ(json["cluster_z"], 4);
  EXPECT_EQ(json["arguments"], nlohmann::ordered_json::parse(R"([
    {"kind": "tensor_map", "role": "weights", "element": "u32", "columns": 8192, "rows": 336,
     "row_pitch_bytes": 32768, "box_columns": 256, "box_rows": 4, "swizzle_bytes": 128, "name": "weights"}])"));
}

TEST(JsonOutput, NamesTheRolesSymbolsAndElementsOfEveryFormat) {
  v1::LaunchSpec spec;
  spec.add_arguments()->mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_STEPS);
  spec.add_arguments()->mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_RESIDUAL);
  spec.add_arguments()->mutable_i64()->set_symbol(v1::KernelArgument::SYMBOL_LDR);
  spec.add_arguments()->mutable_tensor_map()->set_element(v1::KernelArgument::TensorMap::ELEMENT_U64);
  const auto json = LaunchSpecToJson(spec);
  EXPECT_EQ(json["arguments"][0]["role"], "steps");
  EXPECT_EQ(json["arguments"][1]["role"], "residual");
  EXPECT_EQ(json["arguments"][2]["symbol"], "ldr");
  EXPECT_EQ(json["arguments"][3]["element"], "u64");
}

TEST(JsonOutput, BytesThatAreNoTextDoNotFail) {
  const std::string text = JsonText(ErrorToJson(absl::NotFoundError("kernel \xFF is not there")));
  EXPECT_EQ(nlohmann::json::parse(text)["error"]["code"], "NOT_FOUND");
}

}  // namespace
}  // namespace qgemm
