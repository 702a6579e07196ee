#include "kernels/cuda/launch.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

uint64_t AddressOf(PointerRole role, const LaunchOperands& operands) {
  switch (role) {
    case PointerRole::kX:
      return operands.x;
    case PointerRole::kWeights:
      return operands.weights;
    case PointerRole::kScales:
      return operands.scales;
    case PointerRole::kZeros:
      return operands.zeros;
    case PointerRole::kBias:
      return operands.bias;
    case PointerRole::kY:
      return operands.y;
    case PointerRole::kWorkspace:
      return operands.workspace;
    case PointerRole::kSteps:
      return operands.steps;
    case PointerRole::kResidual:
      return operands.residual;
  }
  return 0;
}

// Whether a launch without this operand can be right; the spec alone does not tell which format it is for.
bool MayBeNull(PointerRole role, bool needs_workspace) {
  switch (role) {
    case PointerRole::kZeros:
    case PointerRole::kBias:
    case PointerRole::kSteps:
    case PointerRole::kResidual:
      return true;
    case PointerRole::kWorkspace:
      return !needs_workspace;
    default:
      return false;
  }
}

int64_t ValueOf(const IntegerArgument& argument, const LaunchOperands& operands) {
  if (const auto* constant = std::get_if<int64_t>(&argument.value)) return *constant;
  switch (std::get<Symbol>(argument.value)) {
    case Symbol::kM:
      return operands.m;
    case Symbol::kLdx:
      return operands.ldx;
    case Symbol::kLdy:
      return operands.ldy;
    case Symbol::kLdr:
      return operands.ldr;
  }
  return 0;
}

void Append(const void* value, size_t size, size_t alignment, ArgumentBlock* block) {
  const size_t offset = (block->bytes.size() + alignment - 1) / alignment * alignment;
  block->bytes.resize(offset + size);
  std::memcpy(block->bytes.data() + offset, value, size);
  block->offsets.push_back(offset);
}

}  // namespace

std::vector<void*> ArgumentBlock::Params() {
  std::vector<void*> params;
  params.reserve(offsets.size());
  for (size_t offset : offsets) params.push_back(bytes.data() + offset);
  return params;
}

absl::StatusOr<ArgumentBlock> MarshalArguments(const LaunchSpec& spec, const LaunchOperands& operands) {
  if (operands.m < 0 || operands.m > INT32_MAX || (spec.max_m != 0 && operands.m > spec.max_m)) {
    return absl::InvalidArgumentError(absl::StrCat("M = ", operands.m,
                                                   " is outside what this launch spec serves: 0 .. ",
                                                   spec.max_m != 0 ? spec.max_m : int64_t{INT32_MAX}));
  }
  const bool needs_workspace = spec.WorkspaceBytes(operands.m) > 0;
  ArgumentBlock block;
  for (const KernelArgument& argument : spec.arguments) {
    if (const auto* pointer = std::get_if<PointerArgument>(&argument.kind)) {
      const uint64_t address = AddressOf(pointer->role, operands);
      if (address == 0 && !MayBeNull(pointer->role, needs_workspace)) {
        return absl::InvalidArgumentError(
            absl::StrCat("argument '", argument.name, "' is null; the launch needs it"));
      }
      if (pointer->alignment > 0 && address % pointer->alignment != 0) {
        return absl::InvalidArgumentError(absl::StrFormat("argument '%s' at 0x%x is not aligned to %d bytes",
                                                          argument.name, address, pointer->alignment));
      }
      Append(&address, sizeof(address), alignof(decltype(address)), &block);
      continue;
    }
    if (const auto* map = std::get_if<TensorMapArgument>(&argument.kind)) {
      const uint64_t address = AddressOf(map->role, operands);
      if (address == 0 || address % 16 != 0) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "argument '%s' at 0x%x is not aligned to 16 bytes or null", argument.name, address));
      }
      const int64_t rows = map->rows != 0 ? map->rows : operands.m;
      if (map->row_pitch_bytes == 0 && (operands.ldx < map->columns || operands.ldx % 8 != 0)) {
        return absl::InvalidArgumentError(
            absl::StrCat("ldx = ", operands.ldx, " is not a multiple of 8 of at least K = ", map->columns));
      }
      const std::byte zeros[128] = {};
      Append(zeros, sizeof(zeros), 64, &block);
      TensorMapShape shape;
      shape.address = address;
      shape.element = map->element;
      shape.columns = map->columns;
      shape.rows = rows;
      shape.row_pitch_bytes =
          map->row_pitch_bytes != 0 ? map->row_pitch_bytes : operands.ldx * TensorElementBytes(map->element);
      shape.box_columns = map->box_columns;
      shape.box_rows = map->box_rows;
      shape.swizzle_bytes = map->swizzle_bytes;
      block.tensor_maps.push_back({block.offsets.back(), shape});
      continue;
    }
    const auto& integer = std::get<IntegerArgument>(argument.kind);
    const int64_t value = ValueOf(integer, operands);
    if (integer.bits == 64) {
      Append(&value, sizeof(value), alignof(decltype(value)), &block);
      continue;
    }
    if (value < INT32_MIN || value > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("argument '", argument.name, "' = ", value, " does not fit 32 bits"));
    }
    const auto narrow = static_cast<int32_t>(value);
    Append(&narrow, sizeof(narrow), alignof(decltype(narrow)), &block);
  }
  return block;
}

absl::Status FillTensorMaps(
    ArgumentBlock& block,
    absl::FunctionRef<absl::Status(const TensorMapShape& shape, absl::Span<std::byte> out)> encode) {
  for (const ArgumentBlock::TensorMap& map : block.tensor_maps) {
    QGEMM_RETURN_IF_ERROR(encode(map.shape, absl::MakeSpan(block.bytes).subspan(map.offset, 128)));
  }
  return absl::OkStatus();
}

}  // namespace qgemm
