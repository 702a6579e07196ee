#include "client/bundle/bundle.h"

#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "client/bundle/json_fields.h"
#include "client/bundle/tar.h"
#include "kernels/packing.h"

namespace qgemm {

std::vector<PlaneSize> PlanesOf(const Problem& problem) {
  const PackedSizes sizes = PackedSizesFor(problem.n, problem.k, problem.signature.format);
  std::vector<PlaneSize> planes = {{"weights", sizes.weight_bytes}, {"scales", sizes.scale_bytes}};
  if (sizes.zero_bytes > 0) planes.push_back({"zeros", sizes.zero_bytes});
  if (sizes.step_bytes > 0) planes.push_back({"steps", sizes.step_bytes});
  if (problem.signature.epilogue.bias) {
    planes.push_back({"bias", problem.n * ScalarBytes(problem.signature.out)});
  }
  return planes;
}

absl::StatusOr<Bundle> Bundle::Open(const std::string& path) {
  Bundle bundle(path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    QGEMM_RETURN_IF_ERROR(bundle.MapDirectory());
  } else {
    QGEMM_ASSIGN_OR_RETURN(MappedFile archive, MappedFile::Open(path));
    absl::StatusOr<std::map<std::string, absl::string_view>> files = ReadTar(archive.bytes());
    if (!files.ok()) return absl::DataLossError(absl::StrCat(path, ": ", files.status().message()));
    bundle.files_ = *std::move(files);
    bundle.mapped_.push_back(std::move(archive));
  }
  const auto manifest = bundle.files_.find(kManifestFile);
  if (manifest == bundle.files_.end()) {
    return absl::NotFoundError(absl::StrCat(path, " is no bundle: it has no ", kManifestFile));
  }
  absl::StatusOr<BundleManifest> read = ParseManifest(manifest->second);
  if (!read.ok()) {
    return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
  }
  bundle.manifest_ = *std::move(read);
  return bundle;
}

absl::Status Bundle::MapDirectory() {
  std::error_code error;
  std::filesystem::recursive_directory_iterator entries(path_, error);
  for (; !error && entries != std::filesystem::recursive_directory_iterator(); entries.increment(error)) {
    if (entries->is_directory()) continue;
    QGEMM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(entries->path().string()));
    // By the name in the folder: a link's target, as in a store of files by digest, is called something else.
    files_[entries->path().lexically_relative(path_).generic_string()] = file.bytes();
    mapped_.push_back(std::move(file));
  }
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cannot read ", path_, ": ", error.message()));
}

absl::StatusOr<absl::string_view> Bundle::File(absl::string_view name) const {
  const auto found = files_.find(std::string(name));
  if (found != files_.end()) return found->second;
  return absl::DataLossError(absl::StrCat(path_, ": file ", name, " is missing"));
}

absl::StatusOr<BundleMethod> Bundle::Method(absl::string_view name) const {
  std::string known;
  for (const BundleManifest::File& file : manifest_.methods) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", file.name);
    if (file.name != name) continue;
    QGEMM_ASSIGN_OR_RETURN(const absl::string_view text, File(file.file));
    absl::StatusOr<BundleMethod> method = ParseMethod(text);
    if (method.ok()) return method;
    return absl::Status(method.status().code(),
                        absl::StrCat(path_, "/", file.file, ": ", method.status().message()));
  }
  return absl::NotFoundError(absl::StrCat(path_, " has no method \"", name, "\": there are ", known));
}

absl::StatusOr<absl::string_view> Bundle::Cubin(absl::string_view sha256) const {
  QGEMM_ASSIGN_OR_RETURN(const absl::string_view bytes, File(KernelFile(sha256)));
  if (Sha256Hex(bytes) == sha256) return bytes;
  return absl::DataLossError(
      absl::StrCat(path_, "/", KernelFile(sha256), ": its bytes have another SHA-256"));
}

absl::StatusOr<std::map<std::string, TensorView>> Bundle::Weights() const {
  if (!manifest_.weights.has_value()) return std::map<std::string, TensorView>();
  QGEMM_ASSIGN_OR_RETURN(const absl::string_view file, File(manifest_.weights->file));
  absl::StatusOr<std::map<std::string, TensorView>> tensors = ReadSafetensors(file);
  if (tensors.ok()) return tensors;
  return absl::DataLossError(
      absl::StrCat(path_, "/", manifest_.weights->file, ": ", tensors.status().message()));
}

absl::Status Bundle::CheckFile(const BundleManifest::File& file) const {
  QGEMM_ASSIGN_OR_RETURN(const absl::string_view bytes, File(file.file));
  if (static_cast<int64_t>(bytes.size()) != file.bytes) {
    return absl::DataLossError(
        absl::StrCat(path_, "/", file.file, " has ", bytes.size(), " bytes; the manifest says ", file.bytes));
  }
  if (Sha256Hex(bytes) == file.sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, "/", file.file, ": its bytes have another SHA-256"));
}

absl::Status CheckAccess(const BundleKernel& kernel, const LaunchSpec& launch) {
  if (kernel.access.is_null()) return absl::OkStatus();
  JsonFields report(kernel.access, "access");
  if (report.Has("failure")) return absl::OkStatus();  // what it writes is not known
  for (const auto& row : report.Array("parameters")) {
    JsonFields parameter(row, "parameter");
    const int index = parameter.Int("index");
    const bool written = parameter.Bool("written");
    QGEMM_RETURN_IF_ERROR(parameter.status());
    if (!written || index >= static_cast<int>(launch.arguments.size())) continue;
    const KernelArgument& argument = launch.arguments[index];
    const auto* const pointer = std::get_if<PointerArgument>(&argument.kind);
    if (pointer != nullptr && pointer->written) continue;
    return absl::DataLossError(absl::StrCat("kernel ", kernel.sha256, " writes argument '", argument.name,
                                            "', which its launch does not say"));
  }
  return report.status();
}

absl::Status Bundle::CheckMethod(const BundleMethod& method,
                                 const std::map<std::string, TensorView>& weights) const {
  for (const BundleLayer& layer : method.layers) {
    const auto damaged = [&](absl::string_view why) {
      return absl::DataLossError(
          absl::StrCat(path_, ": method ", method.name, ", layer ", layer.name, ": ", why));
    };
    for (const BundlePick& pick : layer.picks) {
      if (files_.count(KernelFile(pick.kernel_sha256)) == 0) {
        return damaged(absl::StrCat("kernel ", pick.kernel_sha256, " is missing"));
      }
      for (const BundleKernel& kernel : manifest_.kernels) {
        if (kernel.sha256 != pick.kernel_sha256) continue;
        const absl::Status access = CheckAccess(kernel, pick.launch);
        if (!access.ok()) return damaged(access.message());
      }
    }
    if (layer.weight_key.empty()) continue;
    for (const PlaneSize& plane : PlanesOf(layer.problem)) {
      const auto tensor = weights.find(absl::StrCat(layer.weight_key, ".", plane.plane));
      if (tensor == weights.end()) {
        return damaged(absl::StrCat("weights have no ", layer.weight_key, ".", plane.plane));
      }
      if (static_cast<int64_t>(tensor->second.bytes.size()) != plane.bytes) {
        return damaged(absl::StrCat(tensor->first, " has ", tensor->second.bytes.size(), " bytes; ",
                                    ProblemName(layer.problem), " needs ", plane.bytes));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Bundle::Verify() const {
  std::set<std::string> listed = {kManifestFile};
  for (const BundleKernel& kernel : manifest_.kernels) {
    BundleManifest::File file{"", KernelFile(kernel.sha256), kernel.sha256, kernel.bytes};
    QGEMM_RETURN_IF_ERROR(CheckFile(file));
    listed.insert(file.file);
  }
  if (manifest_.weights.has_value()) {
    QGEMM_RETURN_IF_ERROR(CheckFile(*manifest_.weights));
    listed.insert(manifest_.weights->file);
  }
  QGEMM_ASSIGN_OR_RETURN(const auto weights, Weights());
  for (const BundleManifest::File& file : manifest_.methods) {
    QGEMM_RETURN_IF_ERROR(CheckFile(file));
    listed.insert(file.file);
    QGEMM_ASSIGN_OR_RETURN(const BundleMethod method, Method(file.name));
    QGEMM_RETURN_IF_ERROR(CheckMethod(method, weights));
  }
  for (const auto& [name, bytes] : files_) {
    if (listed.count(name) == 0) {
      return absl::DataLossError(absl::StrCat(path_, "/", name, " is not listed in ", kManifestFile));
    }
  }
  return absl::OkStatus();
}

}  // namespace qgemm
