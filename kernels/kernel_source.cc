#include "kernels/kernel_source.h"

#include <algorithm>
#include <set>

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

absl::string_view SourceText(absl::string_view name, const SourceOverrides& overrides) {
  const auto found = overrides.find(std::string(name));
  return found != overrides.end() ? absl::string_view(found->second) : EmbeddedSource(name);
}

// A device source as it goes into the translation unit. Shipped ones need no line numbers, and the bytes that
// compile into a stored kernel stay as they are.
std::string SourcePart(absl::string_view name, const SourceOverrides& overrides) {
  const absl::string_view text = SourceText(name, overrides);
  return overrides.empty() ? std::string(text) : absl::StrCat("\n#line 1 \"", name, "\"\n", text, "\n");
}

}  // namespace

KernelSource RenderKernelSource(const KernelConfig& config, const KernelSignature& signature,
                                const SourceOverrides& overrides) {
  const KernelFamily& family = FamilyOf(config);
  KernelSource source;
  source.name = absl::StrCat(ConfigName(config), " ", SignatureName(signature));
  for (const auto& [name, text] : overrides) absl::StrAppend(&source.name, " with changed ", name);
  source.entry = std::string(family.entry());
  source.text = absl::StrCat("namespace config {\n", ConfigConstants(config, signature), "}\n");
  const absl::Span<const absl::string_view> parts = family.device_sources();
  for (const absl::string_view part : parts.first(parts.size() - 1)) {
    absl::StrAppend(&source.text, SourcePart(part, overrides));
  }
  absl::StrAppend(&source.text, family.GeneratedSource(config, signature),
                  SourcePart(parts.back(), overrides));
  source.options = Options();
  return source;
}

KernelSource SupportKernelSource() {
  KernelSource source;
  source.name = "support kernels";
  source.text = std::string(EmbeddedSource(kSupportSource));
  source.options = Options();
  // Nothing can be verified before they are there: half the compile time counts for more than their speed.
  source.options.push_back("--Ofast-compile=min");
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

std::string DeviceSourceDigest(Family id, const SourceOverrides& overrides) {
  std::string text;
  for (const absl::string_view name : AllFamilies()[static_cast<int>(id)]->device_sources()) {
    absl::StrAppend(&text, name, "\n", SourceText(name, overrides));
  }
  return Sha256Hex(text);
}

std::string SupportSourceDigest() { return Sha256Hex(EmbeddedSource(kSupportSource)); }

bool UsesDeviceSource(Family id, absl::string_view name) {
  const absl::Span<const absl::string_view> sources = AllFamilies()[static_cast<int>(id)]->device_sources();
  return std::find(sources.begin(), sources.end(), name) != sources.end();
}

std::vector<std::string> FamilySourceNames() {
  std::set<std::string> names;
  for (const KernelFamily* family : AllFamilies()) {
    for (const absl::string_view name : family->device_sources()) names.emplace(name);
  }
  return {names.begin(), names.end()};
}

}  // namespace qgemm
