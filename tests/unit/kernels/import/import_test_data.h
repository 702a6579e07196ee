#ifndef QGEMM_TESTS_UNIT_KERNELS_IMPORT_IMPORT_TEST_DATA_H_
#define QGEMM_TESTS_UNIT_KERNELS_IMPORT_IMPORT_TEST_DATA_H_

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/import/import_tensor.h"

namespace qgemm {

// Element `index` of stream `seed`: the finaliser of SplitMix64, so that any program can make the same data.
inline uint64_t StreamWord(uint64_t seed, uint64_t index) {
  uint64_t z = (seed + 1) * 0xd1342543de82ef95ull + index * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// A tensor that owns its bytes, in a heap block of exactly their size.
class OwnedTensor {
 public:
  template <typename T>
  OwnedTensor(std::string name, ElementType type, std::vector<int64_t> shape, const std::vector<T>& values)
      : bytes_(values.size() * sizeof(T)) {
    if (!values.empty()) std::memcpy(bytes_.data(), values.data(), bytes_.size());
    tensor_.name = std::move(name);
    tensor_.type = type;
    tensor_.shape = std::move(shape);
  }

  ImportTensor view() const {
    ImportTensor tensor = tensor_;
    tensor.bytes = absl::MakeConstSpan(bytes_);
    return tensor;
  }
  std::vector<uint8_t>& bytes() { return bytes_; }
  std::vector<int64_t>& shape() { return tensor_.shape; }

 private:
  std::vector<uint8_t> bytes_;
  ImportTensor tensor_;
};

inline int64_t Elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// int32 words of stream `seed`.
inline OwnedTensor RandomWords(std::string name, std::vector<int64_t> shape, uint64_t seed) {
  std::vector<uint32_t> words(Elements(shape));
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(StreamWord(seed, i));
  return OwnedTensor(std::move(name), ElementType::kInt32, std::move(shape), words);
}

// Finite scales of both signs, about 2^-7 to 2^-3 in size.
inline uint16_t RandomScalar(ScalarType type, uint64_t seed, uint64_t index) {
  const uint64_t bits = StreamWord(seed, index);
  if (type == ScalarType::kFp16) return static_cast<uint16_t>((bits & 0x8fff) | 0x2000);
  return static_cast<uint16_t>((bits & 0x81ff) | 0x3c00);
}

inline OwnedTensor RandomScalars(std::string name, std::vector<int64_t> shape, ScalarType type,
                                 uint64_t seed) {
  std::vector<uint16_t> values(Elements(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = RandomScalar(type, seed, i);
  const ElementType element = type == ScalarType::kFp16 ? ElementType::kFp16 : ElementType::kBf16;
  return OwnedTensor(std::move(name), element, std::move(shape), values);
}

// Codes below 2^bits of stream `seed`.
inline std::vector<uint8_t> RandomCodes(int64_t count, int bits, uint64_t seed) {
  std::vector<uint8_t> codes(count);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(StreamWord(seed, i) & ((1u << bits) - 1));
  }
  return codes;
}

// A random assignment of k columns to groups of `group_size`.
std::vector<int32_t> RandomGroupIndex(int64_t k, int64_t group_size, uint64_t seed);

// Codes [n][k] as the tiles of torchao's int4 weights, [n / 8][k / 16 / inner_k_tiles][32][inner_k_tiles /
// 2].
std::vector<uint32_t> PackInt4Tiles(const std::vector<uint8_t>& codes, int64_t n, int64_t k,
                                    int64_t inner_k_tiles);

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_KERNELS_IMPORT_IMPORT_TEST_DATA_H_
