#ifndef QGEMM_TESTS_REPLAY_REPLAY_GPU_H_
#define QGEMM_TESTS_REPLAY_REPLAY_GPU_H_

#include <cstdint>
#include <memory>

#include "server/gpu.h"
#include "tests/replay/noise_model.h"
#include "tests/replay/recorded_timings.h"

namespace qgemm {

// An H200 that knows the times of recorded candidates: the real screening and races on a ReplayDevice. A
// candidate without a recorded time is rejected as not recorded; busy_seconds() is virtual time. Borrowed:
// the timings. Used by one thread.
// `rewarm`: RoundsOptions.rewarm of its races.
std::unique_ptr<Gpu> MakeReplayGpu(const RecordedTimings& timings, const NoiseModel& noise, uint64_t seed,
                                   bool rewarm = true);

}  // namespace qgemm

#endif  // QGEMM_TESTS_REPLAY_REPLAY_GPU_H_
