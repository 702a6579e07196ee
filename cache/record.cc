#include "cache/record.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"
#include "google/protobuf/message_lite.h"

namespace qgemm {
namespace {

constexpr absl::string_view kMagic = "QGRC";
constexpr char kEnvelopeVersion = 1;
constexpr size_t kVersionOffset = 4;
constexpr size_t kTypeOffset = 5;
constexpr size_t kDigestOffset = 6;
constexpr size_t kPayloadOffset = kRecordEnvelopeBytes;
static_assert(kPayloadOffset == kDigestOffset + kSha256Bytes);

std::string Digest(absl::string_view header, absl::string_view key, absl::string_view payload) {
  const auto length = static_cast<uint32_t>(key.size());
  const char length_bytes[4] = {static_cast<char>(length), static_cast<char>(length >> 8),
                                static_cast<char>(length >> 16), static_cast<char>(length >> 24)};
  Sha256Hasher hasher;
  hasher.Update(header);
  hasher.Update(absl::string_view(length_bytes, sizeof(length_bytes)));
  hasher.Update(key);
  hasher.Update(payload);
  return hasher.Finish();
}

}  // namespace

std::string EncodeRecord(RecordType type, absl::string_view key,
                         const google::protobuf::MessageLite& message) {
  std::string value(kMagic);
  value.push_back(kEnvelopeVersion);
  value.push_back(static_cast<char>(type));
  value.resize(kPayloadOffset);
  // Fails only for messages of 2 GiB and more, which no caller makes.
  message.AppendToString(&value);
  const absl::string_view view(value);
  const std::string digest = Digest(view.substr(0, kDigestOffset), key, view.substr(kPayloadOffset));
  value.replace(kDigestOffset, kSha256Bytes, digest);
  return value;
}

absl::Status DecodeRecord(RecordType type, absl::string_view key, absl::string_view value,
                          google::protobuf::MessageLite& message) {
  if (value.size() < kPayloadOffset) {
    return absl::DataLossError(
        absl::StrCat("the record has ", value.size(), " bytes, its envelope alone takes ", kPayloadOffset));
  }
  if (value.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("the record does not begin with QGRC");
  }
  if (value[kVersionOffset] != kEnvelopeVersion) {
    return absl::DataLossError(absl::StrCat("the record's envelope version is ",
                                            static_cast<int>(value[kVersionOffset]), ", version ",
                                            static_cast<int>(kEnvelopeVersion), " is known"));
  }
  if (value[kTypeOffset] != static_cast<char>(type)) {
    return absl::DataLossError(absl::StrCat("the record's type byte is ",
                                            static_cast<int>(value[kTypeOffset]), ", ",
                                            static_cast<int>(type), " was expected"));
  }
  const absl::string_view payload = value.substr(kPayloadOffset);
  if (Digest(value.substr(0, kDigestOffset), key, payload) != value.substr(kDigestOffset, kSha256Bytes)) {
    return absl::DataLossError("the record's SHA-256 does not match its key and bytes");
  }
  if (!message.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
    return absl::DataLossError("the record's SHA-256 matches, but its message cannot be parsed");
  }
  return absl::OkStatus();
}

}  // namespace qgemm
