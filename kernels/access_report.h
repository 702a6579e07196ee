#ifndef QGEMM_KERNELS_ACCESS_REPORT_H_
#define QGEMM_KERNELS_ACCESS_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace qgemm {

// What a kernel does with the memory behind one of its parameters: a pointer, or a tensor map passed by
// value.
struct ParameterAccess {
  int index = 0;  // of the kernel's parameters, from 0
  bool read = false;
  bool written = false;
  // Bytes of the widest single access seen: what the pointer must be aligned to. 0: never accessed.
  int alignment = 0;

  friend bool operator==(const ParameterAccess&, const ParameterAccess&) = default;
};

struct AccessReport {
  // Every parameter that may be a pointer, in order, accessed or not. Never more precise than the truth: what
  // is not marked written is not written.
  std::vector<ParameterAccess> parameters;
  // Why the analysis failed; empty when it did not. After a failure every parameter is read and written.
  std::string failure;

  bool failed() const { return !failure.empty(); }
  // The entry of a parameter; null when it is no pointer.
  const ParameterAccess* Find(int index) const;

  friend bool operator==(const AccessReport&, const AccessReport&) = default;
};

// Follows a kernel's pointer parameters through its PTX to loads, stores, atomics, reductions, discarded
// lines and asynchronous (bulk, tensor) copies; what is only prefetched into a cache is not accessed.
// Registers are followed without regard to control flow, so that every path is covered. Whatever the walk
// does not understand and a pointer goes into - a call, a pointer kept in memory, an instruction unknown
// here, an address that comes from no parameter - is a failure.
//
// `pointers`: which parameters are pointers or tensor maps, by index; without it every parameter of 8 bytes
// or more counts as one that may be.
AccessReport AnalyzeAccess(absl::string_view ptx, absl::string_view entry,
                           std::optional<absl::Span<const int>> pointers = std::nullopt);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_ACCESS_REPORT_H_
