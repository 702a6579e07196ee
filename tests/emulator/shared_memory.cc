#include "tests/emulator/shared_memory.h"

#include <sys/mman.h>

#include <cstring>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace qgemm {
namespace {
constexpr int kNobodysByte = 0xff;
}  // namespace

SharedMemory::SharedMemory(uint32_t bytes) : end_(kFirst + bytes), units_((end_ + kUnit - 1) / kUnit) {
  // A page's alignment is more than any that a kernel asks for.
  void* p =
      mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  QGEMM_CHECK(p != MAP_FAILED && end_ <= kMapped);
  bytes_ = static_cast<uint8_t*>(p);
  std::memset(bytes_, kNobodysByte, end_);
}

SharedMemory::~SharedMemory() { munmap(bytes_, kMapped); }

std::string SharedMemory::Check(uint32_t address, uint32_t bytes, const char* what) const {
  if (address >= kFirst && address + bytes <= end_) return "";
  return absl::StrFormat("%s %d bytes at shared address 0x%x; the CTA has 0x%x to 0x%x", what, bytes, address,
                         kFirst, end_);
}

std::string SharedMemory::Read(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now) {
  if (std::string wrong = Check(address, bytes, "reads"); !wrong.empty()) return wrong;
  std::string wrong;
  for (uint32_t i = address / kUnit; i <= (address + bytes - 1) / kUnit; ++i) {
    Unit& unit = units_[i];
    if (unit.copying) {
      wrong = absl::StrFormat(
          "reads shared 0x%x, into which thread %d's asynchronous copy is not known to be complete",
          i * kUnit, unit.write.thread);
    } else if (unit.written && unit.write.thread != thread && now[unit.write.thread] < unit.write.time) {
      wrong = absl::StrFormat("reads shared 0x%x, which thread %d wrote with no barrier between", i * kUnit,
                              unit.write.thread);
    }
    size_t kept = 0;
    for (const Epoch& read : unit.reads) {
      if (now[read.thread] < read.time) unit.reads[kept++] = read;
    }
    unit.reads.resize(kept);
    unit.reads.push_back({static_cast<uint32_t>(thread), now[thread]});
  }
  return wrong;
}

std::string SharedMemory::Write(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now) {
  if (std::string wrong = Check(address, bytes, "writes"); !wrong.empty()) return wrong;
  std::string wrong;
  for (uint32_t i = address / kUnit; i <= (address + bytes - 1) / kUnit; ++i) {
    Unit& unit = units_[i];
    if (unit.copying) {
      wrong = absl::StrFormat(
          "writes shared 0x%x, into which thread %d's asynchronous copy is not known to be complete",
          i * kUnit, unit.write.thread);
    } else if (unit.written && unit.write.thread != thread && now[unit.write.thread] < unit.write.time) {
      wrong = absl::StrFormat("writes shared 0x%x, which thread %d wrote with no barrier between", i * kUnit,
                              unit.write.thread);
    }
    for (const Epoch& read : unit.reads) {
      if (read.thread != thread && now[read.thread] < read.time) {
        wrong = absl::StrFormat("writes shared 0x%x, which thread %d read with no barrier between", i * kUnit,
                                read.thread);
      }
    }
    unit.reads.clear();
    unit.written = true;
    unit.write = {static_cast<uint32_t>(thread), now[thread]};
  }
  return wrong;
}

std::string SharedMemory::BeginCopy(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now) {
  std::string wrong = Write(address, bytes, thread, now);
  if (!Check(address, bytes, "copies").empty()) return wrong;
  for (uint32_t i = address / kUnit; i <= (address + bytes - 1) / kUnit; ++i) units_[i].copying = true;
  std::memset(At(address), kNobodysByte, bytes);
  return wrong;
}

void SharedMemory::EndCopy(uint32_t address, uint32_t bytes, size_t thread, const VectorClock& now) {
  for (uint32_t i = address / kUnit; i <= (address + bytes - 1) / kUnit; ++i) {
    units_[i].copying = false;
    units_[i].write = {static_cast<uint32_t>(thread), now[thread]};
  }
}

}  // namespace qgemm
