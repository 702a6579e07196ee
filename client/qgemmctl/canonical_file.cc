#include "client/qgemmctl/canonical_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/bundle/bundle.h"
#include "client/bundle/mapped_file.h"
#include "client/bundle/safetensors.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

// Canonical weights of one layer out of a safetensors file.
class LayerTensors {
 public:
  LayerTensors(const std::map<std::string, TensorView>& tensors, std::string layer)
      : tensors_(tensors), layer_(std::move(layer)) {}

  const TensorView* Find(const char* plane) const {
    const auto found = tensors_.find(absl::StrCat(layer_, ".", plane));
    return found == tensors_.end() ? nullptr : &found->second;
  }
  absl::Status Wrong(const char* plane, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", layer_, ".", plane, ": ", what));
  }
  template <typename T>
  void Read(const char* plane, std::vector<T>& out) const {
    const TensorView* tensor = Find(plane);
    if (tensor == nullptr) return;
    out.resize(tensor->bytes.size() / sizeof(T));
    std::memcpy(out.data(), tensor->bytes.data(), out.size() * sizeof(T));
  }

 private:
  const std::map<std::string, TensorView>& tensors_;
  const std::string layer_;
};

absl::StatusOr<ScalarType> ScalarTypeOf(const LayerTensors& tensors, const char* plane) {
  const TensorView* tensor = tensors.Find(plane);
  if (tensor->dtype == "BF16") return ScalarType::kBf16;
  if (tensor->dtype == "F16") return ScalarType::kFp16;
  return tensors.Wrong(plane, absl::StrCat("dtype ", tensor->dtype, " is not allowed: use BF16 or F16"));
}

constexpr std::array<const char*, 8> kPlanes = {"codes",       "scales",       "zeros", "offsets",
                                                "scale_codes", "offset_codes", "bias",  "bits"};

// A plane under a wrong name would be left out in silence, and the layer be another one.
absl::Status CheckNames(const std::map<std::string, TensorView>& tensors, const std::string& layer) {
  const std::string prefix = absl::StrCat(layer, ".");
  for (auto tensor = tensors.lower_bound(prefix); tensor != tensors.end(); ++tensor) {
    if (!absl::StartsWith(tensor->first, prefix)) break;
    const std::string plane = tensor->first.substr(prefix.size());
    if (absl::StrContains(plane, '.') || std::find(kPlanes.begin(), kPlanes.end(), plane) != kPlanes.end()) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", tensor->first, " is not allowed: ",
        plane == "permutation" ? "a bundle cannot say that activations are gathered (act-order)"
                               : absl::StrCat("the planes of a layer are ", absl::StrJoin(kPlanes, ", "))));
  }
  return absl::OkStatus();
}

absl::Status CheckDtypes(const LayerTensors& tensors, ScalarType act) {
  const std::string scales = tensors.Find("scales")->dtype;
  const std::pair<const char*, std::string> wanted[] = {{"zeros", "U8"},
                                                        {"offsets", scales},
                                                        {"scale_codes", "I8"},
                                                        {"offset_codes", "I8"},
                                                        {"bias", act == ScalarType::kBf16 ? "BF16" : "F16"}};
  for (const auto& [plane, dtype] : wanted) {
    const TensorView* tensor = tensors.Find(plane);
    if (tensor != nullptr && tensor->dtype != dtype) {
      return tensors.Wrong(plane, absl::StrCat("dtype ", tensor->dtype, " is not allowed: use ", dtype));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> BitsOf(const LayerTensors& tensors, int bits) {
  const TensorView* tensor = tensors.Find("bits");
  if (tensor == nullptr) return bits;
  if (tensor->dtype != "U8" || tensor->bytes.size() != 1) return tensors.Wrong("bits", "U8 [1] is needed");
  return static_cast<uint8_t>(tensor->bytes[0]);
}

absl::StatusOr<Problem> ProblemOf(const LayerTensors& tensors, int bits, ScalarType act,
                                  ActivationQuantization quantization) {
  const TensorView& codes = *tensors.Find("codes");
  const TensorView* scales = tensors.Find("scales");
  if (codes.dtype != "U8" || codes.shape.size() != 2) return tensors.Wrong("codes", "U8 [N, K] is needed");
  Problem problem{codes.shape[0], codes.shape[1], {}};
  problem.signature.act = problem.signature.out = act;
  problem.signature.quantization = quantization;
  if (scales == nullptr || scales->shape.size() != 2 || scales->shape[0] != problem.n) {
    return tensors.Wrong("scales", absl::StrCat("[", problem.n, ", groups] is needed"));
  }
  QGEMM_RETURN_IF_ERROR(CheckDtypes(tensors, act));
  WeightFormat& format = problem.signature.format;
  QGEMM_ASSIGN_OR_RETURN(format.bits, BitsOf(tensors, bits));
  QGEMM_ASSIGN_OR_RETURN(format.scale_type, ScalarTypeOf(tensors, "scales"));
  const TensorView* scale_codes = tensors.Find("scale_codes");
  format.scale_levels = scale_codes != nullptr ? 2 : 1;
  const TensorView& groups = scale_codes != nullptr ? *scale_codes : *scales;
  if (groups.shape.size() != 2 || groups.shape[1] < 1 || problem.k % groups.shape[1] != 0) {
    return tensors.Wrong(scale_codes != nullptr ? "scale_codes" : "scales",
                         absl::StrCat("K ", problem.k, " is no whole number of its groups"));
  }
  format.group_size = groups.shape[1] == 1 ? 0 : static_cast<int>(problem.k / groups.shape[1]);
  format.zero_point = tensors.Find("zeros") != nullptr     ? ZeroPoint::kInteger
                      : tensors.Find("offsets") != nullptr ? ZeroPoint::kFloat
                                                           : ZeroPoint::kNone;
  problem.signature.epilogue.bias = tensors.Find("bias") != nullptr;
  if (const absl::Status valid = ValidateProblem(problem); !valid.ok()) {
    return tensors.Wrong("codes", valid.message());
  }
  return problem;
}

absl::Status WritePlanes(const BundleLayer& layer, const LayerTensors& tensors, WeightStore& store) {
  CanonicalWeights weights;
  weights.n = layer.problem.n;
  weights.k = layer.problem.k;
  weights.format = layer.problem.signature.format;
  tensors.Read("codes", weights.codes);
  tensors.Read("scales", weights.scales);
  tensors.Read("zeros", weights.zeros);
  tensors.Read("offsets", weights.offsets);
  tensors.Read("scale_codes", weights.scale_codes);
  tensors.Read("offset_codes", weights.offset_codes);
  const absl::StatusOr<PackedWeights> packed = Pack(weights);
  if (!packed.ok()) return tensors.Wrong("codes", packed.status().message());
  const auto bytes_of = [](const std::vector<uint8_t>& plane) {
    return absl::string_view(reinterpret_cast<const char*>(plane.data()), plane.size());
  };
  for (const PlaneSize& plane : PlanesOf(layer.problem)) {
    const std::string name = plane.plane;
    const absl::string_view bytes = name == "weights"  ? bytes_of(packed->weights)
                                    : name == "scales" ? bytes_of(packed->scales)
                                    : name == "zeros"  ? bytes_of(packed->zeros)
                                    : name == "steps"  ? bytes_of(packed->steps)
                                                       : tensors.Find("bias")->bytes;
    if (static_cast<int64_t>(bytes.size()) != plane.bytes) {
      return tensors.Wrong(plane.plane, absl::StrCat(bytes.size(), " bytes; ", plane.bytes, " are needed"));
    }
    WeightEntry entry;
    entry.key = absl::StrCat(layer.weight_key, ".", plane.plane);
    entry.kind = WeightEntry::Kind::kCpuTensor;
    entry.dtype = "U8";
    entry.shape = {plane.bytes};
    entry.read = [bytes]() -> absl::StatusOr<absl::string_view> { return bytes; };
    QGEMM_RETURN_IF_ERROR(store.Add(entry).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<std::string, TensorView>> ReadTensors(const std::string& path,
                                                              const MappedFile& file) {
  absl::StatusOr<std::map<std::string, TensorView>> tensors = ReadSafetensors(file.bytes());
  if (tensors.ok()) return tensors;
  return absl::InvalidArgumentError(absl::StrCat("weights file ", path, ": ", tensors.status().message()));
}

}  // namespace

absl::StatusOr<std::vector<BundleLayer>> LayersOfWeights(const std::string& path, int bits, ScalarType act,
                                                         ActivationQuantization quantization) {
  QGEMM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  QGEMM_ASSIGN_OR_RETURN(const auto tensors, ReadTensors(path, file));
  std::vector<BundleLayer> layers;
  for (const auto& [name, tensor] : tensors) {
    if (!absl::EndsWith(name, ".codes")) continue;
    const std::string layer(absl::StripSuffix(name, ".codes"));
    QGEMM_RETURN_IF_ERROR(CheckNames(tensors, layer));
    QGEMM_ASSIGN_OR_RETURN(const Problem problem,
                           ProblemOf(LayerTensors(tensors, layer), bits, act, quantization));
    layers.push_back({layer, problem, layer, {}});
  }
  if (!layers.empty()) return layers;
  return absl::InvalidArgumentError(absl::StrCat("weights file ", path, " has no tensor \"<layer>.codes\""));
}

absl::Status PackWeights(const std::string& path, const std::vector<BundleLayer>& layers,
                         WeightStore& store) {
  QGEMM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  QGEMM_ASSIGN_OR_RETURN(const auto tensors, ReadTensors(path, file));
  for (const BundleLayer& layer : layers) {
    QGEMM_RETURN_IF_ERROR(WritePlanes(layer, LayerTensors(tensors, layer.weight_key), store));
  }
  return absl::OkStatus();
}

}  // namespace qgemm
