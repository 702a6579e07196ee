// Makes what run_layer needs, from random numbers: canonical weights of one layer as `qgemmctl bundle create
// --weights` reads them, activations, and the expected result in fp32 by the reference in fp64.
//
//   make_layer FOLDER N K GROUP M    writes weights.safetensors, x.bin, y.bin; layer "layer", bf16, symmetric
//   int4
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "client/bundle/safetensors.h"
#include "kernels/packing.h"
#include "kernels/problem.h"
#include "kernels/reference_gemm.h"

namespace qgemm {
namespace {

template <typename T>
absl::string_view BytesOf(const std::vector<T>& values) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

absl::Status Make(const std::string& folder, int64_t n, int64_t k, int group, int64_t m) {
  Problem problem{n, k, {}};
  problem.signature.format.group_size = group;
  if (absl::Status valid = ValidateProblem(problem); !valid.ok()) return valid;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  CanonicalWeights weights;
  weights.n = n;
  weights.k = k;
  weights.format = problem.signature.format;
  weights.codes.resize(n * k);
  for (uint8_t& code : weights.codes) code = random() % 16;
  weights.scales.resize(n * weights.groups());
  for (uint16_t& scale : weights.scales) {
    scale = ScalarFromDouble(0.01 + 0.01 * (random() % 1000) / 1000, ScalarType::kBf16);
  }
  std::vector<uint16_t> x(m * k);
  for (uint16_t& value : x) value = ScalarFromDouble(normal(random), ScalarType::kBf16);
  const std::vector<double> y = ReferenceGemm(weights, x, m, ScalarType::kBf16, {});
  const std::vector<float> expected(y.begin(), y.end());

  std::error_code error;
  std::filesystem::create_directories(folder, error);
  auto writer = SafetensorsWriter::Create(folder + "/weights.safetensors");
  if (!writer.ok()) return writer.status();
  absl::Status status = writer->Write("layer.codes", "U8", {n, k}, BytesOf(weights.codes));
  if (status.ok()) {
    status = writer->Write("layer.scales", "BF16", {n, weights.groups()}, BytesOf(weights.scales));
  }
  if (status.ok()) status = writer->Finish({});
  if (!status.ok()) return status;
  std::ofstream x_file(folder + "/x.bin", std::ios::binary), y_file(folder + "/y.bin", std::ios::binary);
  x_file << BytesOf(x);
  y_file << BytesOf(expected);
  x_file.close();
  y_file.close();
  if (x_file.good() && y_file.good()) return absl::OkStatus();
  return absl::FailedPreconditionError("cannot write to " + folder);
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) {
  int n = 0, k = 0, group = 0, m = 0;
  if (argc != 6 || !absl::SimpleAtoi(argv[2], &n) || !absl::SimpleAtoi(argv[3], &k) ||
      !absl::SimpleAtoi(argv[4], &group) || !absl::SimpleAtoi(argv[5], &m)) {
    std::fprintf(stderr, "usage: make_layer FOLDER N K GROUP M\n");
    return 2;
  }
  const absl::Status status = qgemm::Make(argv[1], n, k, group, m);
  if (!status.ok()) std::fprintf(stderr, "make_layer: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
