#include "kernels/device_profile.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace qgemm {
namespace {

// Fractions of the published figures that the H200 was measured to reach: 4.2 of 4.8 TB/s reading, 790 of 989
// TFLOP/s dense bf16 through wgmma, and 68 % of that through mma.sync (62 to 75 % by shape). Figures of the
// other devices are the published ones times these fractions, not measurements; before sm_90 mma.sync is the
// full-rate instruction, so only the first two apply there and on consumer parts.
constexpr double kReadFraction = 4.2 / 4.8;
constexpr double kMmaFraction = 790.0 / 989.0;
constexpr double kLegacyMmaFraction = 0.68 * kMmaFraction;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kKiB = 1024;

struct SharedMemory {
  int per_block;
  int per_sm;
};
constexpr SharedMemory kSmem8_0 = {163 * kKiB, 164 * kKiB};
constexpr SharedMemory kSmemSmall = {99 * kKiB, 100 * kKiB};  // sm_86, sm_89, sm_120
constexpr SharedMemory kSmem9_0 = {227 * kKiB, 228 * kKiB};   // sm_90, sm_100

// `published_gb_per_s` and `published_tflops` (dense bf16, fp32 accumulate) are the vendor's.
DeviceProfile Make(absl::string_view name, absl::string_view product_name, absl::string_view arch,
                   int compute_major, int compute_minor, int sm_count, int64_t l2_bytes, int memory_gib,
                   double published_gb_per_s, double published_tflops, double mma_fraction, double clock_ghz,
                   SharedMemory smem, int max_threads_per_sm) {
  DeviceProfile profile;
  profile.name = std::string(name);
  profile.product_name = std::string(product_name);
  profile.arch = std::string(arch);
  profile.compute_major = compute_major;
  profile.compute_minor = compute_minor;
  profile.sm_count = sm_count;
  profile.l2_bytes = l2_bytes;
  profile.memory_gib = memory_gib;
  profile.dram_gb_per_s = published_gb_per_s * kReadFraction;
  profile.mma_tflops = published_tflops * mma_fraction;
  profile.wgmma_tflops = arch == "sm_90a" ? published_tflops * kMmaFraction : 0;
  profile.clock_ghz = clock_ghz;
  profile.max_smem_per_block = smem.per_block;
  profile.max_smem_per_sm = smem.per_sm;
  profile.max_threads_per_sm = max_threads_per_sm;
  return profile;
}

const std::vector<DeviceProfile>& Profiles() {
  static const std::vector<DeviceProfile>* const profiles = new std::vector<DeviceProfile>{
      Make("a100", "NVIDIA A100-SXM4-80GB", "sm_80", 8, 0, 108, 40 * kMiB, 80, 2039, 312, kMmaFraction, 1.41,
           kSmem8_0, 2048),
      Make("l40s", "NVIDIA L40S", "sm_89", 8, 9, 142, 96 * kMiB, 48, 864, 362, kMmaFraction, 2.52, kSmemSmall,
           1536),
      Make("rtx4090", "NVIDIA GeForce RTX 4090", "sm_89", 8, 9, 128, 72 * kMiB, 24, 1008, 165, kMmaFraction,
           2.52, kSmemSmall, 1536),
      Make("h100", "NVIDIA H100 80GB HBM3", "sm_90a", 9, 0, 132, 50 * kMiB, 80, 3350, 989, kLegacyMmaFraction,
           1.98, kSmem9_0, 2048),
      // L2 and shared memory as the driver reports them.
      Make("h200", "NVIDIA H200", "sm_90a", 9, 0, 132, 60 * kMiB, 141, 4800, 989, kLegacyMmaFraction, 1.98,
           kSmem9_0, 2048),
      Make("b200", "NVIDIA B200", "sm_100a", 10, 0, 148, 126 * kMiB, 180, 8000, 2250, kLegacyMmaFraction,
           1.96, kSmem9_0, 2048),
      Make("rtx5090", "NVIDIA GeForce RTX 5090", "sm_120", 12, 0, 170, 96 * kMiB, 32, 1792, 209, kMmaFraction,
           2.41, kSmemSmall, 1536),
  };
  return *profiles;
}

size_t CommonPrefix(absl::string_view a, absl::string_view b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// Kernels use no arch-specific instructions on sm_80 .. sm_89 and sm_120 and up; where the "a" target exists
// for a data-centre part, it is the profile's.
std::string ArchFor(int compute_major, int compute_minor) {
  const bool specific = compute_major == 9 || compute_major == 10;
  return absl::StrCat("sm_", compute_major, compute_minor, specific ? "a" : "");
}

int MaxThreadsPerSm(int compute_major, int compute_minor) {
  const bool data_centre =
      (compute_major == 8 && compute_minor == 0) || compute_major == 9 || compute_major == 10;
  return data_centre ? 2048 : 1536;
}

}  // namespace

absl::Span<const DeviceProfile> DeviceProfiles() { return Profiles(); }

absl::StatusOr<DeviceProfile> FindDeviceProfile(absl::string_view name) {
  for (const DeviceProfile& profile : Profiles()) {
    if (profile.name == name) return profile;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "target \"", name.substr(0, 100), "\" is not known: use ",
      absl::StrJoin(Profiles(), ", ",
                    [](std::string* out, const DeviceProfile& profile) { out->append(profile.name); })));
}

absl::StatusOr<DeviceProfile> ProfileForDevice(absl::string_view product_name, int compute_major,
                                               int compute_minor, int sm_count, int64_t l2_bytes,
                                               int memory_gib, int max_smem_per_block) {
  if (compute_major < 8) {
    return absl::InvalidArgumentError(absl::StrCat("compute capability ", compute_major, ".", compute_minor,
                                                   " of ", product_name,
                                                   " is not supported: 8.0 or newer is needed"));
  }
  // Nearest compute capability; among equals the product whose name begins most alike ("NVIDIA H200 NVL").
  const int capability = 10 * compute_major + compute_minor;
  const DeviceProfile* base = nullptr;
  int base_distance = 0;
  size_t base_prefix = 0;
  for (const DeviceProfile& profile : Profiles()) {
    const int distance = std::abs(10 * profile.compute_major + profile.compute_minor - capability);
    const size_t prefix = CommonPrefix(profile.product_name, product_name);
    if (base == nullptr || distance < base_distance || (distance == base_distance && prefix > base_prefix)) {
      base = &profile;
      base_distance = distance;
      base_prefix = prefix;
    }
  }
  DeviceProfile profile = *base;
  if (profile.product_name != product_name || base_distance != 0) {
    profile.name = std::string(product_name);
    profile.product_name = std::string(product_name);
    profile.arch = ArchFor(compute_major, compute_minor);
    profile.compute_major = compute_major;
    profile.compute_minor = compute_minor;
    profile.max_threads_per_sm = MaxThreadsPerSm(compute_major, compute_minor);
  }
  profile.mma_tflops *= static_cast<double>(sm_count) / profile.sm_count;
  profile.sm_count = sm_count;
  profile.l2_bytes = l2_bytes;
  profile.memory_gib = memory_gib;
  profile.max_smem_per_block = max_smem_per_block;
  profile.max_smem_per_sm = max_smem_per_block + kKiB;  // the driver keeps 1 KiB of each block's
  return profile;
}

absl::Status ValidateArch(absl::string_view arch) {
  absl::string_view digits = arch;
  const bool prefixed = absl::ConsumePrefix(&digits, "sm_");
  if (!absl::ConsumeSuffix(&digits, "a")) absl::ConsumeSuffix(&digits, "f");
  int number = 0;
  const bool well_formed = prefixed && (digits.size() == 2 || digits.size() == 3) && digits[0] != '0' &&
                           std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                           absl::SimpleAtoi(digits, &number);
  if (well_formed && number >= 80) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("arch \"", arch.substr(0, 100),
                   "\" is not allowed: use sm_80 or newer, such as sm_80, sm_89, "
                   "sm_90a, sm_100a or sm_120"));
}

}  // namespace qgemm
