#ifndef QGEMM_TESTS_GPU_GPU_TEST_H_
#define QGEMM_TESTS_GPU_GPU_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/subprocess.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_source.h"
#include "server/runner/cuda_device.h"
#include "server/runner/support_library.h"

namespace qgemm {

// Set by main before anything else ran; for tests that start processes.
Spawner& TestSpawner();

// A sibling program of the test: beside it.
std::string SiblingProgram(const std::string& name);

// QGEMM_GPU_SMALL=1: one shape per bucket and few configs, for compute-sanitizer.
bool SmallMode();

// Writes `text` to the file `name` in the folder QGEMM_TEST_OUT, if that is set.
void WriteResult(const std::string& name, const std::string& text);

// A cubin for this GPU, made by NVRTC in this process. Fails the test when the source does not compile.
std::string CompileHere(const KernelSource& source, const std::string& arch);

// Cubins for this GPU, in order, made by qgemm-compile workers on all cores; empty ones failed (and failed
// the test).
std::vector<std::string> CompileAll(const std::vector<KernelSource>& sources, const std::string& arch);

template <typename T>
absl::Span<const std::byte> AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

// Opens the GPU once per program; its cases are skipped, with the reason, where there is none.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override;

  CudaDevice& device();
  SupportLibrary& support();
  const DeviceProfile& profile();
  const std::string& arch() { return profile().arch; }

  // Device memory with the given contents.
  template <typename T>
  std::unique_ptr<DeviceMemory> Upload(const std::vector<T>& values) {
    auto memory = device().Allocate(std::max<int64_t>(256, values.size() * sizeof(T)));
    EXPECT_TRUE(memory.ok()) << memory.status();
    const absl::Status written = device().Write((*memory)->address(), AsBytes(values));
    EXPECT_TRUE(written.ok()) << written;
    return *std::move(memory);
  }
  template <typename T>
  std::vector<T> Download(uint64_t address, int64_t count) {
    std::vector<T> values(count);
    const absl::Status read = device().ReadBack(
        address, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)));
    EXPECT_TRUE(read.ok()) << read;
    return values;
  }
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_GPU_GPU_TEST_H_
