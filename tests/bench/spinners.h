#ifndef QGEMM_TESTS_BENCH_SPINNERS_H_
#define QGEMM_TESTS_BENCH_SPINNERS_H_

#include <sys/types.h>

#include <vector>

namespace qgemm {

// Processes that keep cores busy, one each: a host on which everybody compiles. Made before any thread
// exists; they begin paused, and end with this process.
class Spinners {
 public:
  explicit Spinners(int count);
  ~Spinners();
  Spinners(const Spinners&) = delete;
  Spinners& operator=(const Spinners&) = delete;

  void Run();
  void Pause();
  int count() const { return static_cast<int>(pids_.size()); }

 private:
  void Send(int signal);
  std::vector<pid_t> pids_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_BENCH_SPINNERS_H_
