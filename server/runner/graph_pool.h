#ifndef QGEMM_SERVER_RUNNER_GRAPH_POOL_H_
#define QGEMM_SERVER_RUNNER_GRAPH_POOL_H_

#include <cstdint>
#include <list>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/runner/device.h"

namespace qgemm {

// What of a sequence cannot be updated in its graph.
struct GraphShape {
  int samples = 1;        // each of them: flush, event, kernel, event; 0: an event, the probe, an event
  bool rewarmed = false;  // the kernel runs once before the first flush
  int cluster_z = 1;      // of the kernel's launches: an attribute of their nodes
  friend bool operator==(const GraphShape&, const GraphShape&) = default;
};

// Graphs of sequences. Each is built, unless the pool updates: then one that is done with is kept, and
// becomes the graph of the next sequence of its shape, by a call of the driver for each launch instead of a
// capture and an instantiation; what the device refuses to update is built anew. Updated graphs take up to 6
// % less of a tuning's time, but a kernel in one is 1 to 2 % slower (README.md). Used by one thread; must not
// outlive the device.
class GraphPool {
 public:
  // A graph on loan; it goes back when this goes. False: there is none.
  class Loan {
   public:
    Loan() = default;
    Loan(Loan&& other) noexcept : pool_(other.pool_), shape_(other.shape_), graph_(std::move(other.graph_)) {}
    Loan& operator=(Loan&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(shape_, other.shape_);
      std::swap(graph_, other.graph_);
      return *this;
    }
    ~Loan() {
      if (graph_ != nullptr) pool_->Keep(shape_, std::move(graph_));
    }
    explicit operator bool() const { return graph_ != nullptr; }
    const DeviceGraph& operator*() const { return *graph_; }

   private:
    friend class GraphPool;
    Loan(GraphPool* pool, const GraphShape& shape, std::unique_ptr<DeviceGraph> graph)
        : pool_(pool), shape_(shape), graph_(std::move(graph)) {}
    GraphPool* pool_ = nullptr;
    GraphShape shape_;
    std::unique_ptr<DeviceGraph> graph_;
  };

  struct Counts {
    int64_t built = 0;
    int64_t updated = 0;
    int64_t refused = 0;  // updates, by the device; what was built instead is among `built`
  };

  // Sixteen finalists in 32 places, the probe's, and those of screening.
  static constexpr size_t kMaxKept = 640;
  // A device that refused so many updates and never took one is not asked again.
  static constexpr int64_t kMaxRefusals = 8;

  explicit GraphPool(Device& device, bool updates = false) : device_(device), updates_(updates) {}

  Device& device() { return device_; }
  // The graph of `sequence`; a false loan when none can be made, but the device is usable. Aborted: it is
  // not.
  [[nodiscard]] absl::StatusOr<Loan> Make(const GraphShape& shape, const Enqueue& sequence);
  // From now on graphs are updated where they can be.
  void Update() { updates_ = true; }
  // Drops what is kept.
  void Clear() { kept_.clear(); }
  const Counts& counts() const { return counts_; }

 private:
  struct Kept {
    GraphShape shape;
    std::unique_ptr<DeviceGraph> graph;
  };

  void Keep(const GraphShape& shape, std::unique_ptr<DeviceGraph> graph);
  // Removes one of the shape; null when there is none.
  std::unique_ptr<DeviceGraph> TakeKept(const GraphShape& shape);

  Device& device_;
  bool updates_;
  std::list<Kept> kept_;  // last given back first
  Counts counts_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_RUNNER_GRAPH_POOL_H_
