#include "server/launch_spec_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qgemm {
namespace {

using ::testing::HasSubstr;

LaunchSpec SomeSpec() {
  LaunchSpec spec;
  spec.layout_id = "layout";
  spec.entry = "kernel";
  spec.tile_m = 8;
  spec.tile_n = 64;
  spec.grid_n = 84;
  spec.split_k = 4;
  spec.block_threads = 256;
  spec.dynamic_smem_bytes = 100'000;
  spec.max_m = 8;
  spec.ticket_bytes_per_m_tile = 336;
  spec.partial_bytes_per_m_tile = 688'128;
  for (PointerRole role : {PointerRole::kX, PointerRole::kWeights, PointerRole::kScales, PointerRole::kZeros,
                           PointerRole::kBias, PointerRole::kY, PointerRole::kWorkspace}) {
    spec.arguments.push_back({"pointer", PointerArgument{role, true, role == PointerRole::kY, 32}});
  }
  spec.arguments.push_back({"m", IntegerArgument{32, Symbol::kM}});
  spec.arguments.push_back({"ldx", IntegerArgument{64, Symbol::kLdx}});
  spec.arguments.push_back({"ldy", IntegerArgument{64, Symbol::kLdy}});
  spec.arguments.push_back({"n", IntegerArgument{32, int64_t{5376}}});
  spec.arguments.push_back({"big", IntegerArgument{64, int64_t{1} << 40}});
  return spec;
}

TEST(LaunchSpecProto, SurvivesBothWays) {
  const v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
  const auto spec = LaunchSpecFromProto(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  // Same fields one by one through the message; the arguments by their meaning.
  EXPECT_EQ(LaunchSpecToProto(*spec).SerializeAsString(), proto.SerializeAsString());
  EXPECT_EQ(spec->entry, "kernel");
  EXPECT_EQ(spec->grid_n, 84);
  EXPECT_EQ(spec->max_m, 8);
  EXPECT_EQ(spec->WorkspaceBytes(8), SomeSpec().WorkspaceBytes(8));
  ASSERT_EQ(spec->arguments.size(), 12);
  const auto& y = std::get<PointerArgument>(spec->arguments[5].kind);
  EXPECT_EQ(y.role, PointerRole::kY);
  EXPECT_TRUE(y.written);
  EXPECT_EQ(y.alignment, 32);
  const auto& ldx = std::get<IntegerArgument>(spec->arguments[8].kind);
  EXPECT_EQ(ldx.bits, 64);
  EXPECT_EQ(std::get<Symbol>(ldx.value), Symbol::kLdx);
  EXPECT_EQ(std::get<int64_t>(std::get<IntegerArgument>(spec->arguments[11].kind).value), int64_t{1} << 40);
}

LaunchSpec SomeSpecWithTensorMaps() {
  LaunchSpec spec = SomeSpec();
  spec.cluster_z = 4;
  spec.arguments = {
      {"x", TensorMapArgument{PointerRole::kX, TensorElement::kBf16, 4096, 0, 0, 64, 32, 128}},
      {"x16", TensorMapArgument{PointerRole::kX, TensorElement::kFp16, 4096, 0, 0, 64, 32, 128}},
      {"weights", TensorMapArgument{PointerRole::kWeights, TensorElement::kU32, 8192, 336, 32768, 256, 4, 0}},
  };
  return spec;
}

TEST(LaunchSpecProto, KeepsClustersAndEveryFieldOfATensorMap) {
  const auto spec = LaunchSpecFromProto(LaunchSpecToProto(SomeSpecWithTensorMaps()));
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->cluster_z, 4);
  ASSERT_EQ(spec->arguments.size(), 3);
  const auto& x = std::get<TensorMapArgument>(spec->arguments[0].kind);
  EXPECT_EQ(x.role, PointerRole::kX);
  EXPECT_EQ(x.element, TensorElement::kBf16);
  EXPECT_EQ(x.rows, 0);
  EXPECT_EQ(x.row_pitch_bytes, 0);
  EXPECT_EQ(x.swizzle_bytes, 128);
  EXPECT_EQ(std::get<TensorMapArgument>(spec->arguments[1].kind).element, TensorElement::kFp16);
  const auto& weights = std::get<TensorMapArgument>(spec->arguments[2].kind);
  EXPECT_EQ(weights.role, PointerRole::kWeights);
  EXPECT_EQ(weights.element, TensorElement::kU32);
  EXPECT_EQ(weights.columns, 8192);
  EXPECT_EQ(weights.rows, 336);
  EXPECT_EQ(weights.row_pitch_bytes, 32768);
  EXPECT_EQ(weights.box_columns, 256);
  EXPECT_EQ(weights.box_rows, 4);
  EXPECT_EQ(weights.swizzle_bytes, 0);
}

TEST(LaunchSpecProto, KeepsEveryRoleSymbolAndElement) {
  LaunchSpec spec = SomeSpec();
  spec.arguments.clear();
  for (const PointerRole role :
       {PointerRole::kX, PointerRole::kWeights, PointerRole::kScales, PointerRole::kZeros, PointerRole::kBias,
        PointerRole::kY, PointerRole::kWorkspace, PointerRole::kSteps, PointerRole::kResidual}) {
    spec.arguments.push_back({"pointer", PointerArgument{role, true, false, 16}});
  }
  for (const Symbol symbol : {Symbol::kM, Symbol::kLdx, Symbol::kLdy, Symbol::kLdr}) {
    spec.arguments.push_back({"integer", IntegerArgument{64, symbol}});
  }
  for (const TensorElement element :
       {TensorElement::kBf16, TensorElement::kFp16, TensorElement::kU32, TensorElement::kU64}) {
    spec.arguments.push_back(
        {"map", TensorMapArgument{PointerRole::kWeights, element, 64, 4, 512, 64, 4, 0}});
  }
  const v1::LaunchSpec proto = LaunchSpecToProto(spec);
  EXPECT_EQ(proto.arguments(7).pointer().role(), v1::KernelArgument::POINTER_ROLE_STEPS);
  EXPECT_EQ(proto.arguments(8).pointer().role(), v1::KernelArgument::POINTER_ROLE_RESIDUAL);
  EXPECT_EQ(proto.arguments(12).i64().symbol(), v1::KernelArgument::SYMBOL_LDR);
  EXPECT_EQ(proto.arguments(16).tensor_map().element(), v1::KernelArgument::TensorMap::ELEMENT_U64);
  const auto again = LaunchSpecFromProto(proto);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_EQ(again->arguments.size(), spec.arguments.size());
  for (size_t i = 0; i < 9; ++i) {
    EXPECT_EQ(std::get<PointerArgument>(again->arguments[i].kind).role,
              std::get<PointerArgument>(spec.arguments[i].kind).role);
  }
  for (size_t i = 9; i < 13; ++i) {
    EXPECT_EQ(std::get<IntegerArgument>(again->arguments[i].kind).value,
              std::get<IntegerArgument>(spec.arguments[i].kind).value);
  }
  for (size_t i = 13; i < 17; ++i) {
    EXPECT_EQ(std::get<TensorMapArgument>(again->arguments[i].kind).element,
              std::get<TensorMapArgument>(spec.arguments[i].kind).element);
  }
}

TEST(LaunchSpecProto, TakesAMissingClusterForNone) {
  v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
  proto.clear_cluster_z();
  const auto spec = LaunchSpecFromProto(proto);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->cluster_z, 1);
}

TEST(LaunchSpecProto, RefusesATensorMapItCannotMake) {
  using TensorMap = v1::KernelArgument::TensorMap;
  const auto refusal = [](void (*change)(TensorMap*)) {
    v1::LaunchSpec proto = LaunchSpecToProto(SomeSpecWithTensorMaps());
    change(proto.mutable_arguments(2)->mutable_tensor_map());
    return std::string(LaunchSpecFromProto(proto).status().message());
  };
  EXPECT_THAT(refusal([](TensorMap* map) { map->set_swizzle_bytes(64); }),
              HasSubstr("'weights' has a swizzle"));
  EXPECT_THAT(refusal([](TensorMap* map) { map->clear_element(); }),
              HasSubstr("'weights' has a pointer role"));
  EXPECT_THAT(refusal([](TensorMap* map) { map->clear_role(); }), HasSubstr("'weights' has a pointer role"));
}

TEST(LaunchSpecProto, RefusesAnotherAbiVersion) {
  v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
  proto.set_abi_version(99);
  const auto spec = LaunchSpecFromProto(proto);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(spec.status().message()), HasSubstr("99"));
}

TEST(LaunchSpecProto, RefusesAZeroSizeByName) {
  v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
  proto.set_tile_m(0);
  EXPECT_THAT(std::string(LaunchSpecFromProto(proto).status().message()), HasSubstr("tile_m is 0"));
}

TEST(LaunchSpecProto, RefusesSizesThatNoLaunchCanHave) {
  const auto refusal_of = [](const auto& change) {
    v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
    change(proto);
    return std::string(LaunchSpecFromProto(proto).status().message());
  };
  EXPECT_THAT(refusal_of([](v1::LaunchSpec& proto) { proto.set_dynamic_smem_bytes(-1024); }),
              HasSubstr("dynamic_smem_bytes is -1024"));
  EXPECT_THAT(refusal_of([](v1::LaunchSpec& proto) { proto.set_max_m(-1); }), HasSubstr("max_m is -1"));
  // Times 2^31 rows it would overflow.
  EXPECT_THAT(refusal_of([](v1::LaunchSpec& proto) {
                proto.mutable_workspace()->set_partial_bytes_per_m_tile(int64_t{1} << 40);
              }),
              HasSubstr("partial_bytes_per_m_tile is 1099511627776"));
  EXPECT_THAT(
      refusal_of([](v1::LaunchSpec& proto) { proto.mutable_workspace()->set_ticket_bytes_per_m_tile(-4); }),
      HasSubstr("ticket_bytes_per_m_tile is -4"));
}

TEST(LaunchSpecProto, RefusesAnUnknownArgumentKindByName) {
  v1::LaunchSpec proto = LaunchSpecToProto(SomeSpec());
  proto.mutable_arguments(0)->mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_UNSPECIFIED);
  EXPECT_THAT(std::string(LaunchSpecFromProto(proto).status().message()), HasSubstr("'pointer'"));
  proto = LaunchSpecToProto(SomeSpec());
  proto.mutable_arguments(7)->clear_kind();
  EXPECT_THAT(std::string(LaunchSpecFromProto(proto).status().message()), HasSubstr("'m'"));
}

}  // namespace
}  // namespace qgemm
