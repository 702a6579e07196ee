#include "client/qgemmctl/bundle_create.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/bundle/bundle.h"
#include "client/bundle/bundle_writer.h"
#include "client/bundle/launch_spec_json.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/progress.h"
#include "client/weight_store/weight_store.h"
#include "kernels/access_report.h"
#include "kernels/bucket.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

// A problem, by its name, and a bucket.
using PickKey = std::pair<std::string, int>;

struct Kernels {
  std::map<PickKey, BundlePick> picks;
  std::map<std::string, std::pair<BundleKernel, std::string>> kernels;  // with their bytes
};

absl::StatusOr<std::vector<BundleMethod>> ParseMethods(const std::vector<std::string>& texts) {
  std::vector<BundleMethod> methods;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    BundleMethod method;
    method.name = text.substr(0, equals);
    const std::string rows = equals == std::string::npos ? "" : text.substr(equals + 1);
    if (rows != "dynamic" &&
        (!absl::SimpleAtoi(rows, &method.static_m) || !ValidateRows(method.static_m).ok())) {
      return absl::InvalidArgumentError(
          absl::StrCat("method \"", text, "\" is not NAME=M with rows from 1, or NAME=dynamic"));
    }
    methods.push_back(std::move(method));
  }
  if (methods.empty()) {
    return absl::InvalidArgumentError(
        "--method is missing: one or more are needed, such as --method decode=1 --method prefill=dynamic");
  }
  return methods;
}

std::set<int> BucketsOf(const BundleMethod& method) {
  if (method.static_m > 0) return {BucketFor(method.static_m)};
  return {BucketLadder().begin(), BucketLadder().end()};
}

// One layer per problem: named as in the model, else by the shape.
absl::StatusOr<std::vector<BundleLayer>> LayersOfProblems(const ProblemArguments& arguments) {
  ProblemArguments one_row = arguments;
  one_row.m = {"1"};  // the methods have the rows
  QGEMM_ASSIGN_OR_RETURN(const RequestedProblems requested, ResolveProblems(one_row));
  std::vector<BundleLayer> layers;
  std::set<std::string> names;
  for (const RequestedProblem& problem : requested.problems) {
    const std::string shape = absl::StrCat(problem.problem.n, "x", problem.problem.k);
    std::string name = problem.layers.empty() ? shape : problem.layers;
    if (!names.insert(name).second) absl::StrAppend(&name, "-", shape);
    layers.push_back({name, problem.problem, "", {}});
  }
  return layers;
}

absl::StatusOr<BundlePick> PickFromProto(const v1::Pick& pick) {
  BundlePick out;
  out.m_bucket = pick.m_bucket();
  out.kernel_sha256 = pick.kernel().sha256();
  out.config = pick.config();
  out.reduction = std::string(ReductionWord(pick.reduction()));
  out.target = pick.target();
  out.source = std::string(PickSourceWord(pick.source()));
  out.confidence = pick.confidence() == v1::CONFIDENCE_HIGH ? "high" : "low";
  out.predicted_us = pick.predicted_us();
  if (pick.has_time_us()) out.time_us = pick.time_us();
  if (pick.has_spread_us()) out.spread_us = pick.spread_us();
  QGEMM_ASSIGN_OR_RETURN(out.launch, LaunchSpecFromJson(LaunchSpecToJson(pick.launch())));
  return out;
}

absl::StatusOr<std::pair<BundleKernel, std::string>> FetchKernel(const std::string& sha256, Client& client) {
  QGEMM_ASSIGN_OR_RETURN(Kernel fetched, client.GetKernel(sha256));
  QGEMM_ASSIGN_OR_RETURN(const std::string ptx, client.GetPtx(sha256));
  BundleKernel kernel;
  kernel.sha256 = sha256;
  kernel.entry = fetched.info.entry();
  kernel.arch = fetched.info.arch();
  kernel.bytes = static_cast<int64_t>(fetched.cubin.size());
  kernel.programmatic = absl::StrContains(ptx, "griddepcontrol.wait");
  v1::AccessReport access;
  const AccessReport report = AnalyzeAccess(ptx, kernel.entry);
  access.set_failure(report.failure);
  for (const ParameterAccess& parameter : report.parameters) {
    v1::AccessReport::Parameter& out = *access.add_parameters();
    out.set_index(parameter.index);
    out.set_read(parameter.read);
    out.set_written(parameter.written);
    out.set_alignment(parameter.alignment);
  }
  kernel.access = AccessReportToJson(access);
  return std::make_pair(std::move(kernel), std::move(fetched.cubin));
}

absl::Status Untuned(const std::vector<std::string>& names, absl::string_view where) {
  constexpr size_t kNamed = 3;
  const size_t shown = std::min(kNamed, names.size());
  return absl::NotFoundError(
      absl::StrCat("not tuned ", where, ": ", absl::StrJoin(names.begin(), names.begin() + shown, "; "),
                   names.size() > shown ? absl::StrCat("; and ", names.size() - shown, " more") : ""));
}

// The daemon's picks for every layer and bucket, tuned where there are none.
absl::StatusOr<Kernels> FromDaemon(const BundleCreateArguments& arguments,
                                   const std::vector<BundleLayer>& layers, const std::set<int>& buckets,
                                   Client& client, CreatedBundle& created) {
  std::map<std::string, Problem> problems;
  for (const BundleLayer& layer : layers) problems.emplace(ProblemName(layer.problem), layer.problem);
  Kernels out;
  std::vector<std::string> misses;
  absl::Status failed;
  const auto add = [&](const std::string& name, int bucket, const v1::Pick* pick, const std::string& error) {
    if (pick == nullptr) {
      misses.push_back(absl::StrCat(name, " M <= ", bucket, ": ", error));
      return;
    }
    absl::StatusOr<BundlePick> read = PickFromProto(*pick);
    if (!read.ok()) {
      failed = read.status();
    } else {
      out.picks[{name, bucket}] = *std::move(read);
    }
  };
  if (arguments.no_tune) {
    v1::LookupRequest request;
    request.set_target(arguments.problems.target);
    std::vector<PickKey> keys;
    for (const auto& [name, problem] : problems) {
      for (const int bucket : buckets) {
        v1::LookupKey& key = *request.add_keys();
        *key.mutable_problem() = ProblemToProto(problem);
        key.set_m(bucket);
        keys.emplace_back(name, bucket);
      }
    }
    QGEMM_ASSIGN_OR_RETURN(const v1::LookupResponse response, client.Lookup(request));
    for (int i = 0; i < response.answers_size(); ++i) {
      const v1::LookupAnswer& answer = response.answers(i);
      add(keys[i].first, keys[i].second, answer.has_pick() ? &answer.pick() : nullptr, answer.miss_reason());
    }
  } else {
    v1::TuneRequest request;
    request.set_target(arguments.problems.target);
    std::vector<std::string> names;
    for (const auto& [name, problem] : problems) {
      *request.add_problems() = ProblemToProto(problem);
      names.push_back(name);
    }
    for (const int bucket : buckets) request.add_m(bucket);
    ProgressBar bar(TerminalWriter(), TerminalWidth(), RealClock());
    QGEMM_ASSIGN_OR_RETURN(
        const v1::TuneSummary summary, client.Tune(request, [&](const v1::TuneEvent& event) {
          if (event.has_progress()) bar.Show(event.progress());
          if (!event.has_result()) return;
          const v1::TuneResult& result = event.result();
          if (result.problem_index() < 0 || result.problem_index() >= static_cast<int>(names.size())) return;
          add(names[result.problem_index()], result.has_pick() ? result.pick().m_bucket() : result.m_bucket(),
              result.has_pick() ? &result.pick() : nullptr, result.error());
        }));
    created.compiles = summary.compiles();
    created.timings = summary.timings();
  }
  QGEMM_RETURN_IF_ERROR(failed);
  if (!misses.empty()) return Untuned(misses, "by the daemon");
  for (const auto& [key, pick] : out.picks) {
    if (out.kernels.count(pick.kernel_sha256) > 0) continue;
    QGEMM_ASSIGN_OR_RETURN(out.kernels[pick.kernel_sha256], FetchKernel(pick.kernel_sha256, client));
  }
  return out;
}

absl::StatusOr<Kernels> FromBundle(const std::string& path) {
  QGEMM_ASSIGN_OR_RETURN(const Bundle bundle, Bundle::Open(path));
  Kernels out;
  for (const BundleKernel& kernel : bundle.manifest().kernels) {
    QGEMM_ASSIGN_OR_RETURN(const absl::string_view cubin, bundle.Cubin(kernel.sha256));
    out.kernels[kernel.sha256] = {kernel, std::string(cubin)};
  }
  for (const BundleManifest::File& file : bundle.manifest().methods) {
    QGEMM_ASSIGN_OR_RETURN(const BundleMethod method, bundle.Method(file.name));
    for (const BundleLayer& layer : method.layers) {
      for (const BundlePick& pick : layer.picks) {
        const auto kernel = out.kernels.find(pick.kernel_sha256);
        const absl::Status access =
            kernel != out.kernels.end()
                ? CheckAccess(kernel->second.first, pick.launch)
                : absl::DataLossError(absl::StrCat("kernel ", pick.kernel_sha256, " is not listed"));
        if (!access.ok()) return absl::Status(access.code(), absl::StrCat(path, ": ", access.message()));
        out.picks.emplace(PickKey(ProblemName(layer.problem), pick.m_bucket), pick);
      }
    }
  }
  return out;
}

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

// What a weights file says, or its layers have not, is not said beside it: it would count for nothing.
absl::Status CheckOptionsBesideWeights(const ProblemArguments& given) {
  const ProblemArguments by_default;
  const std::pair<const char*, bool> options[] = {
      {"--shape", !given.shapes.empty()},
      {"--grid", !given.grid.empty()},
      {"--model", !given.model_path.empty()},
      {"--tp", given.tp != by_default.tp},
      {"--fuse-gate-up", given.fuse_gate_up},
      {"--group-size", given.group_size != by_default.group_size},
      {"--out", !given.out.empty()},
      {"--zero", given.zero != by_default.zero},
      {"--scale", !given.scale.empty()},
      {"--scale-levels", given.scale_levels != by_default.scale_levels},
      {"--bias", given.bias},
      {"--activation", given.activation != by_default.activation},
      {"--gated", given.gated},
      {"--residual", given.residual},
  };
  for (const auto& [option, is_given] : options) {
    if (!is_given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is not allowed beside --weights: the file says what its layers are"));
  }
  return absl::OkStatus();
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

absl::StatusOr<CreatedBundle> CreateBundle(const BundleCreateArguments& arguments, Client& client) {
  QGEMM_ASSIGN_OR_RETURN(std::vector<BundleMethod> methods, ParseMethods(arguments.methods));
  std::vector<BundleLayer> layers;
  if (arguments.weights.empty()) {
    QGEMM_ASSIGN_OR_RETURN(layers, LayersOfProblems(arguments.problems));
  } else {
    QGEMM_RETURN_IF_ERROR(CheckOptionsBesideWeights(arguments.problems));
    absl::string_view digits = arguments.problems.format;
    int bits = 0;
    if (!absl::ConsumePrefix(&digits, "int") || !absl::SimpleAtoi(digits, &bits)) {
      return absl::InvalidArgumentError(absl::StrCat("format \"", arguments.problems.format,
                                                     "\" is not allowed: use int4, int5, int6 or int8"));
    }
    QGEMM_ASSIGN_OR_RETURN(const ScalarType act, ParseScalarType("act", arguments.problems.act));
    QGEMM_ASSIGN_OR_RETURN(const ActivationQuantization quantization,
                           ParseActivationQuantization("act_quant", arguments.problems.act_quant));
    QGEMM_ASSIGN_OR_RETURN(layers, LayersOfWeights(arguments.weights, bits, act, quantization));
  }
  std::set<int> buckets;
  for (const BundleMethod& method : methods) {
    const std::set<int> of_method = BucketsOf(method);
    buckets.insert(of_method.begin(), of_method.end());
  }
  CreatedBundle created;
  absl::StatusOr<Kernels> found = arguments.picks.empty()
                                      ? FromDaemon(arguments, layers, buckets, client, created)
                                      : FromBundle(arguments.picks);
  QGEMM_RETURN_IF_ERROR(found.status());

  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<BundleWriter> writer, BundleWriter::Create(arguments.output));
  std::vector<std::string> misses;
  for (BundleMethod& method : methods) {
    for (const BundleLayer& layer : layers) {
      BundleLayer& with_picks = method.layers.emplace_back(layer);
      for (const int bucket : BucketsOf(method)) {
        const auto pick = found->picks.find({ProblemName(layer.problem), bucket});
        if (pick == found->picks.end()) {
          misses.push_back(absl::StrCat(ProblemName(layer.problem), " M <= ", bucket));
          continue;
        }
        with_picks.picks.push_back(pick->second);
        const auto& [kernel, cubin] = found->kernels[pick->second.kernel_sha256];
        QGEMM_RETURN_IF_ERROR(writer->AddKernel(kernel, cubin));
        ++created.picks;
      }
    }
  }
  if (!misses.empty()) return Untuned(misses, absl::StrCat("in ", arguments.picks));
  for (const BundleMethod& method : methods) QGEMM_RETURN_IF_ERROR(writer->AddMethod(method));
  if (!arguments.weights.empty()) {
    QGEMM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(arguments.weights));
    QGEMM_ASSIGN_OR_RETURN(const auto tensors, ReadTensors(arguments.weights, file));
    QGEMM_ASSIGN_OR_RETURN(SafetensorsWriter* const weights, writer->Weights());
    WeightStore store(*weights);
    for (const BundleLayer& layer : layers) {
      QGEMM_RETURN_IF_ERROR(WritePlanes(layer, LayerTensors(tensors, layer.weight_key), store));
    }
    created.weight_bytes = store.counts().bytes_written;
  }
  QGEMM_RETURN_IF_ERROR(writer->Finish());
  created.layers = static_cast<int>(layers.size());
  std::set<std::string> used;
  for (const BundleMethod& method : methods) {
    for (const BundleLayer& layer : method.layers) {
      for (const BundlePick& pick : layer.picks) used.insert(pick.kernel_sha256);
    }
  }
  created.kernels = static_cast<int>(used.size());
  return created;
}

}  // namespace qgemm
