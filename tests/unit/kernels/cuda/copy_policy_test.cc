// The machine code of copies that name a cache policy. ptxas of CUDA 13.0 may take a part of such a copy's
// shared address from a uniform register, and then names neither that register nor the policy's: an illegal
// instruction when it runs. The device sources hide from it that any part is uniform (apart() in common.cuh);
// this looks at what became of it.

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/device_profile.h"
#include "kernels/family/family.h"
#include "kernels/kernel_source.h"
#include "kernels/search_space.h"
#include "tests/kernel_cases/kernel_case.h"

namespace qgemm {
namespace {

template <typename T>
T At(const std::string& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// The twelve bits that tell an instruction's kind and the kind of its address, of every instruction of every
// kernel.
std::vector<int> Opcodes(const std::string& cubin) {
  std::vector<int> opcodes;
  const auto header = At<Elf64_Ehdr>(cubin, 0);
  const auto section = [&](int i) { return At<Elf64_Shdr>(cubin, header.e_shoff + i * header.e_shentsize); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (int i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr one = section(i);
    if (!absl::StartsWith(cubin.c_str() + names.sh_offset + one.sh_name, ".text.")) continue;
    for (uint64_t at = 0; at + 16 <= one.sh_size; at += 16) {
      opcodes.push_back(static_cast<int>(At<uint64_t>(cubin, one.sh_offset + at) & 0xfff));
    }
  }
  return opcodes;
}

constexpr int kCopy = 0xfae;                 // LDGSTS [R], desc[UR][R]
constexpr int kCopyFromUniformPart = 0xdae;  // LDGSTS [R + UR], desc[UR][R]

TEST(CopyPolicy, NoCopyTakesAPartOfItsAddressFromAUniformRegister) {
  const auto nvrtc = Nvrtc::Load();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status();
  int kernels = 0;
  int copies = 0;
  for (const char* profile : {"h200", "a100"}) {
    const absl::StatusOr<DeviceProfile> device = FindDeviceProfile(profile);
    ASSERT_TRUE(device.ok()) << device.status();
    const std::vector<KernelSignature> signatures = FormatSignatures();
    // Of every fifth format some configs.
    for (size_t i = 0; i < signatures.size(); i += 5) {
      std::vector<KernelConfig> configs;
      for (const KernelConfig& config : WholeConfigSpace(signatures[i], *device)) {
        if (config.family == Family::kMma) configs.push_back(config);
      }
      for (size_t c = i; c < configs.size(); c += 600) {
        const KernelSource source = RenderKernelSource(configs[c], signatures[i]);
        SCOPED_TRACE(source.name);
        const auto output = (*nvrtc)->Compile(source, device->arch, /*want_ptx=*/false);
        ASSERT_TRUE(output.ok()) << output.status();
        ++kernels;
        for (const int opcode : Opcodes(output->cubin)) {
          copies += opcode == kCopy ? 1 : 0;
          ASSERT_NE(opcode, kCopyFromUniformPart);
        }
      }
    }
  }
  EXPECT_GT(kernels, 15);
  EXPECT_GT(copies, 4 * kernels);
}

}  // namespace
}  // namespace qgemm
