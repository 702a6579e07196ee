#ifndef QGEMM_SERVER_GPU_SHARER_H_
#define QGEMM_SERVER_GPU_SHARER_H_

#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "server/gpu.h"

namespace qgemm {

// Lets several users share the pinned GPU, each as if it were alone: calls take turns in the order in which
// they come, and what a user prepared is prepared again when somebody else used the GPU since. Thread-safe;
// each user's own calls come one at a time, as Gpu says. Outlives its users.
class GpuSharer {
 public:
  // `gpu` is borrowed.
  explicit GpuSharer(Gpu& gpu) : gpu_(gpu) {}
  GpuSharer(const GpuSharer&) = delete;
  GpuSharer& operator=(const GpuSharer&) = delete;

  std::unique_ptr<Gpu> NewUser();
  // Calls that wait for their turn now.
  int waiting();

 private:
  class User;
  // Holds the GPU while it lives. First come, first served: a tuning asks again right after each candidate,
  // and a plain mutex would let it starve everybody else.
  class Turn {
   public:
    explicit Turn(GpuSharer& sharer);
    ~Turn();

   private:
    GpuSharer& sharer_;
  };

  Gpu& gpu_;
  Mutex mu_;
  CondVar changed_;
  uint64_t next_ticket_ QGEMM_GUARDED_BY(mu_) = 0;
  uint64_t now_serving_ QGEMM_GUARDED_BY(mu_) = 0;
  const User* last_user_ = nullptr;  // whose data is on the GPU; touched by the turn's holder alone
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_GPU_SHARER_H_
