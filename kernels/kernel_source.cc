#include "kernels/kernel_source.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "kernels/embedded_sources.h"
#include "kernels/family/mma.h"

namespace qgemm {
namespace {

constexpr absl::string_view kMmaSources[] = {"common.cuh", "dequant.cuh", "epilogue.cuh", "mma.cuh"};
constexpr absl::string_view kSupportSource = "support.cuh";

std::vector<std::string> Options() { return {"--std=c++17", "--device-as-default-execution-space"}; }

}  // namespace

KernelSource RenderKernelSource(const KernelConfig& config, const KernelSignature& signature) {
  KernelSource source;
  source.name = absl::StrCat(ConfigName(config), " ", SignatureName(signature));
  source.entry = mma_family::kEntry;
  source.text = absl::StrCat("namespace config {\n", mma_family::ConfigConstants(config, signature), "}\n");
  for (const absl::string_view name : kMmaSources) absl::StrAppend(&source.text, EmbeddedSource(name));
  source.options = Options();
  return source;
}

KernelSource SupportKernelSource() {
  KernelSource source;
  source.name = "support kernels";
  source.text = std::string(EmbeddedSource(kSupportSource));
  source.options = Options();
  return source;
}

std::string DeviceSourceDigest(Family) {
  std::string text;
  for (const absl::string_view name : kMmaSources) absl::StrAppend(&text, name, "\n", EmbeddedSource(name));
  return Sha256Hex(text);
}

std::string SupportSourceDigest() { return Sha256Hex(EmbeddedSource(kSupportSource)); }

}  // namespace qgemm
