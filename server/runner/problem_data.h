#ifndef QGEMM_SERVER_RUNNER_PROBLEM_DATA_H_
#define QGEMM_SERVER_RUNNER_PROBLEM_DATA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/problem.h"
#include "server/runner/device.h"
#include "server/runner/support_library.h"

namespace qgemm {

// Memory with a guard on both sides. The inner part starts 256-byte aligned and may have any size; the guard
// behind it begins with the very next byte.
class GuardedRegion {
 public:
  static constexpr uint8_t kGuardByte = 0xa5;
  static constexpr int64_t kFrontBytes = 64 << 10;

  // Makes the inner part `bytes` long with at least `back_bytes` behind it. Keeps the allocation when it
  // fits.
  [[nodiscard]] absl::Status Resize(Device* device, int64_t bytes, int64_t back_bytes);
  uint64_t address() const { return front() + kFrontBytes; }
  int64_t bytes() const { return bytes_; }
  uint64_t front() const { return memory_ != nullptr ? memory_->address() : 0; }
  uint64_t back() const { return address() + bytes_; }
  int64_t back_bytes() const { return back_bytes_; }
  // Puts the guard pattern on both sides.
  [[nodiscard]] absl::Status Arm(Device* device) const;

 private:
  std::unique_ptr<DeviceMemory> memory_;
  int64_t bytes_ = 0;
  int64_t back_bytes_ = 0;
};

// The random data of one (problem, M) on the device, its reference output, and the memory candidates write
// to.
class ProblemData {
 public:
  explicit ProblemData(Device* device) : device_(device) {}

  // Replaces what was prepared before, but keeps the weights when problem and seed are the same. After an
  // error nothing is prepared. ResourceExhausted: the GPU's memory is not enough.
  [[nodiscard]] absl::Status Prepare(SupportLibrary& support, const Problem& problem, int64_t m,
                                     uint64_t seed);
  // Makes the workspace `bytes` long.
  [[nodiscard]] absl::Status ReserveWorkspace(int64_t bytes);

  bool prepared() const { return m_ > 0; }
  const Problem& problem() const { return problem_; }
  int64_t m() const { return m_; }
  int64_t ldx() const { return problem_.k; }
  int64_t ldy() const { return problem_.y_columns(); }
  uint64_t reference() const { return reference_->address(); }  // fp32 [m][columns of Y]
  const GuardedRegion& output() const { return output_; }
  uint64_t first_output() const { return first_output_->address(); }  // room for a copy of the output
  const GuardedRegion& workspace() const { return workspace_; }
  // In how many places of the memory the operands lie, at least 1. A short kernel's time depends by some per
  // cent on where its operands are, and differently for every kernel, so it is timed in many places; place 0
  // is the one that candidates are verified with.
  int placements() const { return 1 + static_cast<int>(copied_.size()); }
  // Of the next Prepare.
  void LimitPlacements(int placements) { most_placements_ = placements; }
  // What a candidate is launched with, but for its workspace.
  LaunchOperands Operands(int placement = 0) const;

  // Copies of the operands: at most so many places, and so many bytes together.
  static constexpr int kMaxPlacements = 32;
  static constexpr int64_t kMaxCopyBytes = int64_t{1} << 30;

 private:
  // Those of problem_.
  absl::Status PrepareWeights(SupportLibrary& support, uint64_t seed);
  // The operands of problem_; 0 where it has none.
  CanonicalAddresses Canonical() const;
  PackedAddresses Packed() const;
  EpilogueAddresses EpilogueOperands() const;
  // Copies of operands and output beside the originals, as many as there is room for; none is no error.
  absl::Status MakeCopies(int64_t m);
  // Allocates unless `memory` has room already.
  absl::Status Reserve(std::unique_ptr<DeviceMemory>& memory, int64_t bytes);

  Device* const device_;
  Problem problem_;
  int64_t m_ = 0;                         // 0: nothing is prepared
  std::optional<uint64_t> weights_seed_;  // set while the weights of problem_ are on the device

  std::unique_ptr<DeviceMemory> codes_, scales_, zeros_, offsets_, scale_codes_, offset_codes_;
  std::unique_ptr<DeviceMemory> packed_weights_, packed_scales_, packed_zeros_, packed_steps_;
  std::unique_ptr<DeviceMemory> x_, bias_, residual_, reference_, first_output_;
  GuardedRegion output_;
  GuardedRegion workspace_;

  int most_placements_ = kMaxPlacements;
  std::unique_ptr<DeviceMemory> copies_;
  std::vector<LaunchOperands> copied_;  // of places 1 and up
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_PROBLEM_DATA_H_
