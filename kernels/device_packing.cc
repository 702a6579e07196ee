#include "kernels/device_packing.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/packing.h"
#include "kernels/support_kernels.h"

namespace qgemm {
namespace {

// Of the packed planes: kernels read them 16 bytes at a time.
constexpr uint64_t kPlaneAlignment = 16;
constexpr int kBlockRows = 16;

absl::Status CheckAddress(absl::string_view plane, uint64_t address, uint64_t alignment) {
  if (address == 0) return absl::InvalidArgumentError(absl::StrCat(plane, " is null: this format has it"));
  if (address % alignment == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(plane, " is at address ", address, ", which is not a multiple of ", alignment));
}

}  // namespace

std::vector<void*> SupportLaunch::Params() {
  std::vector<void*> params;
  for (uint64_t& value : values) params.push_back(&value);
  return params;
}

absl::StatusOr<std::vector<SupportLaunch>> PackLaunches(int64_t n, int64_t k, const WeightFormat& format,
                                                        const CanonicalAddresses& from,
                                                        const PackedAddresses& to, int sm_count) {
  QGEMM_RETURN_IF_ERROR(CheckShape(n, k, format));
  const PackedSizes sizes = PackedSizesFor(n, k, format);
  const int64_t groups = format.channel_wise() ? 1 : k / format.group_size;
  const int64_t steps = (k + kStepWeights - 1) / kStepWeights;

  std::vector<SupportLaunch> launches;
  const auto add = [&](const char* entry, int64_t items, std::vector<uint64_t> values) {
    const int64_t blocks = (items + support::kThreads - 1) / support::kThreads;
    const Dim3 grid = {std::clamp<int64_t>(blocks, 1, int64_t{sm_count} * 8), 1, 1};
    launches.push_back({entry, grid, support::kThreads, std::move(values)});
  };
  // [n][count] numbers or bytes to [padded_n / 16][padded][8][2].
  struct Plane {
    absl::string_view name, packed_name;
    uint64_t source, target;
  };
  const auto add_plane = [&](const char* entry, const Plane& plane, int64_t count, int64_t padded,
                             int last) -> absl::Status {
    QGEMM_RETURN_IF_ERROR(CheckAddress(plane.name, plane.source, entry == support::kPackNumbers ? 2 : 1));
    QGEMM_RETURN_IF_ERROR(CheckAddress(plane.packed_name, plane.target, kPlaneAlignment));
    add(entry, sizes.padded_n * padded,
        {plane.source, plane.target, static_cast<uint64_t>(n), static_cast<uint64_t>(count),
         static_cast<uint64_t>(sizes.padded_n), static_cast<uint64_t>(padded), static_cast<uint64_t>(last)});
    return absl::OkStatus();
  };
  const auto numbers = [&](const Plane& plane) {
    return add_plane(support::kPackNumbers, plane, groups, sizes.groups, kBlockRows);
  };
  const auto bytes = [&](const Plane& plane, int padding) {
    return add_plane(support::kPackBytes, plane, groups, sizes.groups, padding);
  };

  QGEMM_RETURN_IF_ERROR(CheckAddress("codes", from.codes, 1));
  QGEMM_RETURN_IF_ERROR(CheckAddress("packed weights", to.weights, kPlaneAlignment));
  add(support::kPackWeights, sizes.padded_n * sizes.padded_k / 32,
      {from.codes, to.weights, static_cast<uint64_t>(n), static_cast<uint64_t>(k),
       static_cast<uint64_t>(sizes.padded_n), static_cast<uint64_t>(sizes.padded_k),
       static_cast<uint64_t>(format.bits)});
  const bool floats = format.zero_point == ZeroPoint::kFloat;
  if (format.zero_point == ZeroPoint::kInteger) {
    QGEMM_RETURN_IF_ERROR(bytes({"zeros", "packed zeros", from.zeros, to.zeros}, format.center()));
  }
  if (!format.two_level()) {
    QGEMM_RETURN_IF_ERROR(numbers({"scales", "packed scales", from.scales, to.scales}));
    if (floats) QGEMM_RETURN_IF_ERROR(numbers({"offsets", "packed zeros", from.offsets, to.zeros}));
    return launches;
  }
  // The steps of the scales and of the offsets stand beside each other.
  const int pitch = floats ? 2 * kBlockRows : kBlockRows;
  QGEMM_RETURN_IF_ERROR(bytes({"scale_codes", "packed scales", from.scale_codes, to.scales}, 0));
  QGEMM_RETURN_IF_ERROR(add_plane(support::kPackNumbers, {"scales", "packed steps", from.scales, to.steps},
                                  steps, sizes.steps, pitch));
  if (!floats) return launches;
  QGEMM_RETURN_IF_ERROR(bytes({"offset_codes", "packed zeros", from.offset_codes, to.zeros}, 0));
  QGEMM_RETURN_IF_ERROR(
      add_plane(support::kPackNumbers,
                {"offsets", "packed steps", from.offsets, to.steps + kBlockRows * sizeof(uint16_t)}, steps,
                sizes.steps, pitch));
  return launches;
}

}  // namespace qgemm
