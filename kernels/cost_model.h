#ifndef QGEMM_KERNELS_COST_MODEL_H_
#define QGEMM_KERNELS_COST_MODEL_H_

#include <string>

#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// A predicted kernel time and its parts, microseconds.
struct CostEstimate {
  double total_us = 0;
  double memory_us = 0;     // bytes over achievable bandwidth
  double mma_us = 0;        // padded flops over the MMA rate
  double dequant_us = 0;    // integer work of the dequantization
  double reduction_us = 0;  // split-K traffic and synchronisation
  double wave_efficiency = 1;
};

// Roofline estimate for a legal candidate with `m` rows (shared notes: t = max(memory, mma, dequant) / wave
// efficiency + launch + reduction). A pure function; never negative; the same on every machine.
CostEstimate PredictCost(const Candidate& candidate, const Problem& problem, int64_t m, const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_COST_MODEL_H_
