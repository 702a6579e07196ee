#include "cache/record.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST(Record, RoundTripsAMessage) {
  const internal::TimingRecord timing = TimingOf("t", 12.5);
  const std::string value = EncodeRecord(RecordType::kTiming, timing.timing_key(), timing);
  internal::TimingRecord read;
  ASSERT_TRUE(DecodeRecord(RecordType::kTiming, timing.timing_key(), value, read).ok());
  EXPECT_EQ(read.SerializeAsString(), timing.SerializeAsString());
}

TEST(Record, RoundTripsAnEmptyMessage) {
  const std::string value = EncodeRecord(RecordType::kTiming, "k", internal::TimingRecord());
  internal::TimingRecord read;
  EXPECT_TRUE(DecodeRecord(RecordType::kTiming, "k", value, read).ok());
}

TEST(Record, HasTheWrittenLayout) {
  internal::TimingRecord timing;
  timing.set_candidate("c");
  const std::string payload = timing.SerializeAsString();
  const std::string value = EncodeRecord(RecordType::kTiming, "key", timing);
  const std::string header("QGRC\x01T", 6);
  EXPECT_EQ(value,
            absl::StrCat(header, Sha256(absl::StrCat(header, std::string("\x03\0\0\0", 4), "key", payload)),
                         payload));
}

TEST(Record, EveryFlippedBitIsFound) {
  const internal::TimingRecord timing = TimingOf("t", 12.5);
  const std::string value = EncodeRecord(RecordType::kTiming, timing.timing_key(), timing);
  for (size_t bit = 0; bit < 8 * value.size(); ++bit) {
    std::string flipped = value;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    internal::TimingRecord read;
    EXPECT_EQ(DecodeRecord(RecordType::kTiming, timing.timing_key(), flipped, read).code(),
              absl::StatusCode::kDataLoss)
        << "bit " << bit;
  }
}

TEST(Record, EveryTruncationIsFound) {
  const internal::TimingRecord timing = TimingOf("t", 12.5);
  const std::string value = EncodeRecord(RecordType::kTiming, timing.timing_key(), timing);
  for (size_t size = 0; size < value.size(); ++size) {
    internal::TimingRecord read;
    EXPECT_EQ(DecodeRecord(RecordType::kTiming, timing.timing_key(), value.substr(0, size), read).code(),
              absl::StatusCode::kDataLoss)
        << "size " << size;
  }
}

TEST(Record, AppendedBytesAreFound) {
  const internal::TimingRecord timing = TimingOf("t", 12.5);
  std::string value = EncodeRecord(RecordType::kTiming, timing.timing_key(), timing);
  value.push_back('\0');
  internal::TimingRecord read;
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecord(RecordType::kTiming, timing.timing_key(), value, read)));
}

TEST(Record, FailsUnderAnotherKey) {
  const internal::TimingRecord timing = TimingOf("t", 12.5);
  const std::string value = EncodeRecord(RecordType::kTiming, Key("t"), timing);
  internal::TimingRecord read;
  const absl::Status status = DecodeRecord(RecordType::kTiming, Key("u"), value, read);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("SHA-256"));
}

TEST(Record, FailsAsAnotherType) {
  const std::string value = EncodeRecord(RecordType::kTiming, "k", TimingOf("t", 12.5));
  internal::PickRecord read;
  const absl::Status status = DecodeRecord(RecordType::kPick, "k", value, read);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("type"));
}

TEST(Record, KeyAndPayloadCannotBorrowFromEachOther) {
  internal::TimingRecord timing;
  timing.set_candidate("c");
  const std::string value = EncodeRecord(RecordType::kTiming, "ab", timing);
  const size_t payload = value.size() - timing.SerializeAsString().size();
  internal::TimingRecord read;
  // The same bytes in the same order, with the boundary one byte earlier.
  const std::string shifted = absl::StrCat(value.substr(0, payload), "b", value.substr(payload));
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecord(RecordType::kTiming, "a", shifted, read)));
}

}  // namespace
}  // namespace qgemm
