#include "kernels/import/gguf.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr int64_t kSuper = 256;  // weights of a K-quant's block

struct BlockFormat {
  GgufType type;
  absl::string_view name;
  int64_t weights;  // of a block
  int64_t bytes;
  int bits;
  int64_t group_size;
  ImportedZero zero;
};

constexpr BlockFormat kFormats[] = {
    {GgufType::kQ40, "Q4_0", 32, 18, 4, 32, ImportedZero::kMiddle},
    {GgufType::kQ41, "Q4_1", 32, 20, 4, 32, ImportedZero::kFloat},
    {GgufType::kQ80, "Q8_0", 32, 34, 8, 32, ImportedZero::kMiddle},
    {GgufType::kQ4K, "Q4_K", kSuper, 144, 4, 32, ImportedZero::kFloat},
    {GgufType::kQ5K, "Q5_K", kSuper, 176, 5, 32, ImportedZero::kFloat},
    {GgufType::kQ6K, "Q6_K", kSuper, 210, 6, 16, ImportedZero::kMiddle},
};

const BlockFormat* FindFormat(GgufType type) {
  for (const BlockFormat& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

uint16_t Half(const uint8_t* from) { return static_cast<uint16_t>(from[0] | from[1] << 8); }

// 16 bytes of nibble pairs -> 32 codes.
void UnpackHalves(const uint8_t* from, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = from[j] & 15;
    codes[j + 16] = from[j] >> 4;
  }
}

// The 6-bit scale and minimum of group `group` of 8: groups 0 to 3 in the low bits of bytes 0 to 3 and 4 to
// 7, the others in the nibbles of bytes 8 to 11 under the top two bits of those.
void UnpackScaleAndMin(const uint8_t* from, int group, int8_t* scale, uint8_t* min) {
  if (group < 4) {
    *scale = static_cast<int8_t>(from[group] & 63);
    *min = from[group + 4] & 63;
    return;
  }
  *scale = static_cast<int8_t>((from[group + 4] & 15) | from[group - 4] >> 6 << 4);
  *min = static_cast<uint8_t>(from[group + 4] >> 4 | from[group] >> 6 << 4);
}

// Codes of a Q4_K or Q5_K block; `high` is null for 4 bits.
void UnpackGroupsOf32(const uint8_t* low, const uint8_t* high, uint8_t* codes) {
  for (int group = 0; group < 8; ++group) {
    for (int j = 0; j < 32; ++j) {
      int code = low[group / 2 * 32 + j] >> (4 * (group % 2)) & 15;
      if (high != nullptr) code |= (high[j] >> group & 1) << 4;
      codes[group * 32 + j] = static_cast<uint8_t>(code);
    }
  }
}

// Codes of a Q6_K block: in each half of 128, run r of 32 takes its low bits from nibble r / 2 of bytes 32 (r
// % 2) and on, its high bits from pair r.
void UnpackSixBits(const uint8_t* low, const uint8_t* high, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int run = 0; run < 4; ++run) {
      for (int j = 0; j < 32; ++j) {
        const int low_bits = low[half * 64 + run % 2 * 32 + j] >> (4 * (run / 2)) & 15;
        const int high_bits = high[half * 32 + j] >> (2 * run) & 3;
        codes[half * 128 + run * 32 + j] = static_cast<uint8_t>(low_bits | high_bits << 4);
      }
    }
  }
}

// `at` counts blocks from the first of the tensor.
void UnpackBlock(GgufType type, const uint8_t* block, int64_t at, ImportedWeights* weights) {
  uint8_t* codes = weights->codes.data();
  switch (type) {
    case GgufType::kQ40:
      weights->scales[at] = Half(block);
      UnpackHalves(block + 2, codes + at * 32);
      return;
    case GgufType::kQ41:
      weights->scales[at] = Half(block);
      weights->offsets[at] = Half(block + 2);
      UnpackHalves(block + 4, codes + at * 32);
      return;
    case GgufType::kQ80:
      weights->scales[at] = Half(block);
      for (int j = 0; j < 32; ++j) codes[at * 32 + j] = block[2 + j] ^ 128;
      return;
    case GgufType::kQ4K:
    case GgufType::kQ5K: {
      weights->d[at] = Half(block);
      weights->dmin[at] = Half(block + 2);
      for (int group = 0; group < 8; ++group) {
        UnpackScaleAndMin(block + 4, group, &weights->scale_codes[at * 8 + group],
                          &weights->zero_codes[at * 8 + group]);
      }
      const bool five = type == GgufType::kQ5K;
      UnpackGroupsOf32(block + (five ? 48 : 16), five ? block + 16 : nullptr, codes + at * kSuper);
      return;
    }
    case GgufType::kQ6K:
      UnpackSixBits(block, block + 128, codes + at * kSuper);
      std::memcpy(&weights->scale_codes[at * 16], block + 192, 16);
      weights->d[at] = Half(block + 208);
      return;
  }
}

}  // namespace

absl::string_view GgufTypeName(GgufType type) {
  const BlockFormat* format = FindFormat(type);
  return format == nullptr ? "unknown" : format->name;
}

absl::StatusOr<ImportedWeights> ImportGguf(const GgufTensor& tensor) {
  const ImportTensor& data = tensor.data;
  const int64_t n = tensor.n;
  const int64_t k = tensor.k;
  const BlockFormat* format = FindFormat(tensor.type);
  if (format == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(data.name, ": GGUF type ", static_cast<int>(tensor.type),
                     " is not supported: Q4_0 (2), Q4_1 (3), Q8_0 (8), Q4_K (12), "
                     "Q5_K (13), Q6_K (14)"));
  }
  QGEMM_RETURN_IF_ERROR(CheckMatrixSize(data.name, n, k));
  if (k % format->weights != 0) {
    return absl::InvalidArgumentError(absl::StrCat(data.name, ": ", k, " columns of type ", format->name,
                                                   " must be a multiple of ", format->weights));
  }
  const int64_t blocks = n * (k / format->weights);
  const int64_t row_bytes = k / format->weights * format->bytes;
  const std::string why = absl::StrCat("for ", n, " rows of ", k, " weights of type ", format->name);
  if (data.rank() == 1) {
    QGEMM_RETURN_IF_ERROR(CheckTensorShape(data, {n * row_bytes}, {ElementType::kUint8}, why));
  } else {
    QGEMM_RETURN_IF_ERROR(CheckTensorShape(data, {n, row_bytes}, {ElementType::kUint8}, why));
  }

  ImportedWeights weights;
  weights.n = n;
  weights.k = k;
  weights.bits = format->bits;
  weights.group_size = format->group_size;
  weights.scale_type = ScalarType::kFp16;
  weights.zero = format->zero;
  weights.codes.resize(n * k);
  const int64_t groups = n * weights.groups();
  const bool has_offset = format->zero == ImportedZero::kFloat;
  if (format->weights == kSuper) {
    weights.super_size = kSuper;
    weights.d.resize(blocks);
    weights.scale_codes.resize(groups);
    if (has_offset) weights.dmin.resize(blocks);
    if (has_offset) weights.zero_codes.resize(groups);
  } else {
    weights.scales.resize(groups);
    if (has_offset) weights.offsets.resize(groups);
  }
  for (int64_t at = 0; at < blocks; ++at) {
    UnpackBlock(tensor.type, data.bytes.data() + at * format->bytes, at, &weights);
  }
  return weights;
}

}  // namespace qgemm
