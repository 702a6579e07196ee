#ifndef QGEMM_CLIENT_BUNDLE_BUNDLE_H_
#define QGEMM_CLIENT_BUNDLE_BUNDLE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/bundle/manifest.h"
#include "client/bundle/mapped_file.h"
#include "client/bundle/safetensors.h"

namespace qgemm {

// A bundle on disk, a directory or a tar file, read-only. What it returns as string_view is mapped memory
// that lives as long as the bundle. Thread-safe once opened; movable, views stay valid.
class Bundle {
 public:
  // Maps every file and reads the manifest; no digest is computed. NotFound: there is nothing; DataLoss: it
  // is damaged; FailedPrecondition: a version or layout this program does not know.
  [[nodiscard]] static absl::StatusOr<Bundle> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const BundleManifest& manifest() const { return manifest_; }
  // All files by name.
  const std::map<std::string, absl::string_view>& files() const { return files_; }

  // NotFound lists the names there are.
  [[nodiscard]] absl::StatusOr<BundleMethod> Method(absl::string_view name) const;
  // The bytes of a kernel, with their digest checked.
  [[nodiscard]] absl::StatusOr<absl::string_view> Cubin(absl::string_view sha256) const;
  // All tensors of the weights file; empty without one.
  [[nodiscard]] absl::StatusOr<std::map<std::string, TensorView>> Weights() const;

  // Whether it is complete and undamaged: every file is listed and has its size and digest, every pick's
  // kernel is there, every layer's planes are there at their sizes, and no kernel writes what its launch does
  // not say (by its access report). DataLoss names the first that is not.
  [[nodiscard]] absl::Status Verify() const;

 private:
  explicit Bundle(std::string path) : path_(std::move(path)) {}
  [[nodiscard]] absl::Status MapDirectory();
  [[nodiscard]] absl::StatusOr<absl::string_view> File(absl::string_view name) const;
  [[nodiscard]] absl::Status CheckFile(const BundleManifest::File& file) const;
  [[nodiscard]] absl::Status CheckMethod(const BundleMethod& method,
                                         const std::map<std::string, TensorView>& weights) const;

  std::string path_;
  std::vector<MappedFile> mapped_;
  std::map<std::string, absl::string_view> files_;
  BundleManifest manifest_;
};

// DataLoss: by its access report the kernel writes an argument that the launch does not declare as written.
[[nodiscard]] absl::Status CheckAccess(const BundleKernel& kernel, const LaunchSpec& launch);

// A plane of a layer's packed weights: its role's name and its size.
struct PlaneSize {
  const char* plane;  // "weights", "scales", "zeros", "steps", "bias": the tensor "<weight key>.<plane>"
  int64_t bytes = 0;
};
std::vector<PlaneSize> PlanesOf(const Problem& problem);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_BUNDLE_H_
