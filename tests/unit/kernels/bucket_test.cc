#include "kernels/bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace qgemm {
namespace {

TEST(Bucket, LadderIsTheDocumentedOne) {
  EXPECT_THAT(BucketLadder(),
              testing::ElementsAre(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096));
}

TEST(Bucket, IsTheSmallestThatHoldsM) {
  for (int64_t m = 1; m <= 4096; ++m) {
    const int bucket = BucketFor(m);
    EXPECT_GE(bucket, m);
    for (int smaller : BucketLadder()) {
      if (smaller < bucket) {
        EXPECT_LT(smaller, m);
      }
    }
  }
  EXPECT_EQ(BucketFor(100), 128);
}

TEST(Bucket, LastIsOpenEnded) {
  EXPECT_EQ(BucketFor(4097), 4096);
  EXPECT_EQ(BucketFor(std::numeric_limits<int32_t>::max()), 4096);
  EXPECT_EQ(BucketFor(std::numeric_limits<int64_t>::max()), 4096);
  EXPECT_TRUE(BucketServes(4096, 32768));
}

TEST(Bucket, ServesEveryMUpToItself) {
  EXPECT_TRUE(BucketServes(16, 1));
  EXPECT_TRUE(BucketServes(16, 16));
  EXPECT_FALSE(BucketServes(16, 17));
  EXPECT_FALSE(BucketServes(2048, 2049));
  EXPECT_FALSE(BucketServes(16, 0));
}

}  // namespace
}  // namespace qgemm
