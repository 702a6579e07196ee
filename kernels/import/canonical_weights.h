#ifndef QGEMM_KERNELS_IMPORT_CANONICAL_WEIGHTS_H_
#define QGEMM_KERNELS_IMPORT_CANONICAL_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "kernels/weight_format.h"

namespace qgemm {

// What an importer subtracts from a code, or adds to the product.
enum class ImportedZero {
  kMiddle,   // w = (q - 2^(bits-1)) * s
  kInteger,  // w = (q - z) * s
  kFloat,    // w = (q - origin) * s + b
};

// The quantized weights of one linear layer, in the one form that all importers produce: plain row-major
// planes, bit for bit the numbers of the file. Whoever packs them decides whether it serves them.
//
// Groups of `group_size` columns run along K; column c is in group c / group_size, and the last group may be
// shorter than the others. With `permutation`, column j here is column permutation[j] of the model's weight:
// gather the activations likewise, x'[j] = x[permutation[j]].
//
// Two-level scales (`super_size` != 0): the scale of group g in row n is d[n][u] * scale_codes[n][g] and the
// float offset is -(dmin[n][u] * zero_codes[n][g]), where u = g * group_size / super_size.
struct ImportedWeights {
  int64_t n = 0;
  int64_t k = 0;
  int bits = 0;  // 4, 5, 6 or 8
  int64_t group_size = 0;
  ScalarType scale_type = ScalarType::kFp16;
  ImportedZero zero = ImportedZero::kMiddle;
  int origin = 0;          // with kFloat, the code whose weight is the offset alone
  int64_t super_size = 0;  // weights of a row that share one d and dmin; 0: scales have one level

  std::vector<uint8_t> codes;  // [n][k], one code per byte, below 2^bits

  std::vector<uint16_t> scales;   // [n][groups()], bits of scale_type; one level only
  std::vector<uint8_t> zeros;     // [n][groups()], below 2^bits; with kInteger only
  std::vector<uint16_t> offsets;  // [n][groups()], bits of scale_type; with kFloat and one level only

  std::vector<uint16_t> d;           // [n][supers()], bits of scale_type
  std::vector<uint16_t> dmin;        // [n][supers()], bits of scale_type; with kFloat only
  std::vector<int8_t> scale_codes;   // [n][groups()]
  std::vector<uint8_t> zero_codes;   // [n][groups()]; with kFloat only
  std::vector<int32_t> permutation;  // [k], each column once; empty: the columns stand as in the model

  int64_t groups() const { return (k + group_size - 1) / group_size; }
  int64_t supers() const { return super_size == 0 ? 0 : (k + super_size - 1) / super_size; }

  friend bool operator==(const ImportedWeights&, const ImportedWeights&) = default;
};

// The exact value of 16 bits of a type.
float ScalarToFloat(uint16_t bits, ScalarType type);

// The weights of one row in the order of `codes`, evaluated in fp32 from left to right as the formulas above
// stand. `row` is in [0, n).
std::vector<float> DequantizeRow(const ImportedWeights& weights, int64_t row);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_CANONICAL_WEIGHTS_H_
