#ifndef QGEMM_TESTS_EMULATOR_SHARED_MEMORY_H_
#define QGEMM_TESTS_EMULATOR_SHARED_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/emulator/vector_clock.h"

namespace qgemm {

// A CTA's shared memory and who may touch what of it when: an access is a race unless every earlier one of
// another thread that it conflicts with happened before it, by barriers alone. (FastTrack, Flanagan and
// Freund, PLDI 2009, in units of two bytes.) Bytes nobody has written are NaNs.
class SharedMemory {
 public:
  // Addresses begin here, as the first KiB of a CTA's shared memory is the system's.
  static constexpr uint32_t kFirst = 1024;
  static constexpr int kUnit = 2;

  explicit SharedMemory(uint32_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Or is near enough that it was meant to: what misses goes nowhere that matters.
  bool Contains(const void* p) const {
    return static_cast<const uint8_t*>(p) >= bytes_ && static_cast<const uint8_t*>(p) < bytes_ + kMapped;
  }
  uint8_t* At(uint32_t address) const { return bytes_ + address; }
  uint32_t AddressOf(const void* p) const {
    return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - bytes_);
  }
  uint32_t end() const { return end_; }
  // What lies from here on, up to the size it was made with, is not the CTA's.
  void set_end(uint32_t end) { end_ = std::min(end, end_); }

  // Each returns what is wrong with the access, or nothing. `thread` is the accessing one, `now` its clock.
  std::string Read(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now);
  std::string Write(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now);
  // From its issue to its completion a copy may put its bytes there at any time: nobody reads or writes them.
  std::string BeginCopy(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now);
  void EndCopy(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now);

 private:
  static constexpr uint32_t kMapped = 4 << 20;

  struct Epoch {
    uint32_t thread = 0;
    uint32_t time = 0;
  };
  struct Unit {
    Epoch write;
    bool written = false;
    bool copying = false;
    std::vector<Epoch> reads;  // since that write, of those not known to be past
  };

  std::string Check(uint32_t address, uint32_t bytes, const char* what) const;

  uint8_t* bytes_;  // of address 0
  uint32_t end_;
  std::vector<Unit> units_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_SHARED_MEMORY_H_
