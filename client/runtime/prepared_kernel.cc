#include "client/runtime/prepared_kernel.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {

absl::Status TensorMapCache::Get(LaunchDevice& device, const TensorMapShape& shape, std::byte* out) {
  const uint64_t mixed = (shape.address >> 4 ^ static_cast<uint64_t>(shape.rows) * 0x9e3779b97f4a7c15 ^
                          static_cast<uint64_t>(shape.row_pitch_bytes) << 20) *
                         0xff51afd7ed558ccd;
  MutexLock lock(mu_);
  Entry& entry = entries_[mixed >> 60];
  static_assert(kEntries == 16);
  if (entry.address != shape.address || entry.rows != shape.rows ||
      entry.row_pitch_bytes != shape.row_pitch_bytes) {
    entry.address = 0;
    QGEMM_RETURN_IF_ERROR(device.EncodeTensorMap(shape, absl::MakeSpan(entry.map)));
    entry.address = shape.address;
    entry.rows = shape.rows;
    entry.row_pitch_bytes = shape.row_pitch_bytes;
  }
  std::memcpy(out, entry.map.data(), entry.map.size());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PreparedKernel::Create(LaunchSpec spec,
                                                                       LaunchFunction function,
                                                                       LaunchDevice& device) {
  std::unique_ptr<PreparedKernel> kernel(new PreparedKernel(std::move(spec), function, device));
  size_t end = 0;
  const auto place = [&](size_t size, size_t alignment) {
    const size_t offset = (end + alignment - 1) / alignment * alignment;
    end = offset + size;
    kernel->constants_.resize(end);
    kernel->offsets_.push_back(offset);
    return offset;
  };
  for (const KernelArgument& argument : kernel->spec_.arguments) {
    if (const auto* pointer = std::get_if<PointerArgument>(&argument.kind)) {
      const bool required = pointer->role == PointerRole::kX || pointer->role == PointerRole::kWeights ||
                            pointer->role == PointerRole::kScales || pointer->role == PointerRole::kY;
      const int alignment = std::max(1, pointer->alignment);
      if ((alignment & (alignment - 1)) != 0) {
        return absl::InvalidArgumentError(absl::StrCat("argument '", argument.name, "' has alignment ",
                                                       alignment, ", which is no power of two"));
      }
      kernel->pointers_.push_back({static_cast<int>(pointer->role), static_cast<uint64_t>(alignment - 1),
                                   required, place(sizeof(uint64_t), alignof(uint64_t))});
    } else if (const auto* map = std::get_if<TensorMapArgument>(&argument.kind)) {
      TensorMapShape shape;
      shape.element = map->element;
      shape.columns = map->columns;
      shape.rows = map->rows;
      shape.row_pitch_bytes = map->row_pitch_bytes;
      shape.box_columns = map->box_columns;
      shape.box_rows = map->box_rows;
      shape.swizzle_bytes = map->swizzle_bytes;
      kernel->maps_.push_back({static_cast<int>(map->role), shape, map->rows == 0, map->row_pitch_bytes == 0,
                               place(128, 64), std::make_unique<TensorMapCache>()});
    } else {
      const auto& integer = std::get<IntegerArgument>(argument.kind);
      const size_t bytes = integer.bits == 64 ? 8 : 4;
      const size_t offset = place(bytes, bytes);
      if (const auto* constant = std::get_if<int64_t>(&integer.value)) {
        if (integer.bits == 32 && (*constant < INT32_MIN || *constant > INT32_MAX)) {
          return absl::InvalidArgumentError(
              absl::StrCat("argument '", argument.name, "' = ", *constant, " does not fit 32 bits"));
        }
        std::memcpy(kernel->constants_.data() + offset, constant, bytes);  // little-endian
      } else {
        kernel->integers_.push_back({std::get<Symbol>(integer.value), integer.bits, offset});
      }
    }
  }
  if (kernel->offsets_.size() > kMaxArguments || end > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(kernel->offsets_.size(), " arguments of ", end,
                                                   " bytes are more than the ", kMaxArguments, " of ",
                                                   kMaxBytes, " a launch can have"));
  }
  return kernel;
}

absl::Status PreparedKernel::Launch(const LaunchOperands& operands, void* stream, bool programmatic) {
  if (operands.m == 0) return absl::OkStatus();
  // In the order of PointerRole.
  const uint64_t addresses[kRoles] = {operands.x,         operands.weights, operands.scales,
                                      operands.zeros,     operands.bias,    operands.y,
                                      operands.workspace, operands.steps,   operands.residual};
  static_assert(static_cast<int>(PointerRole::kResidual) == kRoles - 1);

  alignas(64) std::byte block[kMaxBytes];
  std::memcpy(block, constants_.data(), constants_.size());
  bool valid = operands.m > 0 && operands.m <= (spec_.max_m != 0 ? spec_.max_m : INT32_MAX);
  for (const PointerSlot& slot : pointers_) {
    const uint64_t address = addresses[slot.role];
    valid &= (address & slot.alignment_mask) == 0 && (address != 0 || !slot.required);
    std::memcpy(block + slot.offset, &address, sizeof(address));
  }
  for (const IntegerSlot& slot : integers_) {
    int64_t value = operands.m;
    if (slot.symbol == Symbol::kLdx) value = operands.ldx;
    if (slot.symbol == Symbol::kLdy) value = operands.ldy;
    if (slot.symbol == Symbol::kLdr) value = operands.ldr;
    valid &= slot.bits == 64 || static_cast<int32_t>(value) == value;
    std::memcpy(block + slot.offset, &value, slot.bits / 8);
  }
  valid &= operands.workspace != 0 || spec_.WorkspaceBytes(operands.m) == 0;
  for (const MapSlot& slot : maps_) {
    valid &= addresses[slot.role] != 0 && addresses[slot.role] % 16 == 0;
    valid &= !slot.pitch_from_launch || (operands.ldx >= slot.shape.columns && operands.ldx % 8 == 0);
  }
  if (!valid) {
    // The sentence for what is wrong is the one place's that checks every launch.
    QGEMM_RETURN_IF_ERROR(MarshalArguments(spec_, operands).status());
    return absl::InternalError("a launch was refused without a reason");
  }
  for (const MapSlot& slot : maps_) {
    TensorMapShape shape = slot.shape;
    shape.address = addresses[slot.role];
    if (slot.rows_from_launch) shape.rows = operands.m;
    if (slot.pitch_from_launch) shape.row_pitch_bytes = operands.ldx * TensorElementBytes(shape.element);
    QGEMM_RETURN_IF_ERROR(slot.cache->Get(device_, shape, block + slot.offset));
  }
  void* params[kMaxArguments];
  for (size_t i = 0; i < offsets_.size(); ++i) params[i] = block + offsets_[i];

  LaunchCall call;
  call.function = function_;
  call.grid = spec_.Grid(operands.m);
  call.block_threads = spec_.block_threads;
  call.dynamic_smem_bytes = spec_.dynamic_smem_bytes;
  call.cluster_z = spec_.cluster_z;
  call.programmatic = programmatic;
  call.stream = stream;
  call.params = params;
  return device_.Launch(call);
}

}  // namespace qgemm
