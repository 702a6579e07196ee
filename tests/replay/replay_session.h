#ifndef QGEMM_TESTS_REPLAY_REPLAY_SESSION_H_
#define QGEMM_TESTS_REPLAY_REPLAY_SESSION_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cache/memory_store.h"
#include "server/gpu.h"
#include "server/tuner.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/replay/noise_model.h"
#include "tests/replay/recorded_timings.h"

namespace qgemm {

// What kept a better candidate, one within 1 % of the best recorded, from being picked.
enum class Missed {
  kNot,         // the pick is such a one
  kNotPlanned,  // none was tried
  kScreening,   // one was, but its screened time kept it out of the race
  kRace,        // one was in the race, or near enough by its time
};

struct ReplayOutcome {
  v1::Pick pick;
  double regret = 1;      // recorded time of the pick over the smallest recorded one
  double true_us = 0;     // recorded time of the pick
  double gpu_s = 0;       // virtual seconds of the GPU process
  int64_t timings = 0;    // candidates screened
  std::string candidate;  // CandidateName
  Missed missed = Missed::kNot;
};

// One daemon's life over recorded timings of int4, group 128, bf16 on an H200: a store that starts empty, and
// one process of the GPU. Everything but the compiler and the GPU is the real tuner.
class ReplaySession {
 public:
  // Borrowed: the timings.
  ReplaySession(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed, bool rewarm = true);

  // Tunes one cell, which must be among the timings.
  [[nodiscard]] absl::StatusOr<ReplayOutcome> Tune(const Cell& cell, v1::Effort effort);

 private:
  Missed WhyMissed(const Cell& cell, const v1::TuneRequest& request, const ReplayOutcome& outcome);

  const RecordedTimings& timings_;
  MemoryStore store_;
  FakeCompiler compiler_;
  const std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<Tuner> tuner_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_REPLAY_REPLAY_SESSION_H_
