#include "server/runner/graph_pool.h"

#include <algorithm>

#include "base/status_macros.h"

namespace qgemm {
namespace {

// Captures `sequence` into a graph. An error other than Aborted leaves the stream usable.
absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(Device& device, const Enqueue& sequence) {
  QGEMM_RETURN_IF_ERROR(device.BeginCapture());
  if (absl::Status status = sequence(); !status.ok()) {
    device.AbandonCapture();
    return status;
  }
  return device.EndCapture();
}

}  // namespace

absl::StatusOr<GraphPool::Loan> GraphPool::Make(const GraphShape& shape, const Enqueue& sequence) {
  if (std::unique_ptr<DeviceGraph> kept = TakeKept(shape); kept != nullptr) {
    const absl::Status updated = device_.Update(*kept, sequence);
    if (updated.ok()) {
      ++counts_.updated;
      return Loan(this, shape, std::move(kept));
    }
    if (absl::IsAborted(updated)) return updated;
    ++counts_.refused;
    if (counts_.updated == 0 && counts_.refused >= kMaxRefusals) updates_ = false;
  }
  absl::StatusOr<std::unique_ptr<DeviceGraph>> built = Capture(device_, sequence);
  if (absl::IsAborted(built.status())) return built.status();
  if (!built.ok()) return Loan();
  ++counts_.built;
  return Loan(this, shape, *std::move(built));
}

void GraphPool::Keep(const GraphShape& shape, std::unique_ptr<DeviceGraph> graph) {
  if (!updates_ || !graph->updatable()) return;
  kept_.push_front({shape, std::move(graph)});
  if (kept_.size() > kMaxKept) kept_.pop_back();
}

std::unique_ptr<DeviceGraph> GraphPool::TakeKept(const GraphShape& shape) {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.shape == shape; });
  if (found == kept_.end()) return nullptr;
  std::unique_ptr<DeviceGraph> graph = std::move(found->graph);
  kept_.erase(found);
  return graph;
}

}  // namespace qgemm
