#include "kernels/bucket.h"

#include <algorithm>
#include <iterator>

namespace qgemm {
namespace {

constexpr int kLadder[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096};
constexpr int kLast = kLadder[std::size(kLadder) - 1];

}  // namespace

absl::Span<const int> BucketLadder() { return kLadder; }

int BucketFor(int64_t m) {
  const int* bucket = std::lower_bound(std::begin(kLadder), std::end(kLadder), m);
  return bucket == std::end(kLadder) ? kLast : *bucket;
}

bool BucketServes(int bucket, int64_t m) { return m >= 1 && (m <= bucket || bucket == kLast); }

}  // namespace qgemm
