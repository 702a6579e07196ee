#include "tests/gpu/gpu_test.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <thread>

#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/nvrtc.h"
#include "server/compile_pool.h"

namespace qgemm {
namespace {

struct Gpu {
  std::unique_ptr<CudaDevice> device;
  DeviceProfile profile;
  std::unique_ptr<SupportLibrary> support;
};

absl::StatusOr<Gpu> OpenGpu() {
  Gpu gpu;
  QGEMM_ASSIGN_OR_RETURN(gpu.device, CudaDevice::Open("auto"));
  const DeviceProperties& properties = gpu.device->properties();
  QGEMM_ASSIGN_OR_RETURN(gpu.profile,
                         ProfileForDevice(properties.product_name, properties.compute_major,
                                          properties.compute_minor, properties.sm_count, properties.l2_bytes,
                                          properties.memory_gib(), properties.max_dynamic_smem_bytes));
  QGEMM_ASSIGN_OR_RETURN(const Nvrtc* nvrtc, Nvrtc::Load());
  QGEMM_ASSIGN_OR_RETURN(const NvrtcOutput output,
                         nvrtc->Compile(SupportKernelSource(), gpu.profile.arch, false));
  QGEMM_ASSIGN_OR_RETURN(gpu.support, SupportLibrary::Load(gpu.device.get(), output.cubin));
  std::printf("GPU: %s, %d SMs, %s\n", properties.product_name.c_str(), properties.sm_count,
              gpu.profile.arch.c_str());
  return gpu;
}

absl::StatusOr<Gpu>& TheGpu() {
  static auto* const gpu = new absl::StatusOr<Gpu>(OpenGpu());
  return *gpu;
}

Spawner* g_spawner = nullptr;

}  // namespace

Spawner& TestSpawner() { return *g_spawner; }

std::string SiblingProgram(const std::string& name) {
  const auto folder = ProgramFolder();
  return folder.ok() ? *folder + "/" + name : name;
}

bool SmallMode() {
  const char* value = std::getenv("QGEMM_GPU_SMALL");
  return value != nullptr && std::string(value) == "1";
}

void WriteResult(const std::string& name, const std::string& text) {
  const char* folder = std::getenv("QGEMM_TEST_OUT");
  if (folder == nullptr || *folder == '\0') return;
  std::ofstream(std::string(folder) + "/" + name) << text << "\n";
}

std::string CompileHere(const KernelSource& source, const std::string& arch) {
  const auto nvrtc = Nvrtc::Load();
  EXPECT_TRUE(nvrtc.ok()) << nvrtc.status();
  if (!nvrtc.ok()) return "";
  const auto output = (*nvrtc)->Compile(source, arch, /*want_ptx=*/false);
  EXPECT_TRUE(output.ok()) << output.status();
  return output.ok() ? output->cubin : "";
}

std::vector<std::string> CompileAll(const std::vector<KernelSource>& sources, const std::string& arch) {
  if (SmallMode()) {  // for compute-sanitizer, under which no other process can be started
    std::vector<std::string> cubins;
    for (const KernelSource& source : sources) cubins.push_back(CompileHere(source, arch));
    return cubins;
  }
  CompilePoolOptions options;
  options.worker = CompileWorkerProgram(SiblingProgram("qgemm-compile"));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) - 1);
  options.num_workers = std::min<int>(cores, std::max<size_t>(1, sources.size()));
  CompilePool pool(&TestSpawner(), &RealClock(), options);
  std::vector<std::promise<std::string>> promises(sources.size());
  std::vector<std::unique_ptr<CompileTicket>> tickets;
  for (size_t i = 0; i < sources.size(); ++i) {
    CompileTask task;
    task.source = sources[i];
    task.arch = arch;
    task.want_ptx = false;
    tickets.push_back(pool.Compile(std::move(task), [&, i](absl::StatusOr<internal::CompileReply> reply) {
      if (!reply.ok())
        std::fprintf(stderr, "%s: %s\n", sources[i].name.c_str(), reply.status().ToString().c_str());
      promises[i].set_value(reply.ok() ? reply->cubin() : "");
    }));
  }
  std::vector<std::string> cubins;
  for (size_t i = 0; i < sources.size(); ++i) {
    cubins.push_back(promises[i].get_future().get());
    EXPECT_FALSE(cubins.back().empty()) << sources[i].name << " does not compile";
  }
  return cubins;
}

void GpuTest::SetUp() {
  if (!TheGpu().ok()) GTEST_SKIP() << "needs a GPU: " << TheGpu().status();
}

CudaDevice& GpuTest::device() { return *TheGpu()->device; }
SupportLibrary& GpuTest::support() { return *TheGpu()->support; }
const DeviceProfile& GpuTest::profile() { return TheGpu()->profile; }

}  // namespace qgemm

int main(int argc, char** argv) {
  // Before CUDA and gtest: the spawner forks.
  auto spawner = qgemm::Spawner::Start();
  if (!spawner.ok()) {
    std::fprintf(stderr, "%s\n", spawner.status().ToString().c_str());
    return 1;
  }
  qgemm::g_spawner = spawner->get();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
