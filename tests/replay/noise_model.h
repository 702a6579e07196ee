#ifndef QGEMM_TESTS_REPLAY_NOISE_MODEL_H_
#define QGEMM_TESTS_REPLAY_NOISE_MODEL_H_

namespace qgemm {

// What lies between a kernel's true time and a sample of it. Fractions are of the true time.
struct NoiseModel {
  double jitter = 0.006;          // standard deviation, per sample
  double jitter_us = 0.06;        // and what does not grow with the kernel
  double outliers = 0.02;         // share of samples that something delays by 1 us on average
  double candidate_bias = 0.002;  // standard deviation, one draw per candidate and process
  double placement_us = 0.2;      // and one per candidate, process and place of the operands in memory
  int placements = 32;            // places that the operands lie in (ProblemData)
  double slow_drift = 0.01;       // amplitude of the clocks' drift over seconds, common to all kernels
  double fast_drift = 0.003;      // and over tenths of a second
  double event_step_us = 0.032;   // resolution of event times
  // A kernel whose code the SMs do not hold any more is slower by as much, give or take a half per config:
  // races of a sweep on the H200 became faster by 0 to 0.8 us while most of their kernels left, by 0.25 in
  // the middle. They hold the code of so many configs that ran last.
  double company_us = 0.25;
  int codes_held = 4;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_REPLAY_NOISE_MODEL_H_
