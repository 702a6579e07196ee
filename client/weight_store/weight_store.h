#ifndef QGEMM_CLIENT_WEIGHT_STORE_WEIGHT_STORE_H_
#define QGEMM_CLIENT_WEIGHT_STORE_WEIGHT_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bundle/safetensors.h"

namespace qgemm {

// A tensor of a method that is being exported.
struct WeightEntry {
  enum class Kind {
    kWeight,           // on the GPU, the same in every method that has its key
    kCpuTensor,        // the same, in the host's memory
    kLibraryConstant,  // local to one compiled method; the caller's key names the method
    kState,            // KV caches and other state: its bytes may differ each time
  };
  std::string key;  // its name in the weights file
  Kind kind = Kind::kWeight;
  std::string dtype;  // of safetensors: "U8", "BF16", ...
  std::vector<int64_t> shape;
  // Something that differs when the bytes differ (kernels/fingerprint.h), made where the bytes are. Called
  // for kWeight only; may be empty: then its bytes are read each time.
  std::function<absl::StatusOr<std::string>()> fingerprint;
  // The bytes, valid until the next call.
  std::function<absl::StatusOr<absl::string_view>()> read;
};

// Writes the weights of several methods to one file, each key once: a weight whose fingerprint is that of an
// earlier method's is neither copied from the GPU nor written again. Everything but kWeight is never
// fingerprinted and always written. The file's bytes are the same with and without skipping. Not thread-safe.
class WeightStore {
 public:
  // `out` must outlive the store.
  explicit WeightStore(SafetensorsWriter& out, bool skip_repeats = true)
      : out_(out), skip_repeats_(skip_repeats) {}

  enum class Outcome { kWritten, kSkipped };
  // InvalidArgument: a weight or CPU tensor has other bytes, or any entry another form, than an earlier one
  // under its key; ResourceExhausted: the disk is full; else what `fingerprint` and `read` answer.
  [[nodiscard]] absl::StatusOr<Outcome> Add(const WeightEntry& entry);

  struct Counts {
    int64_t written = 0;
    int64_t skipped = 0;
    int64_t fingerprints = 0;
    int64_t bytes_written = 0;
    int64_t bytes_skipped = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Known {
    WeightEntry::Kind kind = WeightEntry::Kind::kWeight;
    int64_t bytes = 0;
    std::string digest;       // SHA-256 of the bytes
    std::string fingerprint;  // empty: none was made
  };

  SafetensorsWriter& out_;
  const bool skip_repeats_;
  std::map<std::string, Known> known_;
  Counts counts_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_WEIGHT_STORE_WEIGHT_STORE_H_
