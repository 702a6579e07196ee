#include "client/bundle/bundle_writer.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "client/bundle/mapped_file.h"
#include "client/bundle/tar.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

namespace fs = std::filesystem;

absl::Status WriteError(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot write ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

// A path without a last slash, so that names beside it can be made.
std::string Trimmed(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// A bundle, of whatever version: manifest.json alone is no sign, web applications have one, too.
bool IsBundle(const fs::path& folder) {
  const absl::StatusOr<MappedFile> manifest = MappedFile::Open((folder / kManifestFile).string());
  if (!manifest.ok()) return false;
  const absl::Status read = ParseManifest(manifest->bytes()).status();
  return read.ok() || absl::IsFailedPrecondition(read);
}

// Puts a finished folder where one may be: whoever opens `path` sees all of the old or all of the new one,
// and of two writers the later one wins. The old one is then at `staging`.
int Replace(const std::string& staging, const std::string& path) {
  constexpr int kTries = 100;  // another writer may come and go between two calls
  for (int i = 0; i < kTries; ++i) {
    if (renameat2(AT_FDCWD, staging.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) return 0;
    if (errno != EEXIST) break;
    if (renameat2(AT_FDCWD, staging.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return 0;
    if (errno != ENOENT) break;
  }
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // A file system that cannot exchange, such as NFS.
  std::error_code error;
  fs::remove_all(path, error);
  fs::rename(staging, path, error);
  return error.value();
}

// A name beside `path` that nobody else has: not by the process alone, which two machines may call the same.
std::string StagingName(const std::string& path) {
  std::random_device random;
  return absl::StrFormat("%s.partial.%08x%08x", path, random(), random());
}

}  // namespace

BundleWriter::BundleWriter(std::string path)
    : path_(Trimmed(std::move(path))), is_tar_(absl::EndsWith(path_, ".tar")), staging_(StagingName(path_)) {}

absl::StatusOr<std::unique_ptr<BundleWriter>> BundleWriter::Create(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the bundle's path is empty");
  std::unique_ptr<BundleWriter> writer(new BundleWriter(path));
  std::error_code error;
  if (!writer->is_tar_ && fs::exists(writer->path_, error) && !fs::is_empty(writer->path_, error) &&
      !IsBundle(writer->path_)) {
    return absl::FailedPreconditionError(
        absl::StrCat(writer->path_, " exists and is no bundle: name another path"));
  }
  for (const char* folder : {"kernels", "methods"}) {
    fs::create_directories(fs::path(writer->staging_) / folder, error);
    if (error) return WriteError(writer->path_, error.value());
  }
  return writer;
}

BundleWriter::~BundleWriter() {
  weights_.reset();
  std::error_code error;
  fs::remove_all(staging_, error);
}

absl::Status BundleWriter::WriteFile(const std::string& name, absl::string_view bytes) {
  const std::string path = absl::StrCat(staging_, "/", name);
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file.good()) return absl::OkStatus();
  return WriteError(path, errno != 0 ? errno : EIO);
}

absl::Status BundleWriter::AddKernel(const BundleKernel& kernel, absl::string_view cubin) {
  if (kernels_.count(kernel.sha256) > 0) return absl::OkStatus();
  if (Sha256Hex(cubin) != kernel.sha256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bytes of kernel ", kernel.sha256, " have another SHA-256"));
  }
  QGEMM_RETURN_IF_ERROR(WriteFile(KernelFile(kernel.sha256), cubin));
  BundleKernel added = kernel;
  added.bytes = static_cast<int64_t>(cubin.size());
  kernels_.emplace(kernel.sha256, std::move(added));
  return absl::OkStatus();
}

absl::Status BundleWriter::AddMethod(const BundleMethod& method) {
  QGEMM_RETURN_IF_ERROR(ValidateMethod(method));
  if (!methods_.emplace(method.name, method).second) {
    return absl::InvalidArgumentError(absl::StrCat("method ", method.name, " is there twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsWriter*> BundleWriter::Weights() {
  if (weights_ == nullptr) {
    QGEMM_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                           SafetensorsWriter::Create(absl::StrCat(staging_, "/", kWeightsFile)));
    weights_ = std::make_unique<SafetensorsWriter>(std::move(writer));
  }
  return weights_.get();
}

absl::Status BundleWriter::Finish() {
  BundleManifest manifest;
  manifest.layout_id = std::string(kLayoutId);
  for (const auto& [name, method] : methods_) {
    for (const BundleLayer& layer : method.layers) {
      for (const BundlePick& pick : layer.picks) {
        if (kernels_.count(pick.kernel_sha256) > 0) continue;
        return absl::FailedPreconditionError(absl::StrCat("method ", name, ", layer ", layer.name,
                                                          ": kernel ", pick.kernel_sha256, " was not added"));
      }
    }
    const std::string text = MethodText(method);
    QGEMM_RETURN_IF_ERROR(WriteFile(MethodFile(name), text));
    manifest.methods.push_back({name, MethodFile(name), Sha256Hex(text), static_cast<int64_t>(text.size())});
  }
  for (const auto& [sha256, kernel] : kernels_) manifest.kernels.push_back(kernel);
  if (weights_ != nullptr) {
    QGEMM_RETURN_IF_ERROR(weights_->Finish({{"layout_id", std::string(kLayoutId)}}));
    weights_.reset();
    QGEMM_ASSIGN_OR_RETURN(const MappedFile file,
                           MappedFile::Open(absl::StrCat(staging_, "/", kWeightsFile)));
    manifest.weights = {"", kWeightsFile, Sha256Hex(file.bytes()), static_cast<int64_t>(file.bytes().size())};
  }
  QGEMM_RETURN_IF_ERROR(WriteFile(kManifestFile, ManifestText(manifest)));

  std::error_code error;
  if (is_tar_) {
    const std::string archive = staging_ + ".tar";
    absl::Status packed = Pack(archive);
    if (packed.ok()) fs::rename(archive, path_, error);
    if (packed.ok() && error) packed = WriteError(path_, error.value());
    if (!packed.ok()) fs::remove(archive, error);
    return packed;
  }
  const int failed = Replace(staging_, path_);
  return failed == 0 ? absl::OkStatus() : WriteError(path_, failed);
}

absl::Status BundleWriter::Pack(const std::string& archive) {
  std::vector<std::string> names = {kManifestFile};  // first, so that a reader of a stream has it early
  for (const auto& [name, method] : methods_) names.push_back(MethodFile(name));
  for (const auto& [sha256, kernel] : kernels_) names.push_back(KernelFile(sha256));
  std::error_code error;
  if (fs::exists(absl::StrCat(staging_, "/", kWeightsFile), error)) names.push_back(kWeightsFile);
  errno = 0;
  std::ofstream out(archive, std::ios::binary | std::ios::trunc);
  for (const std::string& name : names) {
    QGEMM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(absl::StrCat(staging_, "/", name)));
    const auto bytes = static_cast<int64_t>(file.bytes().size());
    out << TarHeader(name, bytes);
    out.write(file.bytes().data(), bytes);
    out << TarPadding(bytes);
  }
  out << TarEnd();
  out.close();
  if (out.good()) return absl::OkStatus();
  return WriteError(archive, errno != 0 ? errno : EIO);
}

}  // namespace qgemm
