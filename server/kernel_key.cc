#include "server/kernel_key.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/digest.h"

namespace qgemm {
namespace {

// Collects "name length:value\n" lines; the length makes the concatenation unambiguous.
class CanonicalBytes {
 public:
  explicit CanonicalBytes(absl::string_view tag) : bytes_(absl::StrCat(tag, "\n")) {}

  CanonicalBytes& Add(absl::string_view name, absl::string_view value) {
    absl::StrAppend(&bytes_, name, " ", value.size(), ":", value, "\n");
    return *this;
  }
  CanonicalBytes& Add(absl::string_view name, int64_t value) { return Add(name, absl::StrCat(value)); }
  CanonicalBytes& Add(const v1::DeviceClass& device) {
    return Add("product_name", device.product_name())
        .Add("compute_major", device.compute_major())
        .Add("compute_minor", device.compute_minor())
        .Add("sm_count", device.sm_count())
        .Add("l2_bytes", device.l2_bytes())
        .Add("memory_gib", device.memory_gib());
  }

  std::string Digest() const { return Sha256(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace

std::string KernelKey(const KernelKeyInput& input) {
  CanonicalBytes bytes("qgemm kernel key 1");
  bytes.Add("source", input.source_digest)
      .Add("config", input.config)
      .Add("signature", input.signature)
      .Add("layout", input.layout_id)
      .Add("abi", input.launch_abi_version)
      .Add("arch", input.arch)
      .Add("toolchain", input.toolchain)
      .Add("options", static_cast<int64_t>(input.options.size()));
  for (const std::string& option : input.options) bytes.Add("option", option);
  return bytes.Digest();
}

std::string TimingKey(const TimingKeyInput& input) {
  return CanonicalBytes("qgemm timing key 1")
      .Add("problem", input.problem)
      .Add("m_bucket", input.m_bucket)
      .Add(input.device)
      .Add("timer", input.timer_version)
      .Add("kernel", input.kernel_key)
      .Add("split_k", input.split_k)
      .Add("reduction", ReductionName(input.reduction))
      .Digest();
}

std::string QuarantineKey(absl::string_view kernel_key) {
  return CanonicalBytes("qgemm quarantine key 1").Add("kernel", kernel_key).Digest();
}

std::string PickKey(const PickKeyInput& input) {
  CanonicalBytes bytes("qgemm pick key 1");
  bytes.Add("problem", input.problem)
      .Add("m_bucket", input.m_bucket)
      .Add("source", static_cast<int64_t>(input.source))
      .Add("arch", input.arch)
      .Add("effort", static_cast<int64_t>(input.effort));
  if (input.source == v1::PICK_SOURCE_MEASURED) {
    bytes.Add(input.device);
  } else {
    QGEMM_CHECK(input.source == v1::PICK_SOURCE_MODEL);
    bytes.Add("target", input.target);
  }
  return bytes.Digest();
}

}  // namespace qgemm
