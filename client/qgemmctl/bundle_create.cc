#include "client/qgemmctl/bundle_create.h"

#include <algorithm>
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
#include "client/qgemmctl/canonical_file.h"
#include "client/qgemmctl/json_output.h"
#include "client/qgemmctl/progress.h"
#include "client/weight_store/weight_store.h"
#include "kernels/access_report.h"
#include "kernels/bucket.h"

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
    QGEMM_RETURN_IF_ERROR(CheckMethod(method));  // its name
    for (const BundleMethod& other : methods) {
      if (other.name == method.name) {
        return absl::InvalidArgumentError(absl::StrCat("method ", method.name, " is there twice"));
      }
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
  // Before minutes of tuning: whether the bundle can be written.
  QGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<BundleWriter> writer, BundleWriter::Create(arguments.output));
  CreatedBundle created;
  absl::StatusOr<Kernels> found = arguments.picks.empty()
                                      ? FromDaemon(arguments, layers, buckets, client, created)
                                      : FromBundle(arguments.picks);
  QGEMM_RETURN_IF_ERROR(found.status());

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
    QGEMM_ASSIGN_OR_RETURN(SafetensorsWriter* const weights, writer->Weights());
    WeightStore store(*weights);
    QGEMM_RETURN_IF_ERROR(PackWeights(arguments.weights, layers, store));
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
