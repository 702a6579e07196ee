#include "client/runtime/bundle_runtime.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/runtime/prepared_kernel.h"
#include "client/runtime/similar_picks.h"
#include "kernels/bucket.h"
#include "kernels/legality.h"

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
  absl::StatusOr<WorkspaceMemory> AllocateWorkspaceForGraph(int64_t max_m, void* stream) override;
  void FreeWorkspace(const WorkspaceMemory& workspace) override { device_->Free(workspace.address); }
  absl::Status Launch(int index, const LayerLaunch& launch) override;

  absl::StatusOr<uint64_t> AllocateMemory(int64_t bytes) override {
    if (bytes >= 1) return device_->Allocate(bytes);
    return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes cannot be allocated"));
  }
  absl::Status CopyIn(uint64_t address, const void* bytes, int64_t count) override {
    QGEMM_RETURN_IF_ERROR(CheckCopy(bytes, count));
    return device_->CopyIn(address, absl::string_view(static_cast<const char*>(bytes), count));
  }
  absl::Status CopyOut(void* bytes, uint64_t address, int64_t count) override {
    QGEMM_RETURN_IF_ERROR(CheckCopy(bytes, count));
    return device_->CopyOut(address, absl::MakeSpan(static_cast<char*>(bytes), count));
  }

 private:
  struct Pick {
    const BundlePick* tuned = nullptr;  // of method_
    std::unique_ptr<PreparedKernel> kernel;
    bool waits = false;       // for the kernel before it: may be launched programmatically
    bool is_similar = false;  // not tuned for this layer and bucket
  };
  static constexpr size_t kBuckets = 16;
  struct Layer {
    LayerInfo info;
    int y_bytes = 2;  // of a number
    // What its kernels read without asking whether it is there.
    bool has_zeros = false, has_steps = false, has_bias = false, has_residual = false;
    std::vector<Pick> picks;
    // Of each bucket of the ladder: places in `picks`, the first that may run the real M is used.
    std::array<std::vector<int>, kBuckets> choices;
    Planes planes;  // written by UploadWeights alone
  };

  // The pick for m rows; null: none.
  const Pick* Choose(const Layer& layer, int64_t m) const;
  absl::Status NoKernel(const Layer& layer, int64_t m) const;
  static absl::Status CheckCopy(const void* bytes, int64_t count);
  static absl::Status CheckRows(const Layer& layer, const LayerLaunch& launch);
  static absl::Status CheckGiven(const Layer& layer, const LaunchOperands& operands);
  static absl::Status CheckAliases(const Layer& layer, const LayerLaunch& launch);
  absl::Status InLayer(const Layer& layer, const absl::Status& status) const;

  const Bundle bundle_;
  const BundleMethod method_;
  const std::unique_ptr<LaunchDevice> device_;
  std::vector<Layer> layers_;  // in the method's order; constant after Prepare but for the planes
};

absl::Status BundleRuntime::Prepare() {
  const std::vector<std::vector<SimilarPick>> similar = SimilarPicks(method_, device_->profile());
  // A kernel is loaded once, for the largest shared memory any pick gives it.
  std::map<std::string, int> smem_bytes;
  const auto needs = [&smem_bytes](const BundlePick& pick, const LaunchSpec& launch) {
    int& bytes = smem_bytes[pick.kernel_sha256];
    bytes = std::max(bytes, launch.dynamic_smem_bytes);
  };
  for (size_t i = 0; i < method_.layers.size(); ++i) {
    for (const BundlePick& pick : method_.layers[i].picks) needs(pick, pick.launch);
    for (const SimilarPick& pick : similar[i]) needs(*pick.tuned, pick.launch);
  }
  std::map<std::string, const BundleKernel*> listed;
  for (const BundleKernel& kernel : bundle_.manifest().kernels) listed[kernel.sha256] = &kernel;
  std::map<std::string, std::pair<LaunchFunction, bool>> functions;
  for (const auto& [sha256, bytes] : smem_bytes) {
    const auto kernel = listed.find(sha256);
    if (kernel == listed.end()) {
      return absl::DataLossError(
          absl::StrCat(bundle_.path(), ": kernel ", sha256, " is not in its manifest"));
    }
    QGEMM_ASSIGN_OR_RETURN(const absl::string_view cubin, bundle_.Cubin(sha256));
    const absl::StatusOr<LaunchFunction> function = device_->LoadKernel(cubin, kernel->second->entry, bytes);
    if (!function.ok()) {
      return absl::Status(function.status().code(),
                          absl::StrCat("kernel ", sha256, " for ", kernel->second->arch, " on a device of ",
                                       device_->arch(), ": ", function.status().message()));
    }
    functions[sha256] = {*function, kernel->second->programmatic};
  }
  const absl::Span<const int> ladder = BucketLadder();
  for (size_t i = 0; i < method_.layers.size(); ++i) {
    const BundleLayer& from = method_.layers[i];
    Layer& layer = layers_.emplace_back();
    layer.info = {from.name,
                  from.problem.n,
                  from.problem.k,
                  from.problem.y_columns(),
                  method_.static_m,
                  ProblemName(from.problem),
                  !from.weight_key.empty()};
    const KernelSignature& signature = from.problem.signature;
    layer.y_bytes = signature.out == ScalarType::kFp32 ? 4 : 2;
    layer.has_zeros = signature.format.zero_point != ZeroPoint::kNone;
    layer.has_steps = signature.format.scale_levels == 2;
    layer.has_bias = signature.epilogue.bias;
    layer.has_residual = signature.epilogue.residual;
    const auto add = [&](const BundlePick& pick, const LaunchSpec& launch, bool is_similar) -> absl::Status {
      const absl::Status access = CheckAccess(*listed[pick.kernel_sha256], launch);
      if (!access.ok()) {
        return absl::Status(access.code(), absl::StrCat(bundle_.path(), ": ", access.message()));
      }
      const auto& [function, waits] = functions[pick.kernel_sha256];
      QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<PreparedKernel> kernel,
                             PreparedKernel::Create(launch, function, *device_));
      layer.picks.push_back({&pick, std::move(kernel), waits, is_similar});
      return absl::OkStatus();
    };
    for (const BundlePick& pick : from.picks) QGEMM_RETURN_IF_ERROR(add(pick, pick.launch, false));
    for (const SimilarPick& pick : similar[i]) {
      const auto bucket = std::lower_bound(ladder.begin(), ladder.end(), pick.m_bucket) - ladder.begin();
      layer.choices[bucket].push_back(static_cast<int>(layer.picks.size()));
      QGEMM_RETURN_IF_ERROR(add(*pick.tuned, pick.launch, true));
    }
    // Its own pick of the bucket before all, its own of the next larger bucket after all.
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto own = std::find_if(from.picks.begin(), from.picks.end(),
                                    [&](const BundlePick& pick) { return pick.m_bucket >= ladder[bucket]; });
      if (own == from.picks.end()) continue;
      std::vector<int>& choices = layer.choices[bucket];
      choices.insert(own->m_bucket == ladder[bucket] ? choices.begin() : choices.end(),
                     static_cast<int>(own - from.picks.begin()));
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
  int largest = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    if (!layer.choices[i].empty()) largest = BucketLadder()[i];
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "layer ", layer.info.name, ": M = ", m, " is outside of 1 to ", largest, ", which its kernels serve"));
}

const BundleRuntime::Pick* BundleRuntime::Choose(const Layer& layer, int64_t m) const {
  const int bucket = SelectBucket(BucketLadder(), m);
  if (bucket < 0) return nullptr;
  for (const int place : layer.choices[bucket]) {
    const Pick& pick = layer.picks[place];
    // What of legality is left to the real M; the rest was looked at when the picks were ranked.
    if (!pick.is_similar || pick.kernel->spec().WorkspaceBytes(m) <= kMaxWorkspaceBytes) return &pick;
  }
  return nullptr;
}

absl::StatusOr<SelectedKernel> BundleRuntime::Select(int layer, int64_t m) const {
  const Pick* const pick = Choose(layers_[layer], m);
  if (pick == nullptr) return NoKernel(layers_[layer], m);
  return SelectedKernel{pick->tuned->m_bucket, pick->tuned->kernel_sha256, pick->tuned->config,
                        pick->is_similar};
}

WorkspaceMemory BundleRuntime::WorkspaceFor(int64_t max_m) const {
  max_m = std::clamp<int64_t>(max_m, 0, INT32_MAX);  // no launch has more
  int64_t tickets = 0, partials = 0;
  for (const Layer& layer : layers_) {
    for (size_t i = 0; i < kBuckets; ++i) {
      // The largest M of this bucket; none when the one before serves all.
      if (i > 0 && BucketLadder()[i - 1] >= max_m) break;
      const int64_t m = i + 1 == kBuckets ? max_m : std::min<int64_t>(max_m, BucketLadder()[i]);
      for (const int place : layer.choices[i]) {
        const LaunchSpec& spec = layer.picks[place].kernel->spec();
        const int64_t bytes = spec.WorkspaceBytes(m);
        if (layer.picks[place].is_similar && bytes > kMaxWorkspaceBytes) continue;
        tickets = std::max(tickets, spec.TicketBytes(m));
        partials = std::max(partials, bytes - spec.TicketBytes(m));
      }
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

absl::StatusOr<WorkspaceMemory> BundleRuntime::AllocateWorkspaceForGraph(int64_t max_m, void* stream) {
  WorkspaceMemory workspace = WorkspaceFor(max_m);
  if (workspace.bytes == 0) return workspace;
  QGEMM_ASSIGN_OR_RETURN(workspace.address, device_->AllocateForGraph(workspace.bytes, stream));
  return workspace;
}

absl::Status BundleRuntime::InLayer(const Layer& layer, const absl::Status& status) const {
  return absl::Status(status.code(), absl::StrCat("layer ", layer.info.name, ": ", status.message()));
}

absl::Status BundleRuntime::CheckCopy(const void* bytes, int64_t count) {
  if (count >= 0 && (bytes != nullptr || count == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count, " bytes of ", bytes == nullptr ? "NULL" : "memory", " cannot be copied"));
}

// Rows that are not 16-byte aligned, or lie in each other, end in the GPU's fault or in wrong numbers.
absl::Status BundleRuntime::CheckRows(const Layer& layer, const LayerLaunch& launch) {
  const LayerInfo& info = layer.info;
  if (launch.ldx < info.k || launch.ldx % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ldx = ", launch.ldx, " is not a multiple of 8 of at least K = ", info.k));
  }
  if (launch.ldy < info.y_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("ldy = ", launch.ldy, " is less than the ", info.y_columns, " columns of Y"));
  }
  if (layer.has_residual && launch.ldr < info.y_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("ldr = ", launch.ldr, " is less than the ", info.y_columns, " columns of the residual"));
  }
  return absl::OkStatus();
}

absl::Status BundleRuntime::CheckGiven(const Layer& layer, const LaunchOperands& operands) {
  const auto check = [](const char* argument, bool needed, uint64_t address) -> absl::Status {
    if (!needed || address != 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("argument '", argument, "' is null; the layer has it"));
  };
  QGEMM_RETURN_IF_ERROR(check("zeros", layer.has_zeros, operands.zeros));
  QGEMM_RETURN_IF_ERROR(check("steps", layer.has_steps, operands.steps));
  QGEMM_RETURN_IF_ERROR(check("bias", layer.has_bias, operands.bias));
  QGEMM_RETURN_IF_ERROR(check("residual", layer.has_residual, operands.residual));
  if (!layer.has_bias && operands.bias != 0) {
    return absl::InvalidArgumentError("a bias is given; the layer adds none");
  }
  if (!layer.has_residual && operands.residual != 0) {
    return absl::InvalidArgumentError("a residual is given; the layer adds none");
  }
  return absl::OkStatus();
}

absl::Status BundleRuntime::CheckAliases(const Layer& layer, const LayerLaunch& launch) {
  const LayerInfo& info = layer.info;
  const uint64_t y_end = launch.y + ((launch.m - 1) * launch.ldy + info.y_columns) * layer.y_bytes;
  const uint64_t x_end = launch.x + ((launch.m - 1) * launch.ldx + info.k) * 2;
  if (launch.x < y_end && launch.y < x_end) {
    return absl::InvalidArgumentError(absl::StrCat("Y at 0x", absl::Hex(launch.y), " overlaps X at 0x",
                                                   absl::Hex(launch.x),
                                                   ", which the kernel reads meanwhile"));
  }
  // A residual in Y's own place is fine: each of its numbers is read before the one result that replaces it.
  if (launch.residual == 0 || (launch.residual == launch.y && launch.ldr == launch.ldy)) {
    return absl::OkStatus();
  }
  const uint64_t residual_end =
      launch.residual + ((launch.m - 1) * launch.ldr + info.y_columns) * layer.y_bytes;
  if (launch.residual < y_end && launch.y < residual_end) {
    return absl::InvalidArgumentError(absl::StrCat("Y at 0x", absl::Hex(launch.y),
                                                   " overlaps the residual at 0x", absl::Hex(launch.residual),
                                                   " in other places than its own"));
  }
  return absl::OkStatus();
}

absl::Status BundleRuntime::Launch(int index, const LayerLaunch& launch) {
  if (launch.m == 0) return absl::OkStatus();
  const Layer& layer = layers_[index];
  const Pick* const chosen = Choose(layer, launch.m);
  if (chosen == nullptr) return NoKernel(layer, launch.m);
  const Pick& pick = *chosen;
  const LaunchSpec& spec = pick.kernel->spec();

  if (absl::Status rows = CheckRows(layer, launch); !rows.ok()) return InLayer(layer, rows);
  if (absl::Status aliases = CheckAliases(layer, launch); !aliases.ok()) return InLayer(layer, aliases);

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
  if (absl::Status given = CheckGiven(layer, operands); !given.ok()) return InLayer(layer, given);
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
  return LoadRuntime(std::move(bundle), std::move(read), std::move(device));
}

absl::StatusOr<std::unique_ptr<Runtime>> LoadRuntime(Bundle bundle, BundleMethod method,
                                                     std::unique_ptr<LaunchDevice> device) {
  auto runtime = std::make_unique<BundleRuntime>(std::move(bundle), std::move(method), std::move(device));
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
