#include "kernels/cuda/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
T ValueAt(const ArgumentBlock& block, size_t index) {
  T value;
  std::memcpy(&value, block.bytes.data() + block.offsets[index], sizeof(value));
  return value;
}

LaunchSpec SomeSpec() {
  LaunchSpec spec;
  spec.tile_m = 8;
  spec.arguments = {
      {"x", PointerArgument{PointerRole::kX, true, false, 16}},
      {"m", IntegerArgument{32, Symbol::kM}},
      {"ldx", IntegerArgument{64, Symbol::kLdx}},
      {"n", IntegerArgument{32, int64_t{257}}},
      {"y", PointerArgument{PointerRole::kY, false, true, 16}},
      {"workspace", PointerArgument{PointerRole::kWorkspace, true, true, 256}},
  };
  return spec;
}

LaunchOperands SomeOperands() {
  LaunchOperands operands;
  operands.m = 5;
  operands.ldx = 4096;
  operands.ldy = 264;
  operands.x = 0x1000;
  operands.y = 0x2010;
  return operands;
}

TEST(MarshalArguments, PutsEachValueAtItsNaturalAlignment) {
  const auto block = MarshalArguments(SomeSpec(), SomeOperands());
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_THAT(block->offsets, ElementsAre(0, 8, 16, 24, 32, 40));
  EXPECT_EQ(block->bytes.size(), 48);
  EXPECT_EQ(ValueAt<uint64_t>(*block, 0), 0x1000);
  EXPECT_EQ(ValueAt<int32_t>(*block, 1), 5);
  EXPECT_EQ(ValueAt<int64_t>(*block, 2), 4096);
  EXPECT_EQ(ValueAt<int32_t>(*block, 3), 257);
  EXPECT_EQ(ValueAt<uint64_t>(*block, 4), 0x2010);
  EXPECT_EQ(ValueAt<uint64_t>(*block, 5), 0);  // needs no workspace
}

TEST(MarshalArguments, ParamsPointAtTheValues) {
  auto block = MarshalArguments(SomeSpec(), SomeOperands());
  ASSERT_TRUE(block.ok());
  const std::vector<void*> params = block->Params();
  ASSERT_EQ(params.size(), 6);
  EXPECT_EQ(*static_cast<int32_t*>(params[1]), 5);
}

TEST(MarshalArguments, NamesAMisalignedPointer) {
  LaunchOperands operands = SomeOperands();
  operands.y = 0x2008;
  const auto block = MarshalArguments(SomeSpec(), operands);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(block.status().message()),
              HasSubstr("argument 'y' at 0x2008 is not aligned to 16 bytes"));
}

TEST(MarshalArguments, NamesAMissingOperand) {
  LaunchOperands operands = SomeOperands();
  operands.x = 0;
  EXPECT_THAT(std::string(MarshalArguments(SomeSpec(), operands).status().message()),
              HasSubstr("'x' is null"));
  LaunchSpec split = SomeSpec();
  split.split_k = 2;
  split.ticket_bytes_per_m_tile = 4;
  split.partial_bytes_per_m_tile = 1024;
  EXPECT_THAT(std::string(MarshalArguments(split, SomeOperands()).status().message()),
              HasSubstr("'workspace' is null"));
}

TEST(MarshalArguments, RefusesMoreRowsThanTheSpecServes) {
  LaunchSpec spec = SomeSpec();
  spec.max_m = 4;
  EXPECT_THAT(std::string(MarshalArguments(spec, SomeOperands()).status().message()), HasSubstr("M = 5"));
  LaunchOperands negative = SomeOperands();
  negative.m = -1;
  EXPECT_FALSE(MarshalArguments(SomeSpec(), negative).ok());
}

TEST(MarshalArguments, RefusesAValueThatDoesNotFit) {
  LaunchSpec spec = SomeSpec();
  spec.arguments[3].kind = IntegerArgument{32, int64_t{1} << 31};
  EXPECT_THAT(std::string(MarshalArguments(spec, SomeOperands()).status().message()), HasSubstr("'n'"));
}

LaunchSpec SomeSpecWithTensorMaps() {
  LaunchSpec spec = SomeSpec();
  spec.arguments = {
      {"m", IntegerArgument{32, Symbol::kM}},
      {"x", TensorMapArgument{PointerRole::kX, TensorElement::kBf16, 4000, 0, 0, 64, 8, 128}},
      {"weights", TensorMapArgument{PointerRole::kWeights, TensorElement::kU32, 8064, 20, 32256, 256, 4, 0}},
      {"n", IntegerArgument{32, int64_t{257}}},
  };
  return spec;
}

LaunchOperands OperandsForTensorMaps() {
  LaunchOperands operands = SomeOperands();
  operands.weights = 0x4000;
  return operands;
}

std::string RefusalOfTensorMaps(const LaunchOperands& operands) {
  const auto block = MarshalArguments(SomeSpecWithTensorMaps(), operands);
  EXPECT_EQ(block.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(block.status().message());
}

TEST(MarshalArguments, LeavesRoomForTensorMapsAtMultiplesOf64) {
  const auto block = MarshalArguments(SomeSpecWithTensorMaps(), OperandsForTensorMaps());
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_THAT(block->offsets, ElementsAre(0, 64, 192, 320));
  EXPECT_EQ(block->bytes.size(), 324);
  EXPECT_EQ(ValueAt<int32_t>(*block, 3), 257);
  ASSERT_EQ(block->tensor_maps.size(), 2);
  EXPECT_EQ(block->tensor_maps[0].offset, 64);
  EXPECT_EQ(block->tensor_maps[1].offset, 192);
}

TEST(MarshalArguments, TensorMapTakesItsRowsAndPitchFromTheLaunchWhereTheSpecHasNone) {
  const auto block = MarshalArguments(SomeSpecWithTensorMaps(), OperandsForTensorMaps());
  ASSERT_TRUE(block.ok()) << block.status();
  ASSERT_EQ(block->tensor_maps.size(), 2);
  const TensorMapShape& x = block->tensor_maps[0].shape;
  EXPECT_EQ(x.address, 0x1000);
  EXPECT_EQ(x.element, TensorElement::kBf16);
  EXPECT_EQ(x.columns, 4000);
  EXPECT_EQ(x.rows, 5);
  EXPECT_EQ(x.row_pitch_bytes, 8192);
  EXPECT_EQ(x.box_columns, 64);
  EXPECT_EQ(x.box_rows, 8);
  EXPECT_EQ(x.swizzle_bytes, 128);
  const TensorMapShape& weights = block->tensor_maps[1].shape;
  EXPECT_EQ(weights.address, 0x4000);
  EXPECT_EQ(weights.element, TensorElement::kU32);
  EXPECT_EQ(weights.columns, 8064);
  EXPECT_EQ(weights.rows, 20);
  EXPECT_EQ(weights.row_pitch_bytes, 32256);
  EXPECT_EQ(weights.swizzle_bytes, 0);
}

TEST(MarshalArguments, RefusesAnLdxThatNoTensorMapCanHave) {
  LaunchOperands operands = OperandsForTensorMaps();
  operands.ldx = 4004;
  EXPECT_THAT(RefusalOfTensorMaps(operands), HasSubstr("ldx = 4004 is not a multiple of 8"));
  operands.ldx = 3992;
  EXPECT_THAT(RefusalOfTensorMaps(operands), HasSubstr("ldx = 3992"));
  operands.ldx = 4000;
  EXPECT_TRUE(MarshalArguments(SomeSpecWithTensorMaps(), operands).ok());
}

TEST(MarshalArguments, NamesTheTensorMapWhosePointerIsNullOrMisaligned) {
  LaunchOperands operands = OperandsForTensorMaps();
  operands.weights = 0;
  EXPECT_THAT(RefusalOfTensorMaps(operands), HasSubstr("argument 'weights' at 0x0"));
  operands.weights = 0x4008;
  EXPECT_THAT(RefusalOfTensorMaps(operands), HasSubstr("argument 'weights' at 0x4008"));
}

}  // namespace
}  // namespace qgemm
