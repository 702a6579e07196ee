#ifndef QGEMM_CACHE_INDEX_KEYS_H_
#define QGEMM_CACHE_INDEX_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "cache/cache_store.h"

namespace qgemm {

// Keys and small values of the family `index` (cache/FORMAT.md). Pure functions.

inline constexpr size_t kKeyBytes = 32;
inline constexpr int64_t kHourMs = int64_t{3600} * 1000;
inline constexpr absl::string_view kInfoPrefix = "info/";
inline constexpr absl::string_view kSha256Prefix = "sha256/";
inline constexpr absl::string_view kUsedPrefix = "used/";
inline constexpr absl::string_view kPinPrefix = "pin/";
// Keys of the family `meta`.
inline constexpr absl::string_view kSchemaKey = "schema_version";
inline constexpr absl::string_view kToolchainKey = "toolchain";

std::string InfoKey(absl::string_view kernel_key);
// `kernel_key` empty: the prefix of all kernels with this cubin.
std::string Sha256Key(absl::string_view sha256_hex, absl::string_view kernel_key);
std::string UsedKey(const EntryId& entry);
std::string PinKey(const EntryId& entry);
// The entry of a key under `prefix`; nullopt when it is none.
std::optional<EntryId> ParseEntryKey(absl::string_view prefix, absl::string_view key);

// The smallest key above all keys that begin with `prefix`; empty when there is none.
std::string PrefixEnd(absl::string_view prefix);
// The smallest key above `key`.
std::string KeyAfter(absl::string_view key);

// The value of a `used/` entry.
struct UsedValue {
  uint32_t unix_hour = 0;
  uint64_t bytes = 0;
  uint64_t write_number = 0;  // tells one write of the record from the next
};
std::string EncodeUsed(const UsedValue& value);
// A damaged value reads as "not used for ever".
UsedValue DecodeUsed(absl::string_view text);

// Lower-case, 64 digits.
[[nodiscard]] bool IsSha256Hex(absl::string_view text);

}  // namespace qgemm

#endif  // QGEMM_CACHE_INDEX_KEYS_H_
