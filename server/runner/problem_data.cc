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
// Copies begin at least this far apart, in different pages and at different offsets in them.
constexpr int64_t kLeastCopyStride = (2 << 20) + (64 << 10);
constexpr int64_t kCopyAlignment = 64 << 10;
constexpr int64_t kPartAlignment = 1024;
// Of the memory that is free, at most this part is used for copies: the GPU may be shared.
constexpr int64_t kFreeShare = 8;

int64_t AlignUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

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

CanonicalAddresses ProblemData::Canonical() const {
  const auto address = [](const std::unique_ptr<DeviceMemory>& memory, bool present) {
    return present ? memory->address() : 0;
  };
  const WeightFormat& format = problem_.signature.format;
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  CanonicalAddresses canonical;
  canonical.codes = codes_->address();
  canonical.scales = scales_->address();
  canonical.zeros = address(zeros_, format.zero_point == ZeroPoint::kInteger);
  canonical.offsets = address(offsets_, floats);
  canonical.scale_codes = address(scale_codes_, format.two_level());
  canonical.offset_codes = address(offset_codes_, format.two_level() && floats);
  return canonical;
}

PackedAddresses ProblemData::Packed() const {
  const WeightFormat& format = problem_.signature.format;
  PackedAddresses packed;
  packed.weights = packed_weights_->address();
  packed.scales = packed_scales_->address();
  if (format.zero_point != ZeroPoint::kNone) packed.zeros = packed_zeros_->address();
  if (format.two_level()) packed.steps = packed_steps_->address();
  return packed;
}

EpilogueAddresses ProblemData::EpilogueOperands() const {
  const Epilogue& epilogue = problem_.signature.epilogue;
  EpilogueAddresses addresses;
  if (epilogue.bias) addresses.bias = bias_->address();
  if (epilogue.residual) {
    addresses.residual = residual_->address();
    addresses.ldr = problem_.y_columns();
  }
  return addresses;
}

absl::Status ProblemData::PrepareWeights(SupportLibrary& support, uint64_t seed) {
  const KernelSignature& signature = problem_.signature;
  const WeightFormat& format = signature.format;
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  const int64_t n = problem_.n;
  const int64_t groups = n * (format.channel_wise() ? 1 : problem_.k / format.group_size);
  const int64_t steps = (problem_.k + kStepWeights - 1) / kStepWeights;
  const int64_t number_bytes = (format.two_level() ? n * steps : groups) * ScalarBytes(format.scale_type);
  const PackedSizes sizes = PackedSizesFor(n, problem_.k, format);
  QGEMM_RETURN_IF_ERROR(Reserve(codes_, n * problem_.k));
  QGEMM_RETURN_IF_ERROR(Reserve(scales_, number_bytes));
  QGEMM_RETURN_IF_ERROR(Reserve(packed_weights_, sizes.weight_bytes));
  QGEMM_RETURN_IF_ERROR(Reserve(packed_scales_, sizes.scale_bytes));
  if (format.zero_point == ZeroPoint::kInteger) QGEMM_RETURN_IF_ERROR(Reserve(zeros_, groups));
  if (floats) QGEMM_RETURN_IF_ERROR(Reserve(offsets_, number_bytes));
  if (sizes.zero_bytes > 0) QGEMM_RETURN_IF_ERROR(Reserve(packed_zeros_, sizes.zero_bytes));
  if (format.two_level()) {
    QGEMM_RETURN_IF_ERROR(Reserve(scale_codes_, groups));
    if (floats) QGEMM_RETURN_IF_ERROR(Reserve(offset_codes_, groups));
    QGEMM_RETURN_IF_ERROR(Reserve(packed_steps_, sizes.step_bytes));
  }
  QGEMM_RETURN_IF_ERROR(support.FillWeights(problem_, Canonical(), seed));
  if (signature.epilogue.bias) {
    QGEMM_RETURN_IF_ERROR(Reserve(bias_, n * ScalarBytes(signature.out)));
    QGEMM_RETURN_IF_ERROR(
        support.FillNormal(SupportLibrary::Normal::kBias, bias_->address(), n, signature.out, seed));
  }
  return support.Pack(problem_, Canonical(), Packed());
}

absl::Status ProblemData::Prepare(SupportLibrary& support, const Problem& problem, int64_t m, uint64_t seed) {
  m_ = 0;
  if (weights_seed_ != seed || !(problem == problem_)) {
    weights_seed_.reset();
    problem_ = problem;
    QGEMM_RETURN_IF_ERROR(PrepareWeights(support, seed));
    weights_seed_ = seed;
  }
  const KernelSignature& signature = problem.signature;
  const int64_t columns = problem.y_columns();
  const int64_t row_bytes = columns * ScalarBytes(signature.out);
  QGEMM_RETURN_IF_ERROR(Reserve(x_, m * problem.k * ScalarBytes(signature.act)));
  QGEMM_RETURN_IF_ERROR(Reserve(reference_, m * columns * static_cast<int64_t>(sizeof(float))));
  QGEMM_RETURN_IF_ERROR(Reserve(first_output_, m * row_bytes));
  QGEMM_RETURN_IF_ERROR(output_.Resize(device_, m * row_bytes,
                                       std::clamp(kGuardedRows * row_bytes, kMinBackBytes, kMaxBackBytes)));
  QGEMM_RETURN_IF_ERROR(support.FillNormal(SupportLibrary::Normal::kActivations, x_->address(), m * problem.k,
                                           signature.act, seed));
  if (signature.epilogue.residual) {
    QGEMM_RETURN_IF_ERROR(Reserve(residual_, m * row_bytes));
    QGEMM_RETURN_IF_ERROR(support.FillNormal(SupportLibrary::Normal::kResidual, residual_->address(),
                                             m * columns, signature.out, seed));
  }
  QGEMM_RETURN_IF_ERROR(support.ReferenceGemm(problem, Canonical(), EpilogueOperands(), x_->address(), m,
                                              problem.k, reference_->address()));
  QGEMM_RETURN_IF_ERROR(MakeCopies(m));
  QGEMM_RETURN_IF_ERROR(device_->Synchronize());
  m_ = m;
  return absl::OkStatus();
}

absl::Status ProblemData::MakeCopies(int64_t m) {
  copied_.clear();
  const LaunchOperands original = Operands();
  const KernelSignature& signature = problem_.signature;
  const PackedSizes sizes = PackedSizesFor(problem_.n, problem_.k, signature.format);
  const int64_t y_bytes = m * problem_.y_columns() * ScalarBytes(signature.out);
  struct Part {
    uint64_t LaunchOperands::*address;
    int64_t bytes;
  };
  const Part parts[] = {{&LaunchOperands::x, m * problem_.k * ScalarBytes(signature.act)},
                        {&LaunchOperands::weights, sizes.weight_bytes},
                        {&LaunchOperands::scales, sizes.scale_bytes},
                        {&LaunchOperands::zeros, sizes.zero_bytes},
                        {&LaunchOperands::steps, sizes.step_bytes},
                        {&LaunchOperands::bias, problem_.n * ScalarBytes(signature.out)},
                        {&LaunchOperands::residual, y_bytes},
                        {&LaunchOperands::y, y_bytes}};
  int64_t one = 0;
  for (const Part& part : parts) {
    if (original.*part.address != 0) one += AlignUp(part.bytes, kPartAlignment);
  }
  const int64_t stride = std::max(AlignUp(one, kCopyAlignment), kLeastCopyStride);
  QGEMM_ASSIGN_OR_RETURN(const Device::Memory memory, device_->MemoryInfo());
  const int64_t held = copies_ != nullptr ? copies_->bytes() : 0;
  const int64_t most = std::min(kMaxCopyBytes, (memory.free_bytes + held) / kFreeShare);
  const int64_t count = std::min<int64_t>(most_placements_ - 1, most / stride);
  if (count <= 0) return absl::OkStatus();
  if (held < count * stride) {
    copies_.reset();
    absl::StatusOr<std::unique_ptr<DeviceMemory>> allocated = device_->Allocate(count * stride);
    if (absl::IsResourceExhausted(allocated.status())) return absl::OkStatus();
    QGEMM_RETURN_IF_ERROR(allocated.status());
    copies_ = *std::move(allocated);
  }
  for (int64_t copy = 0; copy < count; ++copy) {
    LaunchOperands operands = original;
    uint64_t address = copies_->address() + copy * stride;
    for (const Part& part : parts) {
      if (original.*part.address == 0) continue;
      QGEMM_RETURN_IF_ERROR(device_->CopyOnDevice(address, original.*part.address, part.bytes));
      operands.*part.address = address;
      address += AlignUp(part.bytes, kPartAlignment);
    }
    copied_.push_back(operands);
  }
  return absl::OkStatus();
}

absl::Status ProblemData::ReserveWorkspace(int64_t bytes) {
  return workspace_.Resize(device_, bytes, kMinBackBytes);
}

LaunchOperands ProblemData::Operands(int placement) const {
  LaunchOperands operands;
  if (placement > 0) {
    operands = copied_[placement - 1];
    operands.m = m_;
    return operands;
  }
  operands.m = m_;
  operands.ldx = ldx();
  operands.ldy = ldy();
  operands.x = x_->address();
  const PackedAddresses packed = Packed();
  operands.weights = packed.weights;
  operands.scales = packed.scales;
  operands.zeros = packed.zeros;
  operands.steps = packed.steps;
  const EpilogueAddresses epilogue = EpilogueOperands();
  operands.bias = epilogue.bias;
  operands.residual = epilogue.residual;
  operands.ldr = epilogue.ldr;
  operands.y = output_.address();
  return operands;
}

}  // namespace qgemm
