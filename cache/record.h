#ifndef QGEMM_CACHE_RECORD_H_
#define QGEMM_CACHE_RECORD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message_lite.h"

namespace qgemm {

// What a record holds: the envelope's type byte (cache/FORMAT.md).
enum class RecordType : char { kKernel = 'K', kPick = 'P', kTiming = 'T', kKernelInfo = 'I', kJob = 'J' };

// Before the payload, in bytes.
inline constexpr size_t kRecordEnvelopeBytes = 38;

// The stored value of `message` under `key`: a checksummed envelope around the serialized message.
[[nodiscard]] std::string EncodeRecord(RecordType type, absl::string_view key,
                                       const google::protobuf::MessageLite& message);

// Fills `message` from a value that was read under `key`. DataLoss, with the first thing that is wrong, when
// the value is not exactly what EncodeRecord(type, key, ...) made; then `message` is unspecified.
[[nodiscard]] absl::Status DecodeRecord(RecordType type, absl::string_view key, absl::string_view value,
                                        google::protobuf::MessageLite& message);

}  // namespace qgemm

#endif  // QGEMM_CACHE_RECORD_H_
