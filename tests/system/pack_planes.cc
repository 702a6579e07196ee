// Packs canonical weights with kernels/packing, for the Python packer's tests to compare with.
//
// Standard input: a line "N K BITS GROUP SCALE ZERO LEVELS" ("17 96 4 32 fp16 int 1"; group 0: channel-wise),
// then the planes of CanonicalWeights that the format has, in their order there, without padding. Standard
// output: a line with the bytes of the four packed planes, then these. Exit code 1 and one sentence on
// standard error: the input does not fit.

#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/packing.h"

namespace qgemm {
namespace {

int Fail(absl::string_view sentence) {
  std::cerr << "pack_planes: " << std::string(sentence) << "\n";
  return 1;
}

// Takes planes off the front of `data`; one that is not there leaves the reader short of its end for good.
class PlaneReader {
 public:
  explicit PlaneReader(const std::string& data) : data_(data) {}

  template <typename T>
  void Read(int64_t entries, std::vector<T>& plane) {
    const size_t bytes = entries * sizeof(T);
    is_short_ |= bytes > data_.size() - at_;
    if (is_short_) return;
    plane.resize(entries);
    if (bytes > 0) std::memcpy(plane.data(), data_.data() + at_, bytes);
    at_ += bytes;
  }
  bool IsAtEnd() const { return !is_short_ && at_ == data_.size(); }

 private:
  const std::string& data_;
  size_t at_ = 0;
  bool is_short_ = false;
};

int Main() {
  std::string head;
  std::getline(std::cin, head);
  std::istringstream words(head);
  CanonicalWeights weights;
  WeightFormat& format = weights.format;
  std::string scale;
  std::string zero;
  words >> weights.n >> weights.k >> format.bits >> format.group_size >> scale >> zero >> format.scale_levels;
  if (!words) return Fail("the first line is not N K BITS GROUP SCALE ZERO LEVELS");
  const auto scale_type = ParseScalarType("scale", scale);
  if (!scale_type.ok()) return Fail(scale_type.status().message());
  const auto zero_point = ParseZeroPoint("zero", zero);
  if (!zero_point.ok()) return Fail(zero_point.status().message());
  format.scale_type = *scale_type;
  format.zero_point = *zero_point;

  const std::string data((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  PlaneReader reader(data);
  const int64_t groups = weights.n * weights.groups();
  const int64_t numbers = format.two_level() ? weights.n * weights.steps() : groups;
  const bool has_offsets = format.zero_point == ZeroPoint::kFloat;
  reader.Read(weights.n * weights.k, weights.codes);
  reader.Read(numbers, weights.scales);
  reader.Read(format.zero_point == ZeroPoint::kInteger ? groups : 0, weights.zeros);
  reader.Read(has_offsets ? numbers : 0, weights.offsets);
  reader.Read(format.two_level() ? groups : 0, weights.scale_codes);
  reader.Read(format.two_level() && has_offsets ? groups : 0, weights.offset_codes);
  if (!reader.IsAtEnd()) return Fail("the data is not as long as the first line says");

  const auto packed = Pack(weights);
  if (!packed.ok()) return Fail(packed.status().message());
  const auto planes = {&packed->weights, &packed->scales, &packed->zeros, &packed->steps};
  for (const auto* plane : planes) std::cout << plane->size() << " ";
  std::cout << "\n";
  for (const auto* plane : planes) {
    std::cout.write(reinterpret_cast<const char*>(plane->data()), static_cast<int64_t>(plane->size()));
  }
  std::cout.flush();
  return std::cout ? 0 : Fail("standard output cannot be written");
}

}  // namespace
}  // namespace qgemm

int main() { return qgemm::Main(); }
