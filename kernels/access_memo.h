#ifndef QGEMM_KERNELS_ACCESS_MEMO_H_
#define QGEMM_KERNELS_ACCESS_MEMO_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "kernels/access_report.h"

namespace qgemm {

// One argument of a kernel call, as far as the analysis of its accesses may depend on it.
struct CallArgument {
  enum class Kind : uint8_t {
    kPointer,   // dtype, and whether the address is a multiple of 16
    kScalar,    // dtype and value
    kSymbolic,  // dtype; any symbolic size is like any other
    kOpaque,    // anything else: the call has no key
  };
  Kind kind = Kind::kOpaque;
  int32_t dtype = 0;   // the caller's numbering
  uint64_t value = 0;  // kPointer: the address; kScalar: the value's bits

  static CallArgument Pointer(int32_t dtype, uint64_t address) { return {Kind::kPointer, dtype, address}; }
  static CallArgument Scalar(int32_t dtype, uint64_t bits) { return {Kind::kScalar, dtype, bits}; }
  static CallArgument Symbolic(int32_t dtype) { return {Kind::kSymbolic, dtype, 0}; }
  static CallArgument Opaque() { return {}; }
};

// Access reports by kernel and call signature: each signature is analysed once, also when several threads ask
// for it at the same time. Thread-safe.
class AccessMemo {
 public:
  // The report of a kernel (any text that names it uniquely, such as its SHA-256) called with these
  // arguments; `analyze` makes it where there is none. A failed report is returned, but not kept; a call with
  // an opaque argument is analysed every time. Reports are shared and constant: whoever wants to change one
  // changes a copy.
  std::shared_ptr<const AccessReport> Get(absl::string_view kernel, absl::Span<const CallArgument> arguments,
                                          absl::FunctionRef<AccessReport()> analyze) QGEMM_EXCLUDES(mu_);

  struct Counts {
    int64_t analyses = 0;  // calls of `analyze`
    int64_t failures = 0;  // of them failed
    int64_t repeats = 0;   // calls of Get that were answered without
  };
  Counts counts() const QGEMM_EXCLUDES(mu_);

 private:
  struct Signature {
    std::shared_ptr<Mutex> analysis =
        std::make_shared<Mutex>();               // held meanwhile; taken before AccessMemo::mu_
    std::shared_ptr<const AccessReport> report;  // null: not analysed yet
  };

  std::shared_ptr<const AccessReport> Analyze(absl::FunctionRef<AccessReport()> analyze) QGEMM_EXCLUDES(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Signature> signatures_ QGEMM_GUARDED_BY(mu_);
  Counts counts_ QGEMM_GUARDED_BY(mu_);
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_ACCESS_MEMO_H_
