#ifndef QGEMM_KERNELS_COST_MODEL_H_
#define QGEMM_KERNELS_COST_MODEL_H_

#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// A predicted kernel time and its parts, microseconds, with cold caches as the timer measures.
struct CostEstimate {
  double total_us = 0;
  double memory_us = 0;        // bytes over achievable bandwidth, DRAM and L2
  double mma_us = 0;           // padded flops over the MMA rate, on the busiest SM
  double dequant_us = 0;       // integer work of the dequantization, on the busiest SM
  double main_us = 0;          // the main loop: all of the above, as far as they overlap
  double reduction_us = 0;     // split-K traffic and synchronisation
  double overhead_us = 0;      // launch, and first fill and epilogue of every wave of CTAs
  double wave_efficiency = 1;  // average SM's CTAs over the busiest's; already in the figures above
};

// Roofline estimate for a legal candidate (IsLegal) with `m` rows, m >= 1:
//   total = main + reduction + overhead
//   family mma:    main = sqrt(memory^2 + (mma + dequant)^2)
//   family wgmma:  main = max(memory, a CTA's walk through its stages, which is at least mma and dequant)
// A pure function; never negative; the same on every machine. README.md says how well it orders candidates.
CostEstimate PredictCost(const Candidate& candidate, const Problem& problem, int64_t m,
                         const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_COST_MODEL_H_
