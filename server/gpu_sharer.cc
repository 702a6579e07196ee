#include "server/gpu_sharer.h"

#include <atomic>
#include <functional>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace qgemm {

GpuSharer::Turn::Turn(GpuSharer& sharer) : sharer_(sharer) {
  MutexLock lock(sharer_.mu_);
  const uint64_t ticket = sharer_.next_ticket_++;
  while (sharer_.now_serving_ != ticket) sharer_.changed_.Wait(sharer_.mu_);
}

GpuSharer::Turn::~Turn() {
  MutexLock lock(sharer_.mu_);
  ++sharer_.now_serving_;
  sharer_.changed_.NotifyAll();
}

class GpuSharer::User : public Gpu {
 public:
  explicit User(GpuSharer& sharer) : sharer_(sharer) {}
  ~User() override {
    Turn turn(sharer_);
    if (sharer_.last_user_ == this) sharer_.last_user_ = nullptr;
  }

  absl::StatusOr<GpuInfo> Describe() override {
    Turn turn(sharer_);
    return sharer_.gpu_.Describe();
  }

  void SetSupportKernels(std::string cubin) override {
    Turn turn(sharer_);
    support_cubin_ = std::move(cubin);
    if (sharer_.last_user_ == this) sharer_.last_user_ = nullptr;  // handed on by the next Prepare
  }

  // The user's own, like its calls: handed on with its turn.
  void SetWithdrawn(const std::function<bool()>& withdrawn) override { withdrawn_ = withdrawn; }

  absl::Status Prepare(const Problem& problem, int64_t m) override {
    Turn turn(sharer_);
    Busy busy(*this);
    prepared_ = {problem, m};
    return PrepareHere();
  }

  absl::StatusOr<internal::ScreenReply> Screen(const GpuCandidate& candidate, double tolerance,
                                               absl::Duration time_budget) override {
    Turn turn(sharer_);
    Busy busy(*this);
    QGEMM_RETURN_IF_ERROR(Restore());
    return sharer_.gpu_.Screen(candidate, tolerance, time_budget);
  }

  absl::StatusOr<std::vector<internal::Timing>> Finals(const std::vector<GpuCandidate>& candidates,
                                                       absl::Duration time_budget, double tie_band) override {
    Turn turn(sharer_);
    Busy busy(*this);
    QGEMM_RETURN_IF_ERROR(Restore());
    return sharer_.gpu_.Finals(candidates, time_budget, tie_band);
  }

  double busy_seconds() const override { return busy_seconds_.load(); }

 private:
  // Counts what the GPU was busy during one call as this user's, and lends it this user's withdrawal.
  class Busy {
   public:
    explicit Busy(User& user) : user_(user), before_(user.sharer_.gpu_.busy_seconds()) {
      user_.sharer_.gpu_.SetWithdrawn(user_.withdrawn_);
    }
    ~Busy() {
      user_.sharer_.gpu_.SetWithdrawn(nullptr);
      user_.busy_seconds_ = user_.busy_seconds_.load() + user_.sharer_.gpu_.busy_seconds() - before_;
    }

   private:
    User& user_;
    const double before_;
  };

  struct Prepared {
    Problem problem;
    int64_t m = 0;
  };

  absl::Status Restore() {
    if (sharer_.last_user_ == this || !prepared_.has_value()) return absl::OkStatus();
    return PrepareHere();
  }

  absl::Status PrepareHere() {
    if (sharer_.last_user_ != this && support_cubin_.has_value()) {
      sharer_.gpu_.SetSupportKernels(*support_cubin_);
    }
    sharer_.last_user_ = nullptr;
    QGEMM_RETURN_IF_ERROR(sharer_.gpu_.Prepare(prepared_->problem, prepared_->m));
    sharer_.last_user_ = this;
    return absl::OkStatus();
  }

  GpuSharer& sharer_;
  // Touched by the turn's holder alone.
  std::optional<std::string> support_cubin_;
  std::optional<Prepared> prepared_;
  std::function<bool()> withdrawn_;
  std::atomic<double> busy_seconds_{0};
};

int GpuSharer::waiting() {
  MutexLock lock(mu_);
  return next_ticket_ == now_serving_ ? 0 : static_cast<int>(next_ticket_ - now_serving_) - 1;
}

std::unique_ptr<Gpu> GpuSharer::NewUser() { return std::make_unique<User>(*this); }

}  // namespace qgemm
