#include "tests/kernel_cases/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/reference_gemm.h"

namespace qgemm {
namespace {

// Numbers as they lie in memory, of any type; what was written is what `values` then says.
std::vector<uint8_t> Store(std::vector<double>& values, ScalarType type) {
  std::vector<uint8_t> bytes(values.size() * ScalarBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == ScalarType::kFp32) {
      const auto single = static_cast<float>(values[i]);
      std::memcpy(bytes.data() + 4 * i, &single, 4);
    } else {
      const uint16_t bits = ScalarFromDouble(values[i], type);
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
    }
  }
  values = ScalarsToDouble(bytes, type);
  return bytes;
}

}  // namespace

std::vector<KernelSignature> FormatSignatures() {
  struct Row {
    int bits, group;
    ZeroPoint zero;
    int levels;
  };
  constexpr ZeroPoint kNone = ZeroPoint::kNone;
  constexpr ZeroPoint kInt = ZeroPoint::kInteger;
  constexpr ZeroPoint kFloat = ZeroPoint::kFloat;
  const Row rows[] = {
      {4, 128, kNone, 1}, {4, 64, kFloat, 1}, {4, 32, kFloat, 2},  {4, 256, kInt, 1}, {4, 0, kNone, 1},
      {4, 16, kInt, 1},   {4, 0, kFloat, 1},  {4, 128, kNone, 2},  {5, 32, kNone, 1}, {5, 32, kFloat, 2},
      {5, 128, kInt, 1},  {5, 0, kInt, 1},    {5, 64, kFloat, 1},  {6, 16, kNone, 2}, {6, 128, kNone, 1},
      {6, 64, kInt, 1},   {6, 16, kFloat, 1}, {6, 256, kFloat, 1}, {6, 0, kNone, 1},  {8, 32, kNone, 1},
      {8, 128, kInt, 1},  {8, 64, kFloat, 1}, {8, 0, kNone, 1},    {8, 0, kInt, 1},   {8, 128, kNone, 2},
      {8, 16, kFloat, 2}, {8, 256, kNone, 1},
  };
  std::vector<KernelSignature> all;
  int turn = 0;
  for (const Row& row : rows) {
    for (const ScalarType act : {ScalarType::kBf16, ScalarType::kFp16}) {
      KernelSignature signature;
      signature.act = act;
      signature.out = turn % 5 == 2 ? ScalarType::kFp32 : act;
      const ScalarType other = act == ScalarType::kBf16 ? ScalarType::kFp16 : ScalarType::kBf16;
      const ScalarType scale = row.levels == 2 ? ScalarType::kFp16 : turn % 7 == 3 ? other : act;
      signature.format = {row.bits, row.group, scale, row.zero, row.levels};
      signature.epilogue.bias = turn % 2 == 1;
      signature.epilogue.activation = static_cast<Activation>(turn % 4);
      signature.epilogue.gated = turn % 4 != 0 && turn % 3 == 0;
      signature.epilogue.residual = turn % 6 < 2;
      all.push_back(signature);
      ++turn;
    }
  }
  // Activations of bytes, in the same manner.
  const Row byte_rows[] = {
      {4, 128, kNone, 1}, {4, 32, kInt, 1},  {4, 64, kFloat, 1}, {4, 32, kFloat, 2}, {4, 256, kNone, 1},
      {4, 0, kInt, 1},    {5, 32, kNone, 1}, {5, 64, kInt, 1},   {6, 128, kInt, 1},  {6, 0, kFloat, 1},
      {8, 32, kNone, 1},  {8, 0, kNone, 1},  {8, 128, kInt, 1},  {8, 128, kNone, 2},
  };
  for (const Row& row : byte_rows) {
    KernelSignature signature;
    signature.quantization = ActivationQuantization::kInt8;
    signature.act = turn % 2 == 0 ? ScalarType::kBf16 : ScalarType::kFp16;
    signature.out = turn % 5 == 2 ? ScalarType::kFp32 : signature.act;
    const ScalarType scale = row.levels == 2 || turn % 3 == 1 ? ScalarType::kFp16 : ScalarType::kBf16;
    signature.format = {row.bits, row.group, scale, row.zero, row.levels};
    signature.epilogue.bias = turn % 4 == 1;
    signature.epilogue.residual = turn % 6 < 2;
    all.push_back(signature);
    ++turn;
  }
  return all;
}

CanonicalWeights RandomWeights(const KernelShape& shape, const WeightFormat& format, std::mt19937& random) {
  CanonicalWeights w;
  w.n = shape.n;
  w.k = shape.k;
  w.format = format;
  w.codes.resize(shape.n * shape.k);
  for (uint8_t& code : w.codes) code = random() % (1 << format.bits);
  // Weights of about the same size whatever the width.
  const double size = 8.0 / format.center();
  const auto fill = [&](std::vector<uint16_t>& values, int64_t count, double low, double high) {
    std::uniform_real_distribution<double> uniform(low, high);
    values.resize(count);
    for (uint16_t& value : values) value = ScalarFromDouble(uniform(random), format.scale_type);
  };
  const auto fill_codes = [&](std::vector<int8_t>& values, int low, int high) {
    values.resize(shape.n * w.groups());
    for (int8_t& value : values) value = static_cast<int8_t>(low + static_cast<int>(random() % (high - low)));
  };
  const bool offsets = format.zero_point == ZeroPoint::kFloat;
  if (format.two_level()) {
    fill(w.scales, shape.n * w.steps(), 0.0001 * size, 0.0003 * size);
    // Sums may be kept in units of the step: some are 0, some far from their neighbours.
    for (uint16_t& step : w.scales) {
      const unsigned turn = random() % 8;
      const double value = ScalarToDouble(step, format.scale_type);
      if (turn < 2) step = ScalarFromDouble(turn == 0 ? 0 : value / 64, format.scale_type);
      if (turn == 2 && !offsets) step = ScalarFromDouble(-value, format.scale_type);
    }
    fill_codes(w.scale_codes, offsets ? 1 : -127, 128);
    if (offsets) {
      fill(w.offsets, shape.n * w.steps(), -0.003, -0.001);
      fill_codes(w.offset_codes, 0, 64);
    }
    return w;
  }
  fill(w.scales, shape.n * w.groups(), 0.002 * size, 0.022 * size);
  if (offsets) fill(w.offsets, shape.n * w.groups(), -0.16, -0.02);
  if (format.zero_point == ZeroPoint::kInteger) {
    w.zeros.resize(w.scales.size());
    for (uint8_t& zero : w.zeros) zero = random() % (1 << format.bits);
  }
  return w;
}

KernelCase MakeKernelCase(const KernelShape& shape, const KernelSignature& signature, int64_t max_m,
                          const std::vector<double>* inputs) {
  KernelCase data;
  data.problem = {shape.n, shape.k, signature};
  const int64_t columns = data.problem.y_columns();
  data.max_m = max_m;
  data.ldx = (shape.k + 7) / 8 * 8 + 8;
  data.ldy = (columns + 7) / 8 * 8 + 8;
  data.ldr = columns + 3;
  std::mt19937 random(static_cast<unsigned>(shape.n * 7919 + shape.k));
  std::normal_distribution<double> normal(0, 1);
  data.canonical = RandomWeights(shape, signature.format, random);
  std::vector<double> bias, residual;
  if (signature.epilogue.bias) {
    for (int64_t i = 0; i < shape.n; ++i) bias.push_back(normal(random));
    data.bias_numbers = Store(bias, signature.out);
  }
  if (signature.epilogue.residual) {
    std::vector<double> strided;
    for (int64_t i = 0; i < max_m * data.ldr; ++i) strided.push_back(normal(random));
    data.residual_numbers = Store(strided, signature.out);
    for (int64_t i = 0; i < max_m * columns; ++i) {
      residual.push_back(strided[i / columns * data.ldr + i % columns]);
    }
  }
  std::vector<uint16_t> x(max_m * shape.k);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = ScalarFromDouble(inputs != nullptr ? (*inputs)[i] : normal(random), signature.act);
  }
  for (int64_t row = 0; row < shape.n; ++row) {
    const std::vector<double> w = DequantizedRow(data.canonical, row);
    for (int64_t i = 0; i < max_m * shape.k; ++i) {
      const double term = w[i % shape.k] * ScalarToDouble(x[i], signature.act);
      data.root_sum_squares += term * term;
    }
  }
  data.root_sum_squares = std::sqrt(data.root_sum_squares);
  data.expected = ReferenceGemm(data.canonical, x, max_m, signature.act, signature.epilogue, bias, residual,
                                signature.quantization);

  data.x_numbers.assign(max_m * data.ldx, 0xffff);  // NaN in both types
  for (int64_t i = 0; i < max_m * shape.k; ++i) data.x_numbers[i / shape.k * data.ldx + i % shape.k] = x[i];
  data.packed = Pack(data.canonical).value();
  return data;
}

double JudgeOutput(const KernelCase& data, absl::Span<const uint8_t> output, int64_t guard, int64_t m,
                   std::string* violation) {
  const ScalarType type = data.problem.signature.out;
  const int element = ScalarBytes(type);
  const int64_t columns = data.problem.y_columns();
  std::vector<uint8_t> results;
  for (int64_t i = 0; i < static_cast<int64_t>(output.size()) / element; ++i) {
    const int64_t at = i - guard;
    const int64_t row = at / data.ldy;
    const int64_t column = at % data.ldy;
    const auto bytes = output.begin() + i * element;
    if (at >= 0 && row < m && column < columns) {
      results.insert(results.end(), bytes, bytes + element);
    } else if (!std::all_of(bytes, bytes + element, [](uint8_t byte) { return byte == 0xff; })) {
      *violation = absl::StrCat("wrote element ", at, " (row ", row, ", column ", column, ")");
    }
  }
  const std::vector<double> actual = ScalarsToDouble(results, type);
  return RelativeError(actual, absl::MakeSpan(data.expected).subspan(0, actual.size()));
}

}  // namespace qgemm
