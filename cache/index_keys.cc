#include "cache/index_keys.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/digest.h"

namespace qgemm {
namespace {

constexpr size_t kUsedBytes = 20;

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T ReadLittleEndian(absl::string_view bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return value;
}

std::string EntryKey(absl::string_view prefix, const EntryId& entry) {
  return absl::StrCat(prefix, std::string(1, static_cast<char>(entry.kind)), entry.key);
}

}  // namespace

std::string InfoKey(absl::string_view kernel_key) { return absl::StrCat(kInfoPrefix, kernel_key); }

std::string Sha256Key(absl::string_view sha256_hex, absl::string_view kernel_key) {
  return absl::StrCat(kSha256Prefix, absl::HexStringToBytes(sha256_hex), kernel_key);
}

std::string UsedKey(const EntryId& entry) { return EntryKey(kUsedPrefix, entry); }

std::string PinKey(const EntryId& entry) { return EntryKey(kPinPrefix, entry); }

std::optional<EntryId> ParseEntryKey(absl::string_view prefix, absl::string_view key) {
  if (key.size() != prefix.size() + 1 + kKeyBytes || key.substr(0, prefix.size()) != prefix) {
    return std::nullopt;
  }
  const auto kind = static_cast<EntryKind>(key[prefix.size()]);
  if (kind != EntryKind::kKernel && kind != EntryKind::kPick) return std::nullopt;
  return EntryId{kind, std::string(key.substr(prefix.size() + 1))};
}

std::string PrefixEnd(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (!end.empty()) ++end.back();
  return end;
}

std::string KeyAfter(absl::string_view key) { return absl::StrCat(key, absl::string_view("\0", 1)); }

std::string EncodeUsed(const UsedValue& value) {
  std::string text;
  text.reserve(kUsedBytes);
  AppendLittleEndian(value.unix_hour, text);
  AppendLittleEndian(value.bytes, text);
  AppendLittleEndian(value.write_number, text);
  return text;
}

UsedValue DecodeUsed(absl::string_view text) {
  UsedValue value;
  if (text.size() != kUsedBytes) return value;
  value.unix_hour = ReadLittleEndian<uint32_t>(text);
  value.bytes = ReadLittleEndian<uint64_t>(text.substr(4));
  value.write_number = ReadLittleEndian<uint64_t>(text.substr(12));
  // No record has 2^40 bytes: a flipped bit must not outweigh the rest of the store.
  if (value.bytes >= uint64_t{1} << 40) value.bytes = 0;
  return value;
}

bool IsSha256Hex(absl::string_view text) {
  return text.size() == size_t{2} * kSha256Bytes && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace qgemm
