#ifndef QGEMM_CLIENT_RUNTIME_SIMILAR_PICKS_H_
#define QGEMM_CLIENT_RUNTIME_SIMILAR_PICKS_H_

#include <vector>

#include "client/bundle/manifest.h"
#include "kernels/device_profile.h"
#include "kernels/launch_spec.h"

namespace qgemm {

// A method's pick that may run a layer in a bucket the layer was not tuned for.
struct SimilarPick {
  int m_bucket = 0;                   // that bucket
  const BundlePick* tuned = nullptr;  // whose kernel it is; of the method
  LaunchSpec launch;                  // made from the layer's own shape
};

// For each layer of a method with a dynamic M the picks for the buckets of the ladder that it has none for,
// by bucket, nearest first (kernels/similarity.h, log2-l1): legality for the largest M of the bucket first,
// then the distance over (M, N, K). One per bucket, for the open last one some, as its largest M is not
// known. Empty for a method with a static M, and where no pick is legal. `method` must outlive the result.
// Pure.
std::vector<std::vector<SimilarPick>> SimilarPicks(const BundleMethod& method, const DeviceProfile& device);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_RUNTIME_SIMILAR_PICKS_H_
