// Packs canonical weights with kernels/packing, for the Python packer's tests to compare with.
//
// Standard input: a line "N K BITS GROUP SCALE ZERO" ("17 96 4 32 fp16 int"), then codes [N][K] of one byte,
// scales [N][K / GROUP] of two and, with zero points, zeros [N][K / GROUP] of one. Standard output: a line
// with the bytes of the three planes, then the planes. Exit code 1 and one sentence on standard error: the
// input does not fit.

#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "kernels/packing.h"

namespace qgemm {
namespace {

int Fail(absl::string_view sentence) {
  std::cerr << "pack_planes: " << std::string(sentence) << "\n";
  return 1;
}

int Main() {
  std::string head;
  std::getline(std::cin, head);
  std::istringstream words(head);
  CanonicalWeights weights;
  std::string scale;
  std::string zero;
  words >> weights.n >> weights.k >> weights.format.bits >> weights.format.group_size >> scale >> zero;
  if (!words) return Fail("the first line is not N K BITS GROUP SCALE ZERO");
  const auto scale_type = ParseScalarType("scale", scale);
  if (!scale_type.ok()) return Fail(scale_type.status().message());
  const auto zero_point = ParseZeroPoint("zero", zero);
  if (!zero_point.ok()) return Fail(zero_point.status().message());
  weights.format.scale_type = *scale_type;
  weights.format.zero_point = *zero_point;

  const std::string data((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  const size_t codes = weights.n * weights.k;
  const size_t groups = weights.format.group_size > 0 ? codes / weights.format.group_size : 0;
  const size_t zeros = *zero_point == ZeroPoint::kNone ? 0 : groups;
  if (data.size() != codes + 2 * groups + zeros) {
    return Fail("the data is not as long as the first line says");
  }
  weights.codes.assign(data.begin(), data.begin() + static_cast<int64_t>(codes));
  weights.scales.resize(groups);
  std::memcpy(weights.scales.data(), data.data() + codes, 2 * groups);
  weights.zeros.assign(data.end() - static_cast<int64_t>(zeros), data.end());

  const auto packed = Pack(weights);
  if (!packed.ok()) return Fail(packed.status().message());
  std::cout << packed->weights.size() << " " << packed->scales.size() << " " << packed->zeros.size() << "\n";
  for (const auto* plane : {&packed->weights, &packed->scales, &packed->zeros}) {
    std::cout.write(reinterpret_cast<const char*>(plane->data()), static_cast<int64_t>(plane->size()));
  }
  std::cout.flush();
  return std::cout ? 0 : Fail("standard output cannot be written");
}

}  // namespace
}  // namespace qgemm

int main() { return qgemm::Main(); }
