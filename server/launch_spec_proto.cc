#include "server/launch_spec_proto.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

using ProtoArgument = v1::KernelArgument;

constexpr std::pair<PointerRole, ProtoArgument::PointerRole> kRoles[] = {
    {PointerRole::kX, ProtoArgument::POINTER_ROLE_X},
    {PointerRole::kWeights, ProtoArgument::POINTER_ROLE_WEIGHTS},
    {PointerRole::kScales, ProtoArgument::POINTER_ROLE_SCALES},
    {PointerRole::kZeros, ProtoArgument::POINTER_ROLE_ZEROS},
    {PointerRole::kBias, ProtoArgument::POINTER_ROLE_BIAS},
    {PointerRole::kY, ProtoArgument::POINTER_ROLE_Y},
    {PointerRole::kWorkspace, ProtoArgument::POINTER_ROLE_WORKSPACE},
    {PointerRole::kSteps, ProtoArgument::POINTER_ROLE_STEPS},
    {PointerRole::kResidual, ProtoArgument::POINTER_ROLE_RESIDUAL},
};
constexpr std::pair<TensorElement, ProtoArgument::TensorMap::Element> kElements[] = {
    {TensorElement::kBf16, ProtoArgument::TensorMap::ELEMENT_BF16},
    {TensorElement::kFp16, ProtoArgument::TensorMap::ELEMENT_FP16},
    {TensorElement::kU32, ProtoArgument::TensorMap::ELEMENT_U32},
    {TensorElement::kU64, ProtoArgument::TensorMap::ELEMENT_U64},
};
constexpr std::pair<Symbol, ProtoArgument::Symbol> kSymbols[] = {
    {Symbol::kM, ProtoArgument::SYMBOL_M},
    {Symbol::kLdx, ProtoArgument::SYMBOL_LDX},
    {Symbol::kLdy, ProtoArgument::SYMBOL_LDY},
    {Symbol::kLdr, ProtoArgument::SYMBOL_LDR},
};

ProtoArgument ArgumentToProto(const KernelArgument& argument) {
  ProtoArgument proto;
  proto.set_name(argument.name);
  if (const auto* pointer = std::get_if<PointerArgument>(&argument.kind)) {
    for (const auto& [role, proto_role] : kRoles) {
      if (role == pointer->role) proto.mutable_pointer()->set_role(proto_role);
    }
    proto.mutable_pointer()->set_read(pointer->read);
    proto.mutable_pointer()->set_written(pointer->written);
    proto.mutable_pointer()->set_alignment(pointer->alignment);
    return proto;
  }
  if (const auto* map = std::get_if<TensorMapArgument>(&argument.kind)) {
    ProtoArgument::TensorMap* out = proto.mutable_tensor_map();
    for (const auto& [role, proto_role] : kRoles) {
      if (role == map->role) out->set_role(proto_role);
    }
    for (const auto& [element, proto_element] : kElements) {
      if (element == map->element) out->set_element(proto_element);
    }
    out->set_columns(map->columns);
    out->set_rows(map->rows);
    out->set_row_pitch_bytes(map->row_pitch_bytes);
    out->set_box_columns(map->box_columns);
    out->set_box_rows(map->box_rows);
    out->set_swizzle_bytes(map->swizzle_bytes);
    return proto;
  }
  const auto& integer = std::get<IntegerArgument>(argument.kind);
  ProtoArgument::Integer* out = integer.bits == 64 ? proto.mutable_i64() : proto.mutable_i32();
  if (const auto* constant = std::get_if<int64_t>(&integer.value)) {
    out->set_constant(*constant);
    return proto;
  }
  for (const auto& [symbol, proto_symbol] : kSymbols) {
    if (symbol == std::get<Symbol>(integer.value)) out->set_symbol(proto_symbol);
  }
  return proto;
}

absl::Status UnknownArgument(const ProtoArgument& proto, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("launch spec argument '", proto.name(), "' has ", what, " this program does not know"));
}

absl::StatusOr<IntegerArgument> IntegerFromProto(const ProtoArgument& proto, int bits) {
  const ProtoArgument::Integer& integer = bits == 64 ? proto.i64() : proto.i32();
  IntegerArgument argument;
  argument.bits = bits;
  switch (integer.value_case()) {
    case ProtoArgument::Integer::kConstant:
      argument.value = int64_t{integer.constant()};
      return argument;
    case ProtoArgument::Integer::kSymbol:
      for (const auto& [symbol, proto_symbol] : kSymbols) {
        if (proto_symbol == integer.symbol()) {
          argument.value = symbol;
          return argument;
        }
      }
      return UnknownArgument(proto, "a symbol");
    default:
      return UnknownArgument(proto, "a value");
  }
}

absl::StatusOr<TensorMapArgument> TensorMapFromProto(const ProtoArgument& proto) {
  const ProtoArgument::TensorMap& map = proto.tensor_map();
  if (map.swizzle_bytes() != 0 && map.swizzle_bytes() != 128) return UnknownArgument(proto, "a swizzle");
  for (const auto& [role, proto_role] : kRoles) {
    for (const auto& [element, proto_element] : kElements) {
      if (proto_role == map.role() && proto_element == map.element()) {
        return TensorMapArgument{role,
                                 element,
                                 map.columns(),
                                 map.rows(),
                                 map.row_pitch_bytes(),
                                 map.box_columns(),
                                 map.box_rows(),
                                 map.swizzle_bytes()};
      }
    }
  }
  return UnknownArgument(proto, "a pointer role or element type");
}

absl::StatusOr<KernelArgument> ArgumentFromProto(const ProtoArgument& proto) {
  switch (proto.kind_case()) {
    case ProtoArgument::kPointer:
      for (const auto& [role, proto_role] : kRoles) {
        if (proto_role == proto.pointer().role()) {
          return KernelArgument{proto.name(),
                                PointerArgument{role, proto.pointer().read(), proto.pointer().written(),
                                                proto.pointer().alignment()}};
        }
      }
      return UnknownArgument(proto, "a pointer role");
    case ProtoArgument::kI32: {
      QGEMM_ASSIGN_OR_RETURN(IntegerArgument integer, IntegerFromProto(proto, 32));
      return KernelArgument{proto.name(), integer};
    }
    case ProtoArgument::kI64: {
      QGEMM_ASSIGN_OR_RETURN(IntegerArgument integer, IntegerFromProto(proto, 64));
      return KernelArgument{proto.name(), integer};
    }
    case ProtoArgument::kTensorMap: {
      QGEMM_ASSIGN_OR_RETURN(TensorMapArgument map, TensorMapFromProto(proto));
      return KernelArgument{proto.name(), map};
    }
    default:
      return UnknownArgument(proto, "a kind");
  }
}

}  // namespace

v1::LaunchSpec LaunchSpecToProto(const LaunchSpec& spec) {
  v1::LaunchSpec proto;
  proto.set_abi_version(spec.abi_version);
  proto.set_layout_id(spec.layout_id);
  proto.set_entry(spec.entry);
  proto.set_tile_m(spec.tile_m);
  proto.set_tile_n(spec.tile_n);
  proto.set_grid_n(spec.grid_n);
  proto.set_split_k(spec.split_k);
  proto.set_block_threads(spec.block_threads);
  proto.set_cluster_z(spec.cluster_z);
  proto.set_dynamic_smem_bytes(spec.dynamic_smem_bytes);
  proto.set_max_m(spec.max_m);
  proto.mutable_workspace()->set_ticket_bytes_per_m_tile(spec.ticket_bytes_per_m_tile);
  proto.mutable_workspace()->set_partial_bytes_per_m_tile(spec.partial_bytes_per_m_tile);
  for (const KernelArgument& argument : spec.arguments) *proto.add_arguments() = ArgumentToProto(argument);
  return proto;
}

absl::StatusOr<LaunchSpec> LaunchSpecFromProto(const v1::LaunchSpec& proto) {
  if (proto.abi_version() != kLaunchAbiVersion) {
    return absl::InvalidArgumentError(absl::StrCat("launch spec abi_version is ", proto.abi_version(),
                                                   "; this program knows ", kLaunchAbiVersion));
  }
  // Up to 2^31 - 1, so that no number of rows overflows the workspace's size.
  struct Size {
    const char* field;
    int64_t value, least;
  };
  const Size sizes[] = {
      {"tile_m", proto.tile_m(), 1},
      {"tile_n", proto.tile_n(), 1},
      {"grid_n", proto.grid_n(), 1},
      {"split_k", proto.split_k(), 1},
      {"block_threads", proto.block_threads(), 1},
      {"dynamic_smem_bytes", proto.dynamic_smem_bytes(), 0},
      {"max_m", proto.max_m(), 0},
      {"workspace.ticket_bytes_per_m_tile", proto.workspace().ticket_bytes_per_m_tile(), 0},
      {"workspace.partial_bytes_per_m_tile", proto.workspace().partial_bytes_per_m_tile(), 0},
  };
  for (const auto& [field, value, least] : sizes) {
    if (value < least || value > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("launch spec ", field, " is ", value, "; allowed: ", least, " .. ", INT32_MAX));
    }
  }
  LaunchSpec spec;
  spec.abi_version = proto.abi_version();
  spec.layout_id = proto.layout_id();
  spec.entry = proto.entry();
  spec.tile_m = proto.tile_m();
  spec.tile_n = proto.tile_n();
  spec.grid_n = proto.grid_n();
  spec.split_k = proto.split_k();
  spec.block_threads = proto.block_threads();
  spec.cluster_z = std::max(1, proto.cluster_z());
  spec.dynamic_smem_bytes = proto.dynamic_smem_bytes();
  spec.max_m = proto.max_m();
  spec.ticket_bytes_per_m_tile = proto.workspace().ticket_bytes_per_m_tile();
  spec.partial_bytes_per_m_tile = proto.workspace().partial_bytes_per_m_tile();
  for (const ProtoArgument& argument : proto.arguments()) {
    QGEMM_ASSIGN_OR_RETURN(KernelArgument converted, ArgumentFromProto(argument));
    spec.arguments.push_back(std::move(converted));
  }
  return spec;
}

}  // namespace qgemm
