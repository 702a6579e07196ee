#ifndef QGEMM_CLIENT_BUNDLE_BUNDLE_WRITER_H_
#define QGEMM_CLIENT_BUNDLE_BUNDLE_WRITER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bundle/manifest.h"
#include "client/bundle/safetensors.h"

namespace qgemm {

// Writes a bundle: into a directory beside the target first, which takes the target's place when all of it is
// there. The same methods, kernels and weights make the same bytes. Not thread-safe.
class BundleWriter {
 public:
  // `path`: a tar file when it ends in ".tar", else a directory. FailedPrecondition: something that is no
  // bundle stands there, or nothing can be written.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BundleWriter>> Create(const std::string& path);
  // Removes what is unfinished.
  ~BundleWriter();
  BundleWriter(const BundleWriter&) = delete;
  BundleWriter& operator=(const BundleWriter&) = delete;

  // Adds a kernel once. InvalidArgument: the bytes have another digest.
  [[nodiscard]] absl::Status AddKernel(const BundleKernel& kernel, absl::string_view cubin);
  // InvalidArgument: see ValidateMethod; a name used twice.
  [[nodiscard]] absl::Status AddMethod(const BundleMethod& method);
  // Where the packed planes go; there is a weights file when this was called.
  [[nodiscard]] absl::StatusOr<SafetensorsWriter*> Weights();

  // FailedPrecondition: a pick's kernel was not added; ResourceExhausted: the disk is full.
  [[nodiscard]] absl::Status Finish();

 private:
  explicit BundleWriter(std::string path);
  [[nodiscard]] absl::Status WriteFile(const std::string& name, absl::string_view bytes);
  [[nodiscard]] absl::Status Pack(const std::string& archive);

  const std::string path_;
  const bool is_tar_;
  const std::string staging_;  // a directory
  std::map<std::string, BundleKernel> kernels_;
  std::map<std::string, BundleMethod> methods_;
  std::unique_ptr<SafetensorsWriter> weights_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_BUNDLE_WRITER_H_
