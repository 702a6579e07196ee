#include "client/weight_store/weight_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;
using Kind = WeightEntry::Kind;
using Outcome = WeightStore::Outcome;

// Entries whose fingerprint is their first byte and counts its calls.
class WeightStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(/*skip_repeats=*/true); }
  void Open(bool skip_repeats) {
    auto writer = SafetensorsWriter::Create(folder_ / "weights");
    ASSERT_TRUE(writer.ok());
    writer_ = std::make_unique<SafetensorsWriter>(*std::move(writer));
    store_ = std::make_unique<WeightStore>(*writer_, skip_repeats);
  }
  absl::StatusOr<Outcome> Add(const std::string& key, Kind kind, const std::string& bytes) {
    WeightEntry entry;
    entry.key = key;
    entry.kind = kind;
    entry.dtype = "U8";
    entry.shape = {static_cast<int64_t>(bytes.size())};
    entry.fingerprint = [bytes] { return bytes.substr(0, 1); };
    entry.read = [this, bytes]() -> absl::StatusOr<absl::string_view> {
      ++reads_;
      bytes_ = bytes;
      return absl::string_view(bytes_);
    };
    return store_->Add(entry);
  }
  std::string Finish() {
    EXPECT_TRUE(writer_->Finish({}).ok());
    std::ostringstream text;
    text << std::ifstream(folder_ / "weights", std::ios::binary).rdbuf();
    return text.str();
  }

  TemporaryFolder folder_;
  std::unique_ptr<SafetensorsWriter> writer_;
  std::unique_ptr<WeightStore> store_;
  int reads_ = 0;
  std::string bytes_;
};

TEST_F(WeightStoreTest, AWeightIsReadAndWrittenOnceForAllMethods) {
  EXPECT_EQ(*Add("w", Kind::kWeight, "abcd"), Outcome::kWritten);
  for (int method = 1; method < 8; ++method) EXPECT_EQ(*Add("w", Kind::kWeight, "abcd"), Outcome::kSkipped);
  EXPECT_EQ(reads_, 1);
  EXPECT_EQ(store_->counts().written, 1);
  EXPECT_EQ(store_->counts().skipped, 7);
  EXPECT_EQ(store_->counts().bytes_skipped, 28);
}

TEST_F(WeightStoreTest, AChangedWeightUnderAnOldKeyIsAnError) {
  ASSERT_TRUE(Add("w", Kind::kWeight, "abcd").ok());
  const auto changed = Add("w", Kind::kWeight, "Abcd");
  EXPECT_TRUE(absl::IsInvalidArgument(changed.status()));
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr("weight w has changed"));
}

TEST_F(WeightStoreTest, CpuTensorsAreNeverFingerprintedAndAlwaysWritten) {
  for (int method = 0; method < 2; ++method) {
    EXPECT_EQ(*Add("w", Kind::kCpuTensor, "abcd"), Outcome::kWritten);
  }
  EXPECT_EQ(store_->counts().fingerprints, 0);
  EXPECT_EQ(reads_, 2);
  // And a change is found all the same: their bytes are at hand.
  EXPECT_TRUE(absl::IsInvalidArgument(Add("w", Kind::kCpuTensor, "abcX").status()));
}

TEST_F(WeightStoreTest, LibraryConstantsAreNeverFingerprintedAndAlwaysWritten) {
  for (int method = 0; method < 2; ++method) {
    EXPECT_EQ(*Add("decode/constant_0", Kind::kLibraryConstant, "abcd"), Outcome::kWritten);
  }
  EXPECT_EQ(store_->counts().fingerprints, 0);
  EXPECT_EQ(reads_, 2);
}

TEST_F(WeightStoreTest, StateIsNeverFingerprintedAndAlwaysWrittenThoughItChanges) {
  EXPECT_EQ(*Add("kv_cache.0", Kind::kState, "abcd"), Outcome::kWritten);
  EXPECT_EQ(*Add("kv_cache.0", Kind::kState, "aXcd"), Outcome::kWritten);
  EXPECT_EQ(store_->counts().fingerprints, 0);
  EXPECT_TRUE(absl::StrContains(Finish(), "aXcd"));
}

TEST_F(WeightStoreTest, AKeyIsEitherAWeightsOrNot) {
  ASSERT_TRUE(Add("w", Kind::kWeight, "abcd").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Add("w", Kind::kState, "abcd").status()));
}

TEST_F(WeightStoreTest, TheFileIsTheSameWithAndWithoutSkipping) {
  const auto fill = [this] {
    for (int method = 0; method < 3; ++method) {
      for (const char* key : {"b", "a", "c"}) {
        EXPECT_TRUE(Add(key, Kind::kWeight, std::string(100, *key)).ok());
      }
    }
    return Finish();
  };
  const std::string with = fill();
  EXPECT_EQ(store_->counts().skipped, 6);
  Open(/*skip_repeats=*/false);
  EXPECT_EQ(fill(), with);
  EXPECT_EQ(store_->counts().skipped, 0);
  EXPECT_EQ(store_->counts().written, 9);
}

}  // namespace
}  // namespace qgemm
