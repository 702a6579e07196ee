#ifndef QGEMM_SERVER_SOURCE_BENCH_H_
#define QGEMM_SERVER_SOURCE_BENCH_H_

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "qgemm/v1/bench.pb.h"
#include "server/compiler.h"
#include "server/gpu.h"
#include "server/tuning_target.h"

namespace qgemm {

// Where a comparison's events go. Used by the requesting thread only.
class CompareSourceStream {
 public:
  virtual ~CompareSourceStream() = default;
  virtual void Send(const v1::CompareSourceEvent& event) = 0;
  // The client is gone or cancelled; asked every 50 ms at least.
  virtual bool Cancelled() = 0;
};

struct SourceBenchOptions {
  absl::Duration screen = absl::Milliseconds(2);  // GPU time per kernel beside its verification
  absl::Duration pair = absl::Milliseconds(80);   // GPU time for the two kernels of a candidate, in turn
};

// Compares candidates made from the shipped device sources with the same ones made from a changed source
// (bench.proto). Knows no gRPC. Thread-safe: a call runs on its caller's thread; calls that time take turns.
class SourceBench {
 public:
  static constexpr int kMaxProblems = 16;
  static constexpr int kMaxBuckets = 16;
  static constexpr int kDefaultCandidates = 8;
  static constexpr int kMaxCandidates = 64;
  static constexpr size_t kMaxSourceBytes = 1 << 20;
  static constexpr size_t kMaxExpressionBytes = 256;

  // Borrowed: all but `targets` and `options`. `gpu` is nobody else's (GpuSharer makes one); null: nothing is
  // timed.
  SourceBench(CacheStore& store, Compiler& compiler, Gpu* gpu, Clock& clock, TargetResolver targets,
              SourceBenchOptions options = {})
      : store_(store),
        compiler_(compiler),
        gpu_(gpu),
        clock_(clock),
        targets_(std::move(targets)),
        options_(options) {}

  // Streams progress, candidates and a summary. InvalidArgument names field, value and what is allowed;
  // FailedPrecondition: no candidate can be compared; Unavailable: no compile worker, no GPU, or Stop() was
  // called; Cancelled: the stream was.
  [[nodiscard]] absl::Status Compare(const v1::CompareSourceRequest& request, CompareSourceStream& stream);

  // Running calls end with Unavailable soon; later ones at once.
  void Stop() { stopped_ = true; }

 private:
  class Comparison;

  CacheStore& store_;
  Compiler& compiler_;
  Gpu* const gpu_;
  Clock& clock_;
  const TargetResolver targets_;
  const SourceBenchOptions options_;
  std::atomic<bool> stopped_{false};
  Mutex gpu_mu_;                                              // held by the call that times
  const void* prepared_ QGEMM_GUARDED_BY(gpu_mu_) = nullptr;  // whose data is on the GPU
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_SOURCE_BENCH_H_
