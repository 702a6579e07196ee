#ifndef QGEMM_TESTS_FAKES_FAKE_GPU_H_
#define QGEMM_TESTS_FAKES_FAKE_GPU_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/gpu.h"

namespace qgemm {

// A GPU whose timings are a function of the candidate's name. Records every call. Thread-safe.
class FakeGpu : public Gpu {
 public:
  // Decides a candidate's verdict; by default every candidate is right, with a median made from its name.
  using Behaviour = std::function<absl::StatusOr<internal::ScreenReply>(const GpuCandidate&)>;

  // An H200, driver "580.95".
  static GpuInfo H200();

  void SetBehaviour(Behaviour behaviour);
  // Every call answers this; OK: the GPU works.
  void SetLost(absl::Status status);
  // Prepare() refuses these support kernels, as the GPU process does what its driver cannot load.
  void RefuseSupportKernels(std::string cubin);
  // Finals() alone answers this.
  void SetFinalsStatus(absl::Status status);
  // Screen() blocks from now on until Release().
  void Hold();
  void Release();
  // Screen() hangs from now on, until nobody wants its answer any more: then it says Cancelled, once.
  void HangUntilWithdrawn();
  // Blocks until a Screen() call is held or hangs.
  void AwaitHeld();

  int screens() const;
  int prepares() const;
  int finals() const;
  std::map<std::string, int> screens_by_name() const;
  std::string support_cubin() const;

  absl::StatusOr<GpuInfo> Describe() override;
  void SetSupportKernels(std::string cubin) override;
  absl::Status Prepare(const Problem& problem, int64_t m) override;
  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate, double tolerance,
                                               absl::Duration time_budget) override;
  absl::StatusOr<std::vector<internal::Timing>> Finals(const std::vector<GpuCandidate>& candidates,
                                                       absl::Duration time_budget, double tie_band) override;
  void SetWithdrawn(const std::function<bool()>& withdrawn) override;
  double busy_seconds() const override { return 0; }

  static internal::ScreenReply Right(double median_us);
  static internal::ScreenReply Failed(internal::CandidateFailure failure, const std::string& reason);
  // 5 .. 25 us, the same for the same name.
  static double MedianOf(const std::string& name);

 private:
  bool HangsUntilWithdrawn();
  absl::StatusOr<internal::ScreenReply> VerdictOn(const GpuCandidate& candidate);

  mutable Mutex mu_;
  CondVar changed_;
  Behaviour behaviour_ QGEMM_GUARDED_BY(mu_);
  absl::Status lost_ QGEMM_GUARDED_BY(mu_);
  absl::Status finals_status_ QGEMM_GUARDED_BY(mu_);
  bool holding_ QGEMM_GUARDED_BY(mu_) = false;
  bool hanging_ QGEMM_GUARDED_BY(mu_) = false;
  std::function<bool()> withdrawn_ QGEMM_GUARDED_BY(mu_);
  bool held_ QGEMM_GUARDED_BY(mu_) = false;
  std::map<std::string, int> screens_by_name_ QGEMM_GUARDED_BY(mu_);
  int screens_ QGEMM_GUARDED_BY(mu_) = 0;
  int prepares_ QGEMM_GUARDED_BY(mu_) = 0;
  int finals_ QGEMM_GUARDED_BY(mu_) = 0;
  std::string support_cubin_ QGEMM_GUARDED_BY(mu_);
  std::string refused_support_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_FAKE_GPU_H_
