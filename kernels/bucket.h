#ifndef QGEMM_KERNELS_BUCKET_H_
#define QGEMM_KERNELS_BUCKET_H_

#include <cstdint>

#include "absl/types/span.h"

namespace qgemm {

// The ladder 1 2 4 8 16 24 32 48 64 96 128 256 512 1024 2048 4096.
absl::Span<const int> BucketLadder();

// The smallest bucket >= m; above the ladder its last, which is open-ended. m >= 1.
int BucketFor(int64_t m);

// Whether a pick for `bucket` serves a launch with `m` rows.
bool BucketServes(int bucket, int64_t m);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_BUCKET_H_
