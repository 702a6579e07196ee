#include "kernels/kernel_source.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "kernels/embedded_sources.h"
#include "kernels/family/family.h"
#include "kernels/fingerprint.h"

namespace qgemm {
namespace {

constexpr absl::string_view kSupportSource = "support.cuh";

std::vector<std::string> Options() { return {"--std=c++17", "--device-as-default-execution-space"}; }

}  // namespace

KernelSource RenderKernelSource(const KernelConfig& config, const KernelSignature& signature) {
  const KernelFamily& family = FamilyOf(config);
  KernelSource source;
  source.name = absl::StrCat(ConfigName(config), " ", SignatureName(signature));
  source.entry = std::string(family.entry());
  source.text = absl::StrCat("namespace config {\n", ConfigConstants(config, signature), "}\n");
  const absl::Span<const absl::string_view> parts = family.device_sources();
  for (const absl::string_view part : parts.first(parts.size() - 1)) {
    absl::StrAppend(&source.text, EmbeddedSource(part));
  }
  absl::StrAppend(&source.text, family.GeneratedSource(config, signature), EmbeddedSource(parts.back()));
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

KernelSource FingerprintKernelSource() {
  KernelSource source;
  source.name = "fingerprint";
  source.entry = kFingerprintEntry;
  source.text = std::string(EmbeddedSource("fingerprint.cuh"));
  source.options = Options();
  return source;
}

std::string DeviceSourceDigest(Family id) {
  std::string text;
  for (const absl::string_view name : AllFamilies()[static_cast<int>(id)]->device_sources()) {
    absl::StrAppend(&text, name, "\n", EmbeddedSource(name));
  }
  return Sha256Hex(text);
}

std::string SupportSourceDigest() { return Sha256Hex(EmbeddedSource(kSupportSource)); }

}  // namespace qgemm
