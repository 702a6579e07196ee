#ifndef QGEMM_CLIENT_QGEMMCTL_INTERRUPT_H_
#define QGEMM_CLIENT_QGEMMCTL_INTERRUPT_H_

#include <atomic>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "base/unique_fd.h"

namespace qgemm {

// Turns SIGINT and SIGTERM into a call of `on_interrupt` on a thread of its own; where that does not
// end the process in two seconds (it may be waiting for a file), or at a second signal, it ends with exit
// code 130.
class InterruptWatch {
 public:
  // Blocks the two signals in the calling thread and those it starts: call it in main before any other thread
  // is started.
  static void BlockSignals();

  explicit InterruptWatch(std::function<void()> on_interrupt);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const { return interrupted_; }

 private:
  void Run();

  const std::function<void()> on_interrupt_;
  UniqueFd signal_fd_;
  UniqueFd stop_fd_;
  std::atomic<bool> interrupted_ = false;
  std::thread thread_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_INTERRUPT_H_
