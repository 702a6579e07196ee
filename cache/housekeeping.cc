#include "cache/housekeeping.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/eviction.h"
#include "spdlog/spdlog.h"

namespace qgemm {

Housekeeping::Housekeeping(RocksDbStore& store, Clock& clock, const HousekeepingOptions& options)
    : store_(store),
      clock_(clock),
      options_(options),
      next_flush_(clock.Now() + options.flush_interval),
      next_expiry_(clock.Now()) {}

Housekeeping::~Housekeeping() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  stop_cv_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  // What is not written down makes entries look a little older.
  store_.FlushUses().IgnoreError();
}

void Housekeeping::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void Housekeeping::Loop() {
  while (true) {
    {
      MutexLock lock(mu_);
      const TimePoint next = clock_.Now() + options_.look_interval;
      while (!stopping_ && clock_.WaitUntil(mu_, stop_cv_, next)) {
      }
      if (stopping_) return;
    }
    RunDue();
  }
}

void Housekeeping::RunDue() {
  if (store_.RenewIfDeleted()) return;
  store_.Heal();
  if (!store_.write_error().ok()) return;
  absl::Status status;
  if (clock_.Now() >= next_flush_) {
    next_flush_ = clock_.Now() + options_.flush_interval;
    status = store_.FlushUses();
  }
  if (status.ok() && clock_.Now() >= next_expiry_) {
    next_expiry_ = clock_.Now() + options_.expiry_interval;
    const absl::StatusOr<RemovedEntries> expired = Expire(store_, options_.retention, clock_.WallUnixMs());
    status = expired.status();
    if (expired.ok() && expired->kernels + expired->picks + expired->timings > 0) {
      spdlog::info(
          "store: {} kernels, {} picks and {} timings had not been used for too long and were removed",
          expired->kernels, expired->picks, expired->timings);
      store_.RequestCompaction();
    }
  }
  if (status.ok() && store_.TakeCompactionRequest()) status = store_.Compact();
  if (status.ok()) status = store_.MakeRoom();
  if (!status.ok() && !complained_) spdlog::warn("store: housekeeping: {}", std::string(status.message()));
  complained_ = !status.ok();
}

}  // namespace qgemm
