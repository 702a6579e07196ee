#ifndef QGEMM_TESTS_EMULATOR_VECTOR_CLOCK_H_
#define QGEMM_TESTS_EMULATOR_VECTOR_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace qgemm {

// What a thread, or whoever waits at a barrier, knows of every thread's past: all that thread t did up to its
// time [t].
class VectorClock {
 public:
  VectorClock() = default;
  explicit VectorClock(size_t threads) : times_(threads) {}

  uint32_t operator[](size_t thread) const { return times_[thread]; }
  void Tick(size_t thread) { ++times_[thread]; }
  void Join(const VectorClock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }

 private:
  std::vector<uint32_t> times_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_VECTOR_CLOCK_H_
