#include "base/digest.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

// FIPS 180-2, appendix B.
TEST(Sha256, MatchesThePublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256, RawDigestIsThirtyTwoBytes) { EXPECT_EQ(Sha256("abc").size(), 32); }

TEST(Sha256Hasher, PiecesGiveTheDigestOfTheWhole) {
  Sha256Hasher hasher;
  hasher.Update("ab");
  hasher.Update("");
  hasher.Update("c");
  EXPECT_EQ(hasher.Finish(), Sha256("abc"));
}

TEST(Sha256Hasher, StartsAgainAfterFinish) {
  Sha256Hasher hasher;
  hasher.Update("something else");
  hasher.Finish();
  hasher.Update("abc");
  EXPECT_EQ(hasher.Finish(), Sha256("abc"));
}

TEST(ToHex, KeepsZeroAndHighBytes) { EXPECT_EQ(ToHex(std::string("\0\x7f\xff", 3)), "007fff"); }

}  // namespace
}  // namespace qgemm
