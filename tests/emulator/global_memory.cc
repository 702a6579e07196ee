#include "tests/emulator/global_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace qgemm {
namespace {
constexpr uint64_t kAlignment = 256;
constexpr uint64_t kForbidden = 1 << 16;
constexpr int kNobodysByte = 0xff;
}  // namespace

GlobalMemory::GlobalMemory() {
  void* p =
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  QGEMM_CHECK(p != MAP_FAILED);
  arena_ = static_cast<uint8_t*>(p);
}

GlobalMemory::~GlobalMemory() { munmap(arena_, kArenaBytes); }

uint8_t* GlobalMemory::Allocate(std::string name, uint64_t bytes, bool writable, bool of_kernel_before) {
  const uint64_t begin = (used_ + kForbidden + kAlignment - 1) / kAlignment * kAlignment;
  QGEMM_CHECK(begin + bytes + kForbidden < kArenaBytes);
  used_ = begin + bytes;
  buffers_.push_back({std::move(name), arena_ + begin, bytes, of_kernel_before, writable});
  std::memset(arena_ + begin, kNobodysByte, bytes);
  return arena_ + begin;
}

uint8_t* GlobalMemory::Copy(std::string name, const void* data, uint64_t bytes, bool of_kernel_before) {
  uint8_t* p = Allocate(std::move(name), bytes, false, of_kernel_before);
  if (bytes > 0) std::memcpy(p, data, bytes);
  return p;
}

const GlobalMemory::Buffer* GlobalMemory::Find(const void* p, uint64_t bytes, bool write,
                                               std::string* wrong) const {
  const auto* address = static_cast<const uint8_t*>(p);
  auto next = std::upper_bound(buffers_.begin(), buffers_.end(), address,
                               [](const uint8_t* a, const Buffer& b) { return a < b.begin; });
  if (next == buffers_.begin()) {
    *wrong = "touches global memory before all buffers";
    return nullptr;
  }
  const Buffer& buffer = *--next;
  const int64_t offset = address - buffer.begin;
  if (offset + static_cast<int64_t>(bytes) > static_cast<int64_t>(buffer.bytes)) {
    *wrong = absl::StrCat(write ? "writes " : "reads ", bytes, " bytes at byte ", offset, " of ", buffer.name,
                          ", which has ", buffer.bytes);
    return nullptr;
  }
  if (write && !buffer.writable) {
    *wrong = absl::StrCat("writes byte ", offset, " of ", buffer.name, ", which is read only");
    return nullptr;
  }
  return &buffer;
}

}  // namespace qgemm
