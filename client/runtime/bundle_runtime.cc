#include "client/runtime/bundle_runtime.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/runtime/prepared_kernel.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

// Where a layer's planes are on the device; 0: nowhere, or the format has none.
struct Planes {
  uint64_t weights = 0;
  uint64_t scales = 0;
  uint64_t zeros = 0;
  uint64_t steps = 0;
  uint64_t bias = 0;
};

class BundleRuntime final : public Runtime {
 public:
  BundleRuntime(Bundle bundle, BundleMethod method, std::unique_ptr<LaunchDevice> device)
      : bundle_(std::move(bundle)), method_(std::move(method)), device_(std::move(device)) {}

  absl::Status Prepare();

  absl::Status UploadWeights() override;
  int layer_count() const override { return static_cast<int>(layers_.size()); }
  const LayerInfo& layer(int index) const override { return layers_[index].info; }
  int FindLayer(absl::string_view name) const override;
  absl::StatusOr<SelectedKernel> Select(int layer, int64_t m) const override;
  WorkspaceMemory WorkspaceFor(int64_t max_m) const override;
  absl::StatusOr<WorkspaceMemory> AllocateWorkspace(int64_t max_m) override;
  void FreeWorkspace(const WorkspaceMemory& workspace) override { device_->Free(workspace.address); }
  absl::Status Launch(int index, const LayerLaunch& launch) override;

  absl::StatusOr<uint64_t> AllocateMemory(int64_t bytes) override { return device_->Allocate(bytes); }
  absl::Status CopyIn(uint64_t address, const void* bytes, int64_t count) override {
    return device_->CopyIn(address, absl::string_view(static_cast<const char*>(bytes), count));
  }
  absl::Status CopyOut(void* bytes, uint64_t address, int64_t count) override {
    return device_->CopyOut(address, absl::MakeSpan(static_cast<char*>(bytes), count));
  }

 private:
  struct Pick {
    std::unique_ptr<PreparedKernel> kernel;
    bool waits = false;  // for the kernel before it: may be launched programmatically
  };
  struct Layer {
    LayerInfo info;
    std::vector<int> buckets;  // ascending; picks[i] serves buckets[i]
    std::vector<Pick> picks;
    Planes planes;  // written by UploadWeights alone
  };

  absl::Status NoKernel(const Layer& layer, int64_t m) const;
  absl::Status InLayer(const Layer& layer, const absl::Status& status) const;

  const Bundle bundle_;
  const BundleMethod method_;
  const std::unique_ptr<LaunchDevice> device_;
  std::vector<Layer> layers_;  // in the method's order; constant after Prepare but for the planes
};

absl::Status BundleRuntime::Prepare() {
  // A kernel is loaded once, for the largest shared memory any pick gives it.
  std::map<std::string, int> smem_bytes;
  for (const BundleLayer& layer : method_.layers) {
    for (const BundlePick& pick : layer.picks) {
      int& bytes = smem_bytes[pick.kernel_sha256];
      bytes = std::max(bytes, pick.launch.dynamic_smem_bytes);
    }
  }
  std::map<std::string, std::pair<LaunchFunction, bool>> functions;
  for (const auto& [sha256, bytes] : smem_bytes) {
    const auto listed =
        std::find_if(bundle_.manifest().kernels.begin(), bundle_.manifest().kernels.end(),
                     [&sha = sha256](const BundleKernel& kernel) { return kernel.sha256 == sha; });
    if (listed == bundle_.manifest().kernels.end()) {
      return absl::DataLossError(
          absl::StrCat(bundle_.path(), ": kernel ", sha256, " is not in its manifest"));
    }
    QGEMM_ASSIGN_OR_RETURN(const absl::string_view cubin, bundle_.Cubin(sha256));
    const absl::StatusOr<LaunchFunction> function = device_->LoadKernel(cubin, listed->entry, bytes);
    if (!function.ok()) {
      return absl::Status(function.status().code(),
                          absl::StrCat("kernel ", sha256, " for ", listed->arch, " on a device of ",
                                       device_->arch(), ": ", function.status().message()));
    }
    functions[sha256] = {*function, listed->programmatic};
  }
  for (const BundleLayer& from : method_.layers) {
    Layer& layer = layers_.emplace_back();
    layer.info = {from.name,
                  from.problem.n,
                  from.problem.k,
                  from.problem.y_columns(),
                  method_.static_m,
                  ProblemName(from.problem),
                  !from.weight_key.empty()};
    for (const BundlePick& pick : from.picks) {
      const auto& [function, waits] = functions[pick.kernel_sha256];
      QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<PreparedKernel> kernel,
                             PreparedKernel::Create(pick.launch, function, *device_));
      layer.buckets.push_back(pick.m_bucket);
      layer.picks.push_back({std::move(kernel), waits});
    }
  }
  return absl::OkStatus();
}

absl::Status BundleRuntime::UploadWeights() {
  constexpr int64_t kAlignment = 256;
  QGEMM_ASSIGN_OR_RETURN(const auto tensors, bundle_.Weights());
  // Every tensor once, though several layers may share a key.
  std::map<std::string, std::pair<int64_t, absl::string_view>> places;
  int64_t total = 0;
  for (const BundleLayer& layer : method_.layers) {
    if (layer.weight_key.empty()) continue;
    for (const PlaneSize& plane : PlanesOf(layer.problem)) {
      const std::string name = absl::StrCat(layer.weight_key, ".", plane.plane);
      const auto tensor = tensors.find(name);
      if (tensor == tensors.end() || static_cast<int64_t>(tensor->second.bytes.size()) != plane.bytes) {
        return absl::DataLossError(absl::StrCat(bundle_.path(), ": layer ", layer.name, ": tensor ", name,
                                                " is missing or has not ", plane.bytes, " bytes"));
      }
      if (!places.emplace(name, std::make_pair(total, tensor->second.bytes)).second) continue;
      total += (plane.bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  if (places.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(bundle_.path(), ": method ", method_.name, " has no weights in the bundle"));
  }
  QGEMM_ASSIGN_OR_RETURN(const uint64_t base, device_->Allocate(total));
  for (const auto& [name, place] : places) {
    QGEMM_RETURN_IF_ERROR(device_->CopyIn(base + place.first, place.second));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string& key = method_.layers[i].weight_key;
    if (key.empty()) continue;
    const auto address = [&](const char* plane) {
      const auto place = places.find(absl::StrCat(key, ".", plane));
      return place == places.end() ? 0 : base + place->second.first;
    };
    layers_[i].planes = {address("weights"), address("scales"), address("zeros"), address("steps"),
                         address("bias")};
  }
  return absl::OkStatus();
}

int BundleRuntime::FindLayer(absl::string_view name) const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i].info.name == name) return static_cast<int>(i);
  }
  return -1;
}

absl::Status BundleRuntime::NoKernel(const Layer& layer, int64_t m) const {
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer.info.name, ": M = ", m,
                                                 " is outside of 1 to ", layer.buckets.back(),
                                                 ", which its kernel serves"));
}

absl::StatusOr<SelectedKernel> BundleRuntime::Select(int layer, int64_t m) const {
  const int i = SelectBucket(layers_[layer].buckets, m);
  if (i < 0) return NoKernel(layers_[layer], m);
  const BundlePick& pick = method_.layers[layer].picks[i];
  return SelectedKernel{pick.m_bucket, pick.kernel_sha256, pick.config};
}

WorkspaceMemory BundleRuntime::WorkspaceFor(int64_t max_m) const {
  int64_t tickets = 0, partials = 0;
  for (const Layer& layer : layers_) {
    for (size_t i = 0; i < layer.picks.size(); ++i) {
      // The largest M that comes to this pick; none when the one before serves all.
      if (i > 0 && layer.buckets[i - 1] >= max_m) break;
      const LaunchSpec& spec = layer.picks[i].kernel->spec();
      const int64_t m = spec.max_m == 0 ? max_m : std::min<int64_t>(max_m, layer.buckets[i]);
      tickets = std::max(tickets, spec.TicketBytes(m));
      partials = std::max(partials, spec.WorkspaceBytes(m) - spec.TicketBytes(m));
    }
  }
  return {0, tickets + partials, tickets};
}

absl::StatusOr<WorkspaceMemory> BundleRuntime::AllocateWorkspace(int64_t max_m) {
  WorkspaceMemory workspace = WorkspaceFor(max_m);
  if (workspace.bytes == 0) return workspace;
  QGEMM_ASSIGN_OR_RETURN(workspace.address, device_->Allocate(workspace.bytes));
  return workspace;
}

absl::Status BundleRuntime::InLayer(const Layer& layer, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("layer ", layer.info.name, ": ", status.message()));
}

absl::Status BundleRuntime::Launch(int index, const LayerLaunch& launch) {
  if (launch.m == 0) return absl::OkStatus();
  Layer& layer = layers_[index];
  const int place = SelectBucket(layer.buckets, launch.m);
  if (place < 0) return NoKernel(layer, launch.m);
  Pick& pick = layer.picks[place];
  const LaunchSpec& spec = pick.kernel->spec();

  LaunchOperands operands;
  operands.m = launch.m;
  operands.ldx = launch.ldx;
  operands.ldy = launch.ldy;
  operands.ldr = launch.ldr;
  operands.x = launch.x;
  operands.y = launch.y;
  operands.residual = launch.residual;
  const bool own_planes = launch.weights == 0;
  operands.weights = own_planes ? layer.planes.weights : launch.weights;
  operands.scales = own_planes ? layer.planes.scales : launch.scales;
  operands.zeros = own_planes ? layer.planes.zeros : launch.zeros;
  operands.steps = own_planes ? layer.planes.steps : launch.steps;
  operands.bias = launch.bias != 0 ? launch.bias : layer.planes.bias;
  if (const int64_t bytes = spec.WorkspaceBytes(launch.m); bytes > 0) {
    // Tickets end where the partials begin, at one place for all kernels: no kernel's partials lie over
    // another's tickets.
    const WorkspaceMemory& workspace = launch.workspace;
    const int64_t tickets = spec.TicketBytes(launch.m);
    if (workspace.address == 0 || tickets > workspace.ticket_bytes ||
        bytes - tickets > workspace.bytes - workspace.ticket_bytes) {
      return InLayer(layer, absl::InvalidArgumentError(absl::StrCat(
                                "the workspace at ", workspace.address, " has ", workspace.ticket_bytes,
                                " bytes of tickets in ", workspace.bytes, "; M = ", launch.m, " needs ",
                                tickets, " and ", bytes - tickets, " more")));
    }
    operands.workspace = workspace.address + workspace.ticket_bytes - tickets;
  }
  if (launch.programmatic && !pick.waits) {
    return InLayer(layer,
                   absl::FailedPreconditionError(
                       "its kernel does not wait for the one before it: launch it without programmatic"));
  }
  absl::Status status = pick.kernel->Launch(operands, launch.stream, launch.programmatic);
  return status.ok() ? status : InLayer(layer, status);
}

}  // namespace

int SelectBucket(absl::Span<const int> buckets, int64_t m) {
  if (m < 1) return -1;
  const int bucket = BucketFor(m);
  const auto place = std::lower_bound(buckets.begin(), buckets.end(), bucket);
  return place == buckets.end() ? -1 : static_cast<int>(place - buckets.begin());
}

absl::StatusOr<std::unique_ptr<Runtime>> LoadRuntime(Bundle bundle, absl::string_view method,
                                                     std::unique_ptr<LaunchDevice> device) {
  QGEMM_ASSIGN_OR_RETURN(BundleMethod read, bundle.Method(method));
  auto runtime = std::make_unique<BundleRuntime>(std::move(bundle), std::move(read), std::move(device));
  QGEMM_RETURN_IF_ERROR(runtime->Prepare());
  return runtime;
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Load(const std::string& bundle_path,
                                                       absl::string_view method, int device_ordinal) {
  QGEMM_ASSIGN_OR_RETURN(Bundle bundle, Bundle::Open(bundle_path));
  QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<LaunchDevice> device, LaunchDevice::Open(device_ordinal));
  return LoadRuntime(std::move(bundle), method, std::move(device));
}

}  // namespace qgemm
