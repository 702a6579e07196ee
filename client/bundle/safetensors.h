#ifndef QGEMM_CLIENT_BUNDLE_SAFETENSORS_H_
#define QGEMM_CLIENT_BUNDLE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace qgemm {

// The safetensors format (github.com/huggingface/safetensors): the length of a JSON header as 8 bytes, the
// header, the tensors' bytes one after the other.

struct TensorView {
  std::string dtype;  // "U8", "BF16", "F16", ...
  std::vector<int64_t> shape;
  absl::string_view bytes;
};

// All tensors of a file by name; bytes point into `file`. DataLoss names the tensor, its offsets and what is
// wrong with them.
[[nodiscard]] absl::StatusOr<std::map<std::string, TensorView>> ReadSafetensors(absl::string_view file);

// Bytes of one element of a dtype; 0 for an unknown one.
int SafetensorsElementBytes(absl::string_view dtype);

// Writes a file tensor by tensor, without holding any of them: the data goes to a temporary file beside it
// until the header is known. The same tensors in the same order make the same bytes. Not thread-safe.
class SafetensorsWriter {
 public:
  // FailedPrecondition: nothing can be written there.
  [[nodiscard]] static absl::StatusOr<SafetensorsWriter> Create(const std::string& path);
  SafetensorsWriter(SafetensorsWriter&&) = default;
  ~SafetensorsWriter();

  // Adds a tensor, or writes an earlier one of this name again. InvalidArgument: the size does not fit dtype
  // and shape, or the tensor had another form before; ResourceExhausted: the disk is full.
  [[nodiscard]] absl::Status Write(const std::string& name, absl::string_view dtype,
                                   const std::vector<int64_t>& shape, absl::string_view bytes);
  // Writes header and data to the path, synced. `metadata` are pairs of text for __metadata__.
  [[nodiscard]] absl::Status Finish(const std::map<std::string, std::string>& metadata);

 private:
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  SafetensorsWriter(std::string path, UniqueFd data) : path_(std::move(path)), data_(std::move(data)) {}
  std::string data_path() const { return path_ + ".data"; }

  std::string path_;
  UniqueFd data_;
  std::map<std::string, Entry> entries_;
  int64_t end_ = 0;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_SAFETENSORS_H_
