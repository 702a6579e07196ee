#ifndef QGEMM_TESTS_EMULATOR_GLOBAL_MEMORY_H_
#define QGEMM_TESTS_EMULATOR_GLOBAL_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace qgemm {

// Buffers of the emulated GPU with forbidden ground around each. Fresh ones hold NaNs.
class GlobalMemory {
 public:
  struct Buffer {
    std::string name;
    uint8_t* begin = nullptr;
    uint64_t bytes = 0;
    // What the kernel before may still write or read: touched only after griddepcontrol.wait.
    bool of_kernel_before = false;
    bool writable = false;
  };

  GlobalMemory();
  ~GlobalMemory();
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;

  // 256-byte aligned; of 0 bytes too.
  uint8_t* Allocate(std::string name, uint64_t bytes, bool writable, bool of_kernel_before);
  uint8_t* Copy(std::string name, const void* data, uint64_t bytes, bool of_kernel_before = false);

  bool Contains(const void* p) const {
    return static_cast<const uint8_t*>(p) >= arena_ && static_cast<const uint8_t*>(p) < arena_ + kArenaBytes;
  }
  // The buffer that the access is wholly in, or null with the reason in `wrong`.
  const Buffer* Find(const void* p, uint64_t bytes, bool write, std::string* wrong) const;

 private:
  static constexpr uint64_t kArenaBytes = uint64_t{1} << 32;

  uint8_t* arena_;
  uint64_t used_ = 0;
  std::vector<Buffer> buffers_;  // by address
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_GLOBAL_MEMORY_H_
