#ifndef QGEMM_KERNELS_PACKING_H_
#define QGEMM_KERNELS_PACKING_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/problem.h"

namespace qgemm {

// Names the layout written down in kernels/LAYOUT.md; a runtime refuses another one.
inline constexpr absl::string_view kLayoutId = "qgemm-frag16x64-v1";

// Weights as importers produce them: the form the reference reads.
struct CanonicalWeights {
  int64_t n = 0;
  int64_t k = 0;
  WeightFormat format;
  std::vector<uint8_t> codes;  // [n][k], one code per byte, below 2^bits

  // One level: bits of bf16 or fp16, [n][groups]. Two levels: fp16 steps, [n][ceil(k / 256)].
  std::vector<uint16_t> scales;
  std::vector<uint8_t> zeros;     // integer zero points: [n][groups], codes
  std::vector<uint16_t> offsets;  // float zero points: b, in the form of `scales`
  // Two levels: [n][groups]; s = step * code.
  std::vector<int8_t> scale_codes;
  std::vector<int8_t> offset_codes;

  int64_t groups() const { return format.channel_wise() ? 1 : k / format.group_size; }
  int64_t steps() const { return (k + kStepWeights - 1) / kStepWeights; }
};

// InvalidArgument names a field of the shape or the format that is not allowed.
[[nodiscard]] absl::Status CheckShape(int64_t n, int64_t k, const WeightFormat& format);
// InvalidArgument names a plane that has not as many entries as shape and format need.
[[nodiscard]] absl::Status CheckPlanes(const CanonicalWeights& weights);

// Byte sizes of the packed planes of a problem; N and K are padded to multiples of 64.
struct PackedSizes {
  int64_t padded_n = 0;
  int64_t padded_k = 0;
  int64_t groups = 0;  // per row, of the padded K; 1 when channel-wise
  int64_t steps = 0;   // per row, of the padded K; 0 with one level
  int64_t weight_bytes = 0;
  int64_t scale_bytes = 0;
  int64_t zero_bytes = 0;  // 0 without zero points
  int64_t step_bytes = 0;  // 0 with one level
};
PackedSizes PackedSizesFor(int64_t n, int64_t k, const WeightFormat& format);

struct PackedWeights {
  PackedSizes sizes;
  std::vector<uint8_t> weights;
  std::vector<uint8_t> scales;
  std::vector<uint8_t> zeros;
  std::vector<uint8_t> steps;
};

// Packs to kLayoutId on all cores, at about the speed of a copy. InvalidArgument names the plane whose size
// or value does not fit, with index, value and range.
[[nodiscard]] absl::StatusOr<PackedWeights> Pack(const CanonicalWeights& weights);
// The inverse, for tests.
[[nodiscard]] absl::StatusOr<CanonicalWeights> Unpack(const PackedWeights& packed, int64_t n, int64_t k,
                                                      const WeightFormat& format);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_PACKING_H_
