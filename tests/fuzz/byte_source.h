#ifndef QGEMM_TESTS_FUZZ_BYTE_SOURCE_H_
#define QGEMM_TESTS_FUZZ_BYTE_SOURCE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace qgemm {

// Reads numbers and texts from a fuzzer's input; zeros after its end.
class ByteSource {
 public:
  // `input` outlives this.
  explicit ByteSource(absl::Span<const uint8_t> input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  uint8_t Byte() {
    if (rest_.empty()) return 0;
    const uint8_t value = rest_.front();
    rest_.remove_prefix(1);
    return value;
  }
  int64_t Number() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return static_cast<int64_t>(value);
  }
  double Real() {
    const int64_t bits = Number();
    double value = 0;
    __builtin_memcpy(&value, &bits, sizeof(value));
    return value;
  }
  // One byte decides: 0 <= result < limit <= 256.
  int64_t Below(int64_t limit) { return Byte() % limit; }
  // True for one byte in `rarity`.
  bool Rarely(int rarity) { return Byte() % rarity == 1; }
  // `value`, now and then one that is off: near it, tiny, negative or huge.
  int64_t Nearly(int64_t value) {
    switch (Byte() % 64) {
      case 1:
        return value + 1;
      case 2:
        return value - 1;
      case 3:
        return 0;
      case 4:
        return -1;
      case 5:
        return Number();
      case 6:
        return value * 2;
      default:
        return value;
    }
  }
  // Up to `most` <= 255 bytes; a byte says how many.
  std::string Text(int most) { return Bytes(static_cast<size_t>(Below(most + 1))); }
  std::string Bytes(size_t count) {
    const size_t taken = std::min(count, rest_.size());
    std::string text(reinterpret_cast<const char*>(rest_.data()), taken);
    rest_.remove_prefix(taken);
    return text;
  }
  std::string Rest() { return Bytes(rest_.size()); }

 private:
  absl::Span<const uint8_t> rest_;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_BYTE_SOURCE_H_
