#include "client/bundle/tar.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr size_t kBlock = 512;

// Fields of a header by position (POSIX.1, "ustar Interchange Format").
constexpr size_t kNameSize = 100;
constexpr size_t kSizeAt = 124, kSizeSize = 12;
constexpr size_t kChecksumAt = 148, kChecksumSize = 8;
constexpr size_t kTypeAt = 156, kMagicAt = 257;

unsigned Checksum(absl::string_view header) {
  unsigned sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool of_checksum = i >= kChecksumAt && i < kChecksumAt + kChecksumSize;
    sum += of_checksum ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return sum;
}

absl::StatusOr<uint64_t> ReadNumber(absl::string_view field) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {  // base 256
    if (static_cast<unsigned char>(field[0]) != 0x80) return absl::DataLossError("a size is out of range");
    for (const char c : field.substr(field.size() - 8)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  for (const char c : field) {
    if (c == '\0' || c == ' ') break;
    if (c < '0' || c > '7') return absl::DataLossError("a number is not octal");
    value = value << 3 | static_cast<unsigned>(c - '0');
  }
  return value;
}

}  // namespace

std::string TarHeader(absl::string_view name, int64_t bytes) {
  QGEMM_CHECK(name.size() <= kNameSize && bytes >= 0);
  std::string header(kBlock, '\0');
  const auto put = [&header](size_t at, absl::string_view text) {
    header.replace(at, text.size(), text.data(), text.size());
  };
  put(0, name);
  put(100, "0000644");  // mode
  put(108, "0000000");  // user
  put(116, "0000000");  // group
  if (bytes < int64_t{1} << 33) {
    put(kSizeAt, absl::StrFormat("%011o", bytes));
  } else {
    header[kSizeAt] = '\x80';
    for (size_t i = 0; i < 8; ++i) header[kSizeAt + kSizeSize - 1 - i] = static_cast<char>(bytes >> (8 * i));
  }
  put(136, "00000000000");  // time
  header[kTypeAt] = '0';
  put(kMagicAt, absl::string_view("ustar\0"
                                  "00",
                                  8));
  put(kChecksumAt, absl::StrFormat("%06o", Checksum(header)));
  header[kChecksumAt + 7] = ' ';
  return header;
}

std::string TarPadding(int64_t bytes) { return std::string((kBlock - bytes % kBlock) % kBlock, '\0'); }

std::string TarEnd() { return std::string(2 * kBlock, '\0'); }

absl::StatusOr<std::map<std::string, absl::string_view>> ReadTar(absl::string_view archive) {
  std::map<std::string, absl::string_view> files;
  size_t at = 0;
  while (true) {
    const auto damaged = [at](absl::string_view what) {
      return absl::DataLossError(absl::StrCat("tar header at byte ", at, ": ", what));
    };
    if (archive.size() - at < kBlock) return damaged("the archive ends here");
    const absl::string_view header = archive.substr(at, kBlock);
    if (header.find_first_not_of('\0') == absl::string_view::npos) return files;
    const auto number = [&](size_t field, size_t size) { return ReadNumber(header.substr(field, size)); };
    const absl::StatusOr<uint64_t> checksum = number(kChecksumAt, kChecksumSize);
    if (!checksum.ok() || *checksum != Checksum(header)) return damaged("its checksum is wrong");
    if (header[kTypeAt] != '0' || header.substr(kMagicAt, 5) != "ustar") {
      return damaged("it is no regular file of the ustar format");
    }
    const absl::StatusOr<uint64_t> size = number(kSizeAt, kSizeSize);
    if (!size.ok()) return damaged(size.status().message());
    absl::string_view name = header.substr(0, kNameSize);
    name = name.substr(0, name.find('\0'));
    at += kBlock;
    if (*size > archive.size() - at) return damaged(absl::StrCat("file ", name, " goes beyond the end"));
    if (!files.emplace(std::string(name), archive.substr(at, *size)).second) {
      return damaged(absl::StrCat("file ", name, " stands here twice"));
    }
    at += (*size + kBlock - 1) / kBlock * kBlock;
    if (at > archive.size()) return damaged("the archive ends here");
  }
}

}  // namespace qgemm
