#ifndef QGEMM_CLIENT_BUNDLE_MANIFEST_H_
#define QGEMM_CLIENT_BUNDLE_MANIFEST_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/launch_spec.h"
#include "kernels/problem.h"

namespace qgemm {

// What a bundle's files say, as values; client/bundle/manifest.schema.json is the same as a JSON schema.

inline constexpr int kBundleVersion = 1;
inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kWeightsFile[] = "weights.safetensors";

// One kernel with its launch for one bucket of a layer: a line of the lock file.
struct BundlePick {
  int m_bucket = 0;
  std::string kernel_sha256;
  std::string config;
  std::string reduction;  // "none", "workspace", "cluster"; launch has the split
  // The evidence, as the daemon gave it.
  std::string target;
  std::string source;  // "MEASURED", "SIMILAR", "MODEL"
  std::string confidence;
  double predicted_us = 0;
  std::optional<double> time_us;
  std::optional<double> spread_us;
  LaunchSpec launch;
};

struct BundleLayer {
  std::string name;
  Problem problem;
  // Entries "<weight_key>.weights", ".scales", ... of the weights file; empty: whoever launches brings its
  // own.
  std::string weight_key;
  std::vector<BundlePick> picks;  // by bucket, ascending
};

// What one exported method needs: file methods/<name>.json.
struct BundleMethod {
  std::string name;      // letters, digits, '_', '-', '.'
  int64_t static_m = 0;  // rows of every launch; 0: chosen at run time, every bucket is there
  std::vector<BundleLayer> layers;
};

struct BundleKernel {
  std::string sha256;
  std::string entry;
  std::string arch;
  int64_t bytes = 0;
  bool programmatic = false;      // waits for the kernel before it: may be launched programmatically
  nlohmann::ordered_json access;  // its access report, or null
};

// File manifest.json.
struct BundleManifest {
  struct File {
    std::string name;  // of the method; empty for the weights
    std::string file;
    std::string sha256;
    int64_t bytes = 0;
  };
  int version = kBundleVersion;
  int abi_version = kLaunchAbiVersion;
  std::string layout_id;
  std::vector<BundleKernel> kernels;  // by SHA-256; files kernels/<sha256>.cubin
  std::vector<File> methods;          // by name
  std::optional<File> weights;
};

std::string KernelFile(absl::string_view sha256);  // "kernels/<sha256>.cubin"
std::string MethodFile(absl::string_view name);    // "methods/<name>.json"

// The same values make the same bytes.
std::string ManifestText(const BundleManifest& manifest);
std::string MethodText(const BundleMethod& method);

// DataLoss names the field; FailedPrecondition: a version or layout this program does not know.
[[nodiscard]] absl::StatusOr<BundleManifest> ParseManifest(absl::string_view text);
[[nodiscard]] absl::StatusOr<BundleMethod> ParseMethod(absl::string_view text);

// InvalidArgument: a name that cannot be a file's, a layer without picks or with picks out of order, a static
// method with another pick than its one. What a reader accepts: a dynamic method of some buckets serves no M
// above them.
[[nodiscard]] absl::Status CheckMethod(const BundleMethod& method);
// And what BundleWriter asks for: a dynamic method has every bucket.
[[nodiscard]] absl::Status ValidateMethod(const BundleMethod& method);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_MANIFEST_H_
