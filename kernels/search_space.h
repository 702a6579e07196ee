#ifndef QGEMM_KERNELS_SEARCH_SPACE_H_
#define QGEMM_KERNELS_SEARCH_SPACE_H_

#include <vector>

#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"

namespace qgemm {

// Every config of the space for a bucket, in config order; depends on the shape in nothing.
std::vector<KernelConfig> ConfigSpace(const KernelSignature& signature, int m_bucket,
                                      const DeviceProfile& device);

// Every config of the space for any bucket of the ladder, in config order, without repeats.
std::vector<KernelConfig> WholeConfigSpace(const KernelSignature& signature, const DeviceProfile& device);

// The legal candidates of one config for a problem and bucket, in candidate order; without splits that leave
// most of the GPU idle or oversubscribe it several times over.
std::vector<Candidate> LegalSplits(const KernelConfig& config, const Problem& problem, int m_bucket,
                                   const DeviceProfile& device);

// Every legal candidate (config x split x reduction) for a problem and bucket, in candidate order; at least
// 60 for every problem that can be split that often.
std::vector<Candidate> LegalCandidates(const Problem& problem, int m_bucket, const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_SEARCH_SPACE_H_
