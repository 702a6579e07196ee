#include "server/runner/problem_data.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

// Rows a careless kernel may write beyond the last one: its whole tile, and some.
constexpr int64_t kGuardedRows = 256;
constexpr int64_t kMinBackBytes = 64 << 10;
constexpr int64_t kMaxBackBytes = 16 << 20;

uint64_t AddressOf(const std::unique_ptr<DeviceMemory>& memory, bool present) {
  return present ? memory->address() : 0;
}

}  // namespace

absl::Status GuardedRegion::Resize(Device* device, int64_t bytes, int64_t back_bytes) {
  const int64_t total = kFrontBytes + bytes + back_bytes;
  if (memory_ == nullptr || memory_->bytes() < total) {
    memory_.reset();
    bytes_ = back_bytes_ = 0;
    QGEMM_ASSIGN_OR_RETURN(memory_, device->Allocate(total));
  }
  bytes_ = bytes;
  back_bytes_ = back_bytes;
  return absl::OkStatus();
}

absl::Status GuardedRegion::Arm(Device* device) const {
  QGEMM_RETURN_IF_ERROR(device->SetBytes(front(), kGuardByte, kFrontBytes));
  return device->SetBytes(back(), kGuardByte, back_bytes_);
}

absl::Status ProblemData::Reserve(std::unique_ptr<DeviceMemory>& memory, int64_t bytes) {
  // A much larger buffer of an earlier problem is given back: the GPU is shared.
  if (memory != nullptr && memory->bytes() >= bytes &&
      memory->bytes() / 4 <= std::max<int64_t>(bytes, 1 << 20)) {
    return absl::OkStatus();
  }
  memory.reset();
  QGEMM_ASSIGN_OR_RETURN(memory, device_->Allocate(bytes));
  return absl::OkStatus();
}

absl::Status ProblemData::PrepareWeights(SupportLibrary& support, const Problem& problem, uint64_t seed) {
  const KernelSignature& signature = problem.signature;
  const WeightFormat& format = signature.format;
  const bool has_zeros = format.zero_point == ZeroPoint::kInteger;
  const bool has_bias = signature.epilogue.bias;
  const int64_t groups = problem.n * (problem.k / format.group_size);
  const PackedSizes sizes = PackedSizesFor(problem.n, problem.k, format);
  QGEMM_RETURN_IF_ERROR(Reserve(codes_, problem.n * problem.k));
  QGEMM_RETURN_IF_ERROR(Reserve(scales_, groups * ScalarBytes(format.scale_type)));
  QGEMM_RETURN_IF_ERROR(Reserve(packed_weights_, sizes.weight_bytes));
  QGEMM_RETURN_IF_ERROR(Reserve(packed_scales_, sizes.scale_bytes));
  if (has_zeros) {
    QGEMM_RETURN_IF_ERROR(Reserve(zeros_, groups));
    QGEMM_RETURN_IF_ERROR(Reserve(packed_zeros_, sizes.zero_bytes));
  }
  if (has_bias) QGEMM_RETURN_IF_ERROR(Reserve(bias_, problem.n * ScalarBytes(signature.act)));
  const CanonicalAddresses canonical = {codes_->address(), scales_->address(), AddressOf(zeros_, has_zeros),
                                        AddressOf(bias_, has_bias)};
  const PackedAddresses packed = {packed_weights_->address(), packed_scales_->address(),
                                  AddressOf(packed_zeros_, has_zeros)};
  QGEMM_RETURN_IF_ERROR(support.FillWeights(problem, canonical, seed));
  return support.Pack(problem, canonical, packed);
}

absl::Status ProblemData::Prepare(SupportLibrary& support, const Problem& problem, int64_t m, uint64_t seed) {
  m_ = 0;
  if (weights_seed_ != seed || !(problem == problem_)) {
    weights_seed_.reset();
    QGEMM_RETURN_IF_ERROR(PrepareWeights(support, problem, seed));
    problem_ = problem;
    weights_seed_ = seed;
  }
  const KernelSignature& signature = problem.signature;
  const int64_t output_bytes = m * problem.n * ScalarBytes(signature.out);
  const int64_t row_bytes = problem.n * ScalarBytes(signature.out);
  QGEMM_RETURN_IF_ERROR(Reserve(x_, m * problem.k * ScalarBytes(signature.act)));
  QGEMM_RETURN_IF_ERROR(Reserve(reference_, m * problem.n * static_cast<int64_t>(sizeof(float))));
  QGEMM_RETURN_IF_ERROR(Reserve(first_output_, output_bytes));
  QGEMM_RETURN_IF_ERROR(output_.Resize(device_, output_bytes,
                                       std::clamp(kGuardedRows * row_bytes, kMinBackBytes, kMaxBackBytes)));
  const CanonicalAddresses canonical = {codes_->address(), scales_->address(),
                                        AddressOf(zeros_, signature.format.zero_point == ZeroPoint::kInteger),
                                        AddressOf(bias_, signature.epilogue.bias)};
  QGEMM_RETURN_IF_ERROR(support.FillActivations(x_->address(), m * problem.k, signature.act, seed));
  QGEMM_RETURN_IF_ERROR(
      support.ReferenceGemm(problem, canonical, x_->address(), m, problem.k, reference_->address()));
  QGEMM_RETURN_IF_ERROR(device_->Synchronize());
  m_ = m;
  return absl::OkStatus();
}

absl::Status ProblemData::ReserveWorkspace(int64_t bytes) {
  return workspace_.Resize(device_, bytes, kMinBackBytes);
}

LaunchOperands ProblemData::Operands() const {
  LaunchOperands operands;
  operands.m = m_;
  operands.ldx = ldx();
  operands.ldy = ldy();
  operands.x = x_->address();
  operands.weights = packed_weights_->address();
  operands.scales = packed_scales_->address();
  operands.zeros = AddressOf(packed_zeros_, problem_.signature.format.zero_point == ZeroPoint::kInteger);
  operands.bias = AddressOf(bias_, problem_.signature.epilogue.bias);
  operands.y = output_.address();
  return operands;
}

}  // namespace qgemm
