#include "client/bundle/manifest.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/bundle/json_fields.h"
#include "client/bundle/launch_spec_json.h"
#include "kernels/bucket.h"
#include "kernels/packing.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kNameLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";

std::string Text(const Json& json) {
  return absl::StrCat(json.dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace), "\n");
}

bool IsSha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string Sha256Field(JsonFields& fields, const char* name) {
  std::string sha256 = fields.Text(name);
  if (!IsSha256(sha256)) fields.Fail(name, "64 lower-case hexadecimal digits");
  return sha256;
}

Json FileToJson(const BundleManifest::File& file) {
  Json json;
  if (!file.name.empty()) json["name"] = file.name;
  json["file"] = file.file;
  json["bytes"] = file.bytes;
  json["sha256"] = file.sha256;
  return json;
}

absl::StatusOr<BundleManifest::File> FileFromJson(const Json& json, const std::string& where, bool named) {
  JsonFields fields(json, where);
  BundleManifest::File file;
  if (named) file.name = fields.Text("name");
  file.file = fields.Text("file");
  file.bytes = fields.Long("bytes");
  file.sha256 = Sha256Field(fields, "sha256");
  QGEMM_RETURN_IF_ERROR(fields.status());
  return file;
}

Json PickToJson(const BundlePick& pick) {
  return {{"m_bucket", pick.m_bucket},
          {"kernel", pick.kernel_sha256},
          {"config", pick.config},
          {"reduction", pick.reduction},
          {"target", pick.target},
          {"source", pick.source},
          {"confidence", pick.confidence},
          {"time_us", pick.time_us.has_value() ? Json(*pick.time_us) : Json(nullptr)},
          {"spread_us", pick.spread_us.has_value() ? Json(*pick.spread_us) : Json(nullptr)},
          {"predicted_us", pick.predicted_us},
          {"launch", ToJson(pick.launch)}};
}

absl::StatusOr<BundlePick> PickFromJson(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  BundlePick pick;
  pick.m_bucket = fields.Int("m_bucket", 1);
  pick.kernel_sha256 = Sha256Field(fields, "kernel");
  pick.config = fields.Text("config");
  pick.reduction = fields.Text("reduction");
  pick.target = fields.Text("target");
  pick.source = fields.Text("source");
  pick.confidence = fields.Text("confidence");
  pick.predicted_us = fields.Number("predicted_us");
  if (fields.Has("time_us")) pick.time_us = fields.Number("time_us");
  if (fields.Has("spread_us")) pick.spread_us = fields.Number("spread_us");
  const Json& launch = fields.Object("launch");
  QGEMM_RETURN_IF_ERROR(fields.status());
  absl::StatusOr<LaunchSpec> spec = LaunchSpecFromJson(launch);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(), absl::StrCat(where, ".", spec.status().message()));
  }
  pick.launch = *std::move(spec);
  return pick;
}

absl::StatusOr<BundleLayer> LayerFromJson(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  BundleLayer layer;
  layer.name = fields.Text("name");
  if (fields.Has("weights")) layer.weight_key = fields.Text("weights");
  const Json& problem = fields.Object("problem");
  const Json& picks = fields.Array("picks");
  QGEMM_RETURN_IF_ERROR(fields.status());
  absl::StatusOr<Problem> read = ProblemFromJson(problem);
  if (!read.ok()) return absl::DataLossError(absl::StrCat(where, ".", read.status().message()));
  layer.problem = *read;
  for (const Json& pick : picks) {
    const std::string at = absl::StrCat(where, ".picks[", layer.picks.size(), "]");
    QGEMM_ASSIGN_OR_RETURN(BundlePick read_pick, PickFromJson(pick, at));
    layer.picks.push_back(std::move(read_pick));
  }
  return layer;
}

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view what) {
  // One name twice would be one thing to us and another to a reader that takes the other value.
  std::vector<std::set<std::string>> names;
  std::string repeated;
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError(absl::StrCat(what, " is no JSON object"));
  if (!repeated.empty()) return absl::DataLossError(absl::StrCat(what, " has \"", repeated, "\" twice"));
  return json;
}

}  // namespace

std::string KernelFile(absl::string_view sha256) { return absl::StrCat("kernels/", sha256, ".cubin"); }
std::string MethodFile(absl::string_view name) { return absl::StrCat("methods/", name, ".json"); }

std::string ManifestText(const BundleManifest& manifest) {
  Json kernels = Json::array(), methods = Json::array();
  for (const BundleKernel& kernel : manifest.kernels) {
    kernels.push_back({{"sha256", kernel.sha256},
                       {"entry", kernel.entry},
                       {"arch", kernel.arch},
                       {"bytes", kernel.bytes},
                       {"programmatic", kernel.programmatic},
                       {"access", kernel.access}});
  }
  for (const BundleManifest::File& method : manifest.methods) methods.push_back(FileToJson(method));
  return Text({{"bundle_version", manifest.version},
               {"abi_version", manifest.abi_version},
               {"layout_id", manifest.layout_id},
               {"methods", std::move(methods)},
               {"kernels", std::move(kernels)},
               {"weights", manifest.weights.has_value() ? FileToJson(*manifest.weights) : Json(nullptr)}});
}

std::string MethodText(const BundleMethod& method) {
  Json layers = Json::array();
  for (const BundleLayer& layer : method.layers) {
    Json picks = Json::array();
    for (const BundlePick& pick : layer.picks) picks.push_back(PickToJson(pick));
    layers.push_back({{"name", layer.name},
                      {"weights", layer.weight_key.empty() ? Json(nullptr) : Json(layer.weight_key)},
                      {"problem", ToJson(layer.problem)},
                      {"picks", std::move(picks)}});
  }
  return Text({{"bundle_version", kBundleVersion},
               {"name", method.name},
               {"static_m", method.static_m > 0 ? Json(method.static_m) : Json(nullptr)},
               {"layers", std::move(layers)}});
}

absl::StatusOr<BundleManifest> ParseManifest(absl::string_view text) {
  QGEMM_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kManifestFile));
  JsonFields fields(json, kManifestFile);
  BundleManifest manifest;
  manifest.version = fields.Int("bundle_version");
  QGEMM_RETURN_IF_ERROR(fields.status());
  if (manifest.version != kBundleVersion) {
    return absl::FailedPreconditionError(absl::StrCat("bundle_version is ", manifest.version,
                                                      "; this program reads version ", kBundleVersion));
  }
  manifest.abi_version = fields.Int("abi_version");
  manifest.layout_id = fields.Text("layout_id");
  if (fields.status().ok() && manifest.layout_id != kLayoutId) {
    return absl::FailedPreconditionError(
        absl::StrCat("layout_id is ", manifest.layout_id, "; this program knows ", std::string(kLayoutId)));
  }
  for (const Json& kernel : fields.Array("kernels")) {
    JsonFields entry(kernel, absl::StrCat("kernels[", manifest.kernels.size(), "]"));
    BundleKernel read;
    read.sha256 = Sha256Field(entry, "sha256");
    read.entry = entry.Text("entry");
    read.arch = entry.Text("arch");
    read.bytes = entry.Long("bytes");
    read.programmatic = entry.Bool("programmatic");
    if (entry.Has("access")) read.access = entry.Object("access");
    QGEMM_RETURN_IF_ERROR(entry.status());
    manifest.kernels.push_back(std::move(read));
  }
  for (const Json& method : fields.Array("methods")) {
    const std::string where = absl::StrCat("methods[", manifest.methods.size(), "]");
    QGEMM_ASSIGN_OR_RETURN(BundleManifest::File file, FileFromJson(method, where, /*named=*/true));
    manifest.methods.push_back(std::move(file));
  }
  if (fields.Has("weights")) {
    QGEMM_ASSIGN_OR_RETURN(manifest.weights,
                           FileFromJson(fields.Object("weights"), "weights", /*named=*/false));
  }
  QGEMM_RETURN_IF_ERROR(fields.status());
  return manifest;
}

absl::StatusOr<BundleMethod> ParseMethod(absl::string_view text) {
  QGEMM_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "a method's manifest"));
  JsonFields fields(json, "method");
  BundleMethod method;
  const int version = fields.Int("bundle_version");
  method.name = fields.Text("name");
  if (fields.Has("static_m")) method.static_m = fields.Long("static_m", 1);
  const Json& layers = fields.Array("layers");
  QGEMM_RETURN_IF_ERROR(fields.status());
  if (version != kBundleVersion) {
    return absl::FailedPreconditionError(absl::StrCat("method ", method.name, ": bundle_version is ", version,
                                                      "; this program reads version ", kBundleVersion));
  }
  for (const Json& layer : layers) {
    const std::string where = absl::StrCat("method ", method.name, ".layers[", method.layers.size(), "]");
    QGEMM_ASSIGN_OR_RETURN(BundleLayer read, LayerFromJson(layer, where));
    method.layers.push_back(std::move(read));
  }
  if (const absl::Status valid = CheckMethod(method); !valid.ok()) {
    return absl::DataLossError(valid.message());
  }
  return method;
}

absl::Status CheckMethod(const BundleMethod& method) {
  if (method.name.empty() || method.name.size() > 64 || method.name[0] == '.' ||
      method.name.find_first_not_of(kNameLetters) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "method name \"", method.name, "\" is not allowed: up to 64 letters, digits, '_', '-' and '.'"));
  }
  std::set<std::string> names;
  for (const BundleLayer& layer : method.layers) {
    const auto invalid = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("method ", method.name, ", layer ", layer.name, ": ", why));
    };
    if (layer.name.empty() || !names.insert(layer.name).second) {
      return invalid("its name is empty or used twice");
    }
    for (size_t i = 0; i < layer.picks.size(); ++i) {
      const BundlePick& pick = layer.picks[i];
      if (pick.launch.max_m == 0 && pick.m_bucket != BucketLadder().back()) {
        return invalid(absl::StrCat("bucket ", pick.m_bucket, " has a launch without a limit"));
      }
      if (i > 0 && pick.m_bucket <= layer.picks[i - 1].m_bucket) return invalid("its buckets do not ascend");
    }
    if (method.static_m > 0) {
      if (layer.picks.size() != 1 || layer.picks[0].m_bucket != BucketFor(method.static_m)) {
        return invalid(absl::StrCat("M = ", method.static_m, " needs one pick, for bucket ",
                                    BucketFor(method.static_m)));
      }
      continue;
    }
    if (layer.picks.empty()) return invalid("it has no picks");
  }
  return absl::OkStatus();
}

absl::Status ValidateMethod(const BundleMethod& method) {
  QGEMM_RETURN_IF_ERROR(CheckMethod(method));
  if (method.static_m > 0) return absl::OkStatus();
  for (const BundleLayer& layer : method.layers) {
    for (const int bucket : BucketLadder()) {
      const auto serves = [bucket](const BundlePick& pick) { return pick.m_bucket == bucket; };
      if (std::none_of(layer.picks.begin(), layer.picks.end(), serves)) {
        return absl::InvalidArgumentError(absl::StrCat("method ", method.name, ", layer ", layer.name,
                                                       ": a dynamic M needs every bucket, and ", bucket,
                                                       " is missing"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace qgemm
