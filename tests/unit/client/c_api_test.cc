// libqgemm.so as a C program uses it, as far as it goes without a GPU.
#include "client/qgemm/c_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "client/qgemm/packing_c_api.h"
#include "kernels/cuda/driver.h"
#include "kernels/packing.h"
#include "kernels/reference_gemm.h"
#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST(CApi, HasAVersion) { EXPECT_EQ(qgemm_c_api_version(), QGEMM_C_API_VERSION); }

TEST(CApi, SaysWhatIsWrongWithABundle) {
  char error[256] = "";
  qgemm_runtime* runtime = nullptr;
  EXPECT_EQ(qgemm_runtime_open("/nonexistent", "decode", 0, &runtime, error, sizeof(error)), QGEMM_NOT_FOUND);
  EXPECT_THAT(std::string(error), HasSubstr("/nonexistent"));
  EXPECT_EQ(runtime, nullptr);
  char small[5] = "";
  EXPECT_EQ(qgemm_runtime_open(nullptr, "decode", 0, &runtime, small, sizeof(small)), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(small).size(), 4);
  EXPECT_EQ(qgemm_runtime_open("/nonexistent", "decode", 0, &runtime, nullptr, 0), QGEMM_NOT_FOUND);
}

TEST(CApi, SaysThatThereIsNoDevice) {
  if (Driver::Load().ok()) GTEST_SKIP() << "this machine has a GPU";
  const TemporaryFolder folder;
  WriteSampleBundle(folder / "b.tar");
  char error[256] = "";
  qgemm_runtime* runtime = nullptr;
  EXPECT_EQ(qgemm_runtime_open((folder / "b.tar").c_str(), "decode", 0, &runtime, error, sizeof(error)),
            QGEMM_UNAVAILABLE);
  EXPECT_THAT(std::string(error), HasSubstr("CUDA driver"));
}

CanonicalWeights RandomWeights(int64_t n, int64_t k, const WeightFormat& format) {
  std::mt19937 random(n + format.bits);
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = format;
  const auto number = [&](double least, double most) {
    return ScalarFromDouble(std::uniform_real_distribution<double>(least, most)(random), format.scale_type);
  };
  weights.codes.resize(n * k);
  for (uint8_t& code : weights.codes) code = random() % (1 << format.bits);
  weights.scales.resize(n * (format.two_level() ? weights.steps() : weights.groups()));
  for (uint16_t& scale : weights.scales) scale = number(0.001, 0.02);
  if (format.two_level()) {
    weights.scale_codes.resize(n * weights.groups());
    for (int8_t& code : weights.scale_codes) code = static_cast<int8_t>(random() % 127 + 1);
  }
  if (format.zero_point == ZeroPoint::kInteger) {
    weights.zeros.resize(n * weights.groups());
    for (uint8_t& zero : weights.zeros) zero = random() % (1 << format.bits);
  } else if (format.zero_point == ZeroPoint::kFloat) {
    weights.offsets.resize(weights.scales.size());
    for (uint16_t& offset : weights.offsets) offset = number(-0.1, 0.1);
    weights.offset_codes.resize(weights.scale_codes.size());
    for (int8_t& code : weights.offset_codes) code = static_cast<int8_t>(random() % 127);
  }
  return weights;
}

// Every format, packed by the library and read back as a C program reads it.
TEST(CApi, PackedWeightsAreNumbersAgain) {
  int formats = 0;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group_size : {0, 16, 32, 64, 128, 256}) {
      for (const ScalarType type : {ScalarType::kBf16, ScalarType::kFp16}) {
        for (const ZeroPoint zero : {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
          for (const int levels : {1, 2}) {
            const WeightFormat format{bits, group_size, type, zero, levels};
            if (!ValidateWeightFormat(format).ok()) continue;
            ++formats;
            const CanonicalWeights weights = RandomWeights(37, 512, format);
            const absl::StatusOr<PackedWeights> packed = Pack(weights);
            ASSERT_TRUE(packed.ok()) << packed.status();
            const auto plane = [](const std::vector<uint8_t>& bytes) {
              return qgemm_plane{bytes.data(), static_cast<int64_t>(bytes.size())};
            };
            std::vector<float> out(37 * 512);
            char error[256] = "";
            const std::string name = WeightFormatName(format);
            ASSERT_EQ(qgemm_dequantize_packed(name.c_str(), 37, 512, plane(packed->weights),
                                              plane(packed->scales), plane(packed->zeros),
                                              plane(packed->steps), out.data(), error, sizeof(error)),
                      QGEMM_OK)
                << error;
            for (int64_t row = 0; row < 37; ++row) {
              const std::vector<double> expected = DequantizedRow(weights, row);
              for (int64_t k = 0; k < 512; ++k) {
                ASSERT_EQ(out[row * 512 + k], static_cast<float>(expected[k]))
                    << name << " " << row << " " << k;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(formats, 4 * 6 * 2 * 3 + 4 * 4 * 2);
}

TEST(CApi, RefusesFormatsAndPlanesThatDoNotFit) {
  char error[256] = "";
  const std::vector<uint8_t> bytes(64 * 64);
  std::vector<float> out(64 * 64);
  const auto call = [&](const char* format, int64_t k, int64_t size, int64_t zeros) {
    return qgemm_dequantize_packed(format, 64, k, {bytes.data(), size}, {bytes.data(), 128}, {nullptr, zeros},
                                   {nullptr, 0}, out.data(), error, sizeof(error));
  };
  EXPECT_EQ(call("int4-g64-bf16", 64, 64 * 64 / 2, 0), QGEMM_OK) << error;
  for (const char* format :
       {"", "int4", "int3-g64-bf16", "int4-g64", "int4-g064-bf16", "int4-g64-bf16-", "int4-g64-fp32",
        "int4-g64-bf16x2", "int4-g64-bf16-zint ", "int99999999999-g64-bf16"}) {
    EXPECT_EQ(call(format, 64, 64 * 64 / 2, 0), QGEMM_INVALID_ARGUMENT) << format;
    EXPECT_THAT(std::string(error), HasSubstr(std::string("\"") + format + "\""));
  }
  EXPECT_EQ(call("int4-g64-bf16", 96, 64 * 64 / 2, 0), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(call("int4-g64-bf16", 64, 64 * 64 / 2 - 1, 0), QGEMM_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error), HasSubstr("plane weights has 2047 bytes; the format needs 2048"));
  EXPECT_EQ(call("int4-g64-bf16", 64, 64 * 64 / 2, 4), QGEMM_INVALID_ARGUMENT);
  EXPECT_THAT(std::string(error), HasSubstr("plane zeros"));
}

TEST(CApi, RefusesNull) {
  char error[256] = "";
  qgemm_launch launch = {};
  EXPECT_EQ(qgemm_runtime_launch(nullptr, 0, &launch, error, sizeof(error)), QGEMM_INVALID_ARGUMENT);
  EXPECT_EQ(qgemm_runtime_find_layer(nullptr, "q"), -1);
  EXPECT_EQ(qgemm_runtime_layer_count(nullptr), 0);
  qgemm_runtime_close(nullptr);
}

}  // namespace
}  // namespace qgemm
