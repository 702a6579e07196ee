#include "client/qgemmctl/problem_arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/model_config.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

// Requests hold at most as many.
constexpr size_t kMaxProblems = 4096;

// Digits with an optional sign. A number beyond int64 becomes its limit, so that the range check that follows
// reports it rather than "not a number".
bool ParseInteger(absl::string_view text, int64_t& value) {
  absl::string_view digits = text;
  const bool negative = absl::ConsumePrefix(&digits, "-");
  if (digits.empty() || digits.find_first_not_of("0123456789") != absl::string_view::npos) return false;
  if (!absl::SimpleAtoi(text, &value)) {
    value = negative ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max();
  }
  return true;
}

absl::StatusOr<int> ParseBits(absl::string_view format) {
  absl::string_view digits = format;
  int bits = 0;
  if (!absl::ConsumePrefix(&digits, "int") || !absl::SimpleAtoi(digits, &bits)) {
    return absl::InvalidArgumentError(
        absl::StrCat("format \"", format, "\" is not allowed: use int4, int5, int6 or int8"));
  }
  return bits;
}

absl::StatusOr<int> ParseGroupSize(absl::string_view text) {
  int group_size = 0;
  if (!absl::SimpleAtoi(text, &group_size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group_size \"", text, "\" is not a number: use 16, 32, 64, 128, 256 or 0 (channel-wise)"));
  }
  return group_size;
}

absl::StatusOr<KernelSignature> ParseSignature(const ProblemArguments& arguments) {
  KernelSignature signature;
  QGEMM_ASSIGN_OR_RETURN(signature.format.bits, ParseBits(arguments.format));
  QGEMM_ASSIGN_OR_RETURN(signature.format.group_size, ParseGroupSize(arguments.group_size));
  QGEMM_ASSIGN_OR_RETURN(signature.act, ParseScalarType("act", arguments.act));
  QGEMM_ASSIGN_OR_RETURN(signature.format.zero_point, ParseZeroPoint("zero", arguments.zero));
  signature.out = signature.act;
  signature.format.scale_type = signature.act;
  signature.epilogue.bias = arguments.bias;
  QGEMM_RETURN_IF_ERROR(ValidateSignature(signature));
  return signature;
}

absl::StatusOr<Problem> ParseShape(absl::string_view text, const KernelSignature& signature) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::ByAnyChar("xX"));
  Problem problem{.signature = signature};
  if (parts.size() != 2 || !ParseInteger(parts[0], problem.n) || !ParseInteger(parts[1], problem.k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape \"", text, "\" is not NxK: two whole numbers such as 5376x4096 are needed"));
  }
  const absl::Status valid = ValidateProblem(problem);
  if (valid.ok()) return problem;
  return absl::InvalidArgumentError(absl::StrCat("shape ", text, ": ", valid.message()));
}

absl::StatusOr<std::vector<int64_t>> ParseRows(const std::vector<std::string>& texts) {
  std::vector<int64_t> rows;
  for (const std::string& text : texts) {
    int64_t m = 0;
    if (!ParseInteger(text, m)) {
      return absl::InvalidArgumentError(absl::StrCat("m \"", text, "\" is not a whole number"));
    }
    if (const absl::Status valid = ValidateRows(m); !valid.ok()) {
      int64_t exact = 0;
      if (absl::SimpleAtoi(text, &exact)) return valid;
      return absl::InvalidArgumentError(absl::StrCat("m ", text, ": ", valid.message()));
    }
    rows.push_back(m);
  }
  if (rows.empty()) {
    return absl::InvalidArgumentError(
        "--m is missing: one or more numbers of rows of X are needed, such as 1,16,64");
  }
  std::sort(rows.begin(), rows.end());
  const auto same_bucket = [](int64_t a, int64_t b) { return BucketFor(a) == BucketFor(b); };
  rows.erase(std::unique(rows.begin(), rows.end(), same_bucket), rows.end());
  return rows;
}

void AddProblem(RequestedProblem requested, std::vector<RequestedProblem>& problems) {
  const auto same = std::find_if(problems.begin(), problems.end(), [&](const RequestedProblem& other) {
    return other.problem == requested.problem;
  });
  if (same == problems.end()) {
    problems.push_back(std::move(requested));
  } else if (same->layers.empty()) {
    *same = std::move(requested);
  }
}

absl::StatusOr<int> ParseTensorParallel(absl::string_view text) {
  int64_t tp = 0;
  if (!ParseInteger(text, tp) || tp < 1 || tp > kMaxTensorParallel) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp \"", text, "\" is not allowed: use 1 to ", kMaxTensorParallel));
  }
  return static_cast<int>(tp);
}

absl::Status AddModel(const std::string& path, int tp, const KernelSignature& signature,
                      std::vector<RequestedProblem>& problems) {
  absl::StatusOr<std::vector<LinearLayer>> layers = ReadModelConfig(path, tp);
  // Whatever is wrong with the file, it is the command line that must change.
  if (!layers.ok()) return absl::InvalidArgumentError(layers.status().message());
  for (LinearLayer& layer : *layers) layer.bias |= signature.epilogue.bias;
  for (const LayerGroup& group : GroupLayers(*layers)) {
    const LinearLayer& layer = group.layers.front();
    RequestedProblem requested{.problem = {.n = layer.n, .k = layer.k, .signature = signature},
                               .layers = group.Names(),
                               .variant = group.Variants(),
                               .count = group.Count()};
    requested.problem.signature.epilogue.bias = layer.bias;
    const absl::Status valid = ValidateProblem(requested.problem);
    if (!valid.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model file ", path, ": ", requested.layers, ": ", valid.message()));
    }
    AddProblem(std::move(requested), problems);
  }
  return absl::OkStatus();
}

}  // namespace

void ProblemArguments::AddTo(CLI::App& command) {
  command.add_option("--format", format, "Weight format")->type_name("int4")->capture_default_str();
  command.add_option("--group-size", group_size, "Weights along K that share a scale")
      ->type_name("32|64|128")
      ->capture_default_str();
  command.add_option("--act", act, "Type of activations, scales and outputs")
      ->type_name("bf16|fp16")
      ->capture_default_str();
  command.add_option("--zero", zero, "Zero points of the weights")
      ->type_name("none|int")
      ->capture_default_str();
  command.add_flag("--bias", bias, "Add a bias per column of Y (a model's own biases need no flag)");
  command.add_option("--shape", shapes, "Rows x columns of the weight; may be given several times")
      ->type_name("NxK,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--model", model_path, "A model's Hugging Face config.json: all its linear layers")
      ->type_name("FILE");
  command.add_option("--tp", tp, "Devices that share the model's layers: one device's part is read")
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--m", m, "Rows of X; each stands for its bucket")
      ->type_name("M,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--target", target,
                  "Device profile to predict for; else the daemon's GPU or default target")
      ->type_name("PROFILE");
}

absl::StatusOr<RequestedProblems> ResolveProblems(const ProblemArguments& arguments) {
  RequestedProblems requested;
  QGEMM_ASSIGN_OR_RETURN(const KernelSignature signature, ParseSignature(arguments));
  if (arguments.shapes.empty() && arguments.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--shape and --model are missing: one of them is needed, such as --shape 5376x4096");
  }
  QGEMM_ASSIGN_OR_RETURN(const int tp, ParseTensorParallel(arguments.tp));
  if (tp != 1 && arguments.model_path.empty()) {
    return absl::InvalidArgumentError("--tp is for --model alone: give shapes as one device has them");
  }
  for (const std::string& shape : arguments.shapes) {
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ParseShape(shape, signature));
    AddProblem({.problem = problem}, requested.problems);
  }
  if (!arguments.model_path.empty()) {
    QGEMM_RETURN_IF_ERROR(AddModel(arguments.model_path, tp, signature, requested.problems));
  }
  QGEMM_ASSIGN_OR_RETURN(requested.m, ParseRows(arguments.m));
  if (requested.problems.size() > kMaxProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat(requested.problems.size(), " shapes are too many: allowed are ", kMaxProblems));
  }
  return requested;
}

}  // namespace qgemm
