#include "server/runner/support_library.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/ceil_div.h"
#include "base/status_macros.h"
#include "kernels/support_kernels.h"

namespace qgemm {
namespace {

constexpr int kCompareBlocks = 256;
constexpr int64_t kCompareBytes = int64_t{kCompareBlocks} * support::kCompareFields * sizeof(double);
constexpr int64_t kCheckBytes = 2 * sizeof(uint64_t);
// Scales of weights of 4 bits; wider codes go with smaller scales.
constexpr float kSmallestScale = 0.002f;
constexpr float kLargestScale = 0.022f;
constexpr float kSmallestStep = 1e-4f;  // a two-level scale is up to 128 of them
constexpr float kLargestStep = 2e-4f;
constexpr uint32_t kProbeIterations = 4096;
constexpr int64_t kMinFlushBytes = int64_t{32} << 20;

// Independent streams of random numbers from one seed.
uint64_t SubSeed(uint64_t seed, uint64_t stream) { return seed * 16 + stream; }

}  // namespace

template <typename... Args>
absl::Status SupportLibrary::Run(const char* entry, Dim3 grid, int threads, Args... args) {
  void* params[] = {static_cast<void*>(&args)...};
  return device_->Launch(*kernels_.at(entry), grid, threads, 0, params, /*cluster_z=*/1);
}

Dim3 SupportLibrary::GridFor(int64_t items) const {
  return {std::clamp<int64_t>(CeilDiv(items, support::kThreads), 1, int64_t{device_->sm_count()} * 8), 1, 1};
}

absl::Status SupportLibrary::LoadKernels(absl::string_view cubin) {
  QGEMM_ASSIGN_OR_RETURN(module_, device_->Load(cubin));
  for (const support::Entry& entry : support::kEntries) {
    QGEMM_ASSIGN_OR_RETURN(kernels_[entry.name], module_->Find(entry.name, 0));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SupportLibrary>> SupportLibrary::Load(Device* device,
                                                                     absl::string_view cubin) {
  std::unique_ptr<SupportLibrary> library(new SupportLibrary(device));
  if (absl::Status loaded = library->LoadKernels(cubin); !loaded.ok()) {
    if (absl::IsAborted(loaded) || absl::IsResourceExhausted(loaded)) return loaded;
    return absl::DataLossError(
        absl::StrCat("the driver refuses the support kernels: ", std::string(loaded.message())));
  }
  const int64_t flush_bytes = std::max(2 * device->l2_bytes(), kMinFlushBytes);
  QGEMM_ASSIGN_OR_RETURN(library->flush_, device->Allocate(flush_bytes));
  QGEMM_RETURN_IF_ERROR(device->SetBytes(library->flush_->address(), 0, flush_bytes));
  QGEMM_ASSIGN_OR_RETURN(library->results_, device->Allocate(kCompareBytes + kMaxByteChecks * kCheckBytes));
  QGEMM_RETURN_IF_ERROR(library->ClearResults());
  return library;
}

absl::Status SupportLibrary::FillWeights(const Problem& problem, const CanonicalAddresses& to,
                                         uint64_t seed) {
  const WeightFormat& format = problem.signature.format;
  const int64_t codes = problem.n * problem.k;
  const int64_t groups = problem.n * (format.channel_wise() ? 1 : problem.k / format.group_size);
  const int64_t scales = format.two_level() ? problem.n * CeilDiv(problem.k, kStepWeights) : groups;
  const uint32_t limit = 1u << format.bits;
  const uint32_t any_byte = 256;
  const int type = support::ScalarTypeCode(format.scale_type);
  const auto center = static_cast<float>(format.center());
  const float low = (format.two_level() ? kSmallestStep : kSmallestScale) * 8 / center;
  const float high = (format.two_level() ? kLargestStep : kLargestScale) * 8 / center;
  QGEMM_RETURN_IF_ERROR(
      Run(support::kFillCodes, GridFor(codes), support::kThreads, to.codes, codes, limit, SubSeed(seed, 0)));
  QGEMM_RETURN_IF_ERROR(Run(support::kFillUniform, GridFor(scales), support::kThreads, to.scales, scales,
                            type, low, high, SubSeed(seed, 1)));
  if (format.zero_point == ZeroPoint::kInteger) {
    QGEMM_RETURN_IF_ERROR(Run(support::kFillCodes, GridFor(groups), support::kThreads, to.zeros, groups,
                              limit, SubSeed(seed, 2)));
  }
  if (format.two_level()) {
    QGEMM_RETURN_IF_ERROR(Run(support::kFillCodes, GridFor(groups), support::kThreads, to.scale_codes, groups,
                              any_byte, SubSeed(seed, 6)));
  }
  if (format.zero_point != ZeroPoint::kFloat) return absl::OkStatus();
  // Offsets are about -center * scale. With two levels the codes have the minus, and the steps the centre.
  const float nearest = format.two_level() ? 0.95f * center : 0.5f - center;
  const float farthest = format.two_level() ? 1.05f * center : -0.5f - center;
  QGEMM_RETURN_IF_ERROR(Run(support::kFillProducts, GridFor(scales), support::kThreads, to.offsets, to.scales,
                            scales, type, nearest, farthest, SubSeed(seed, 7)));
  if (!format.two_level()) return absl::OkStatus();
  return Run(support::kFillOpposites, GridFor(groups), support::kThreads, to.offset_codes, to.scale_codes,
             groups, SubSeed(seed, 8));
}

absl::Status SupportLibrary::FillNormal(Normal kind, uint64_t to, int64_t count, ScalarType type,
                                        uint64_t seed) {
  const uint64_t stream = kind == Normal::kBias ? 3 : kind == Normal::kActivations ? 4 : 5;
  return Run(support::kFillNormal, GridFor(count), support::kThreads, to, count,
             support::ScalarTypeCode(type), SubSeed(seed, stream));
}

absl::Status SupportLibrary::Pack(const Problem& problem, const CanonicalAddresses& from,
                                  const PackedAddresses& to) {
  QGEMM_ASSIGN_OR_RETURN(
      std::vector<SupportLaunch> launches,
      PackLaunches(problem.n, problem.k, problem.signature.format, from, to, device_->sm_count()));
  for (SupportLaunch& launch : launches) {
    QGEMM_RETURN_IF_ERROR(device_->Launch(*kernels_.at(launch.entry), launch.grid, launch.threads, 0,
                                          launch.Params(), /*cluster_z=*/1));
  }
  return absl::OkStatus();
}

absl::Status SupportLibrary::ReferenceGemm(const Problem& problem, const CanonicalAddresses& weights,
                                           const EpilogueAddresses& epilogue, uint64_t x, int64_t m,
                                           int64_t ldx, uint64_t reference) {
  const KernelSignature& signature = problem.signature;
  const WeightFormat& format = signature.format;
  const Dim3 grid = {CeilDiv(problem.n, support::kReferenceTile), CeilDiv(m, support::kReferenceTile), 1};
  if (grid.y > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("M = ", m, " is too large to be verified: at most ", 65535 * support::kReferenceTile));
  }
  const int64_t group_size = format.channel_wise() ? problem.k : format.group_size;
  const int gated = signature.epilogue.gated ? 1 : 0;
  return Run(support::kReferenceGemm, grid, support::kThreads, x, weights.codes, weights.scales,
             weights.zeros, weights.offsets, weights.scale_codes, weights.offset_codes, epilogue.bias,
             epilogue.residual, reference, m, problem.n, problem.k, ldx, epilogue.ldr, group_size,
             support::ScalarTypeCode(signature.act), support::ScalarTypeCode(format.scale_type),
             support::ScalarTypeCode(signature.out), format.center(),
             support::ActivationCode(signature.epilogue.activation), gated,
             signature.quantization == ActivationQuantization::kInt8 ? 1 : 0);
}

absl::Status SupportLibrary::ClearResults() {
  std::fill(check_bytes_.begin(), check_bytes_.end(), 0);
  return device_->SetBytes(results_->address(), 0, results_->bytes());
}

absl::Status SupportLibrary::Compare(uint64_t y, uint64_t reference, int64_t m, int64_t columns, int64_t ldy,
                                     ScalarType type) {
  const uint32_t poison = kPoison * 0x01010101u;
  return Run(support::kCompare, {kCompareBlocks, 1, 1}, support::kThreads, y, reference, results_->address(),
             m, columns, ldy, support::ScalarTypeCode(type), poison);
}

absl::Status SupportLibrary::CheckBytes(int check, uint64_t address, int64_t bytes, uint8_t value) {
  check_bytes_[check] = bytes;
  const uint64_t result = results_->address() + kCompareBytes + check * kCheckBytes;
  const uint32_t wide_value = value;
  return Run(support::kCountUnequal, GridFor(bytes), support::kThreads, address, bytes, wide_value, result);
}

absl::Status SupportLibrary::CheckSame(int check, uint64_t a, uint64_t b, int64_t bytes) {
  check_bytes_[check] = bytes;
  const uint64_t result = results_->address() + kCompareBytes + check * kCheckBytes;
  return Run(support::kCountDifferent, GridFor(bytes), support::kThreads, a, b, bytes, result);
}

absl::StatusOr<SupportLibrary::Results> SupportLibrary::ReadResults() {
  std::vector<std::byte> raw(results_->bytes());
  QGEMM_RETURN_IF_ERROR(device_->ReadBack(results_->address(), absl::MakeSpan(raw)));
  double sums[support::kCompareFields] = {};
  for (int block = 0; block < kCompareBlocks; ++block) {
    double fields[support::kCompareFields];
    std::memcpy(fields, raw.data() + block * sizeof(fields), sizeof(fields));
    for (int field = 0; field < support::kCompareFields; ++field) sums[field] += fields[field];
  }
  Results results;
  results.comparison.reference_norm = std::sqrt(sums[support::kSquaredReference]);
  results.comparison.not_finite = static_cast<int64_t>(sums[support::kNotFinite]);
  results.comparison.unwritten = static_cast<int64_t>(sums[support::kUnwritten]);
  const double difference = std::sqrt(sums[support::kSquaredDifference]);
  results.comparison.relative_error = difference == 0 ? 0 : difference / results.comparison.reference_norm;
  for (int check = 0; check < kMaxByteChecks; ++check) {
    uint64_t words[2];
    std::memcpy(words, raw.data() + kCompareBytes + check * kCheckBytes, sizeof(words));
    results.checks.push_back({static_cast<int64_t>(words[0]),
                              words[0] == 0 ? 0 : check_bytes_[check] - static_cast<int64_t>(words[1])});
  }
  return results;
}

absl::Status SupportLibrary::MarkEvents() {
  // A clock that stands still is given up after some milliseconds.
  constexpr uint32_t kChanges = 8;
  constexpr uint32_t kReads = 1 << 16;
  QGEMM_RETURN_IF_ERROR(Run(support::kClockStep, {1, 1, 1}, 1, results_->address(), kChanges, kReads));
  uint64_t step_ns = 0;
  QGEMM_RETURN_IF_ERROR(
      device_->ReadBack(results_->address(), {reinterpret_cast<std::byte*>(&step_ns), sizeof(step_ns)}));
  QGEMM_RETURN_IF_ERROR(ClearResults());
  const bool fine = step_ns > 0 && step_ns <= kCoarsestStepNs;
  return device_->MarkEventsBy(fine ? kernels_.at(support::kMark).get() : nullptr);
}

absl::Status SupportLibrary::Flush() {
  const int64_t words = flush_->bytes() / 16;
  return Run(support::kReadFlush, {int64_t{device_->sm_count()} * 4, 1, 1}, support::kFlushThreads,
             flush_->address(), words, results_->address());
}

absl::Status SupportLibrary::Probe() {
  return Run(support::kClockProbe, {device_->sm_count(), 1, 1}, support::kProbeThreads, kProbeIterations,
             results_->address());
}

}  // namespace qgemm
