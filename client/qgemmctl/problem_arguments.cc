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
  for (const int bits : {4, 5, 6, 8}) {
    if (format == absl::StrCat("int", bits)) return bits;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("format \"", format, "\" is not allowed: use int4, int5, int6 or int8"));
}

// The command line's -1 is the API's 0.
absl::StatusOr<int> ParseGroupSize(absl::string_view text) {
  if (text == "-1") return 0;
  for (const int group_size : {16, 32, 64, 128, 256}) {
    if (text == absl::StrCat(group_size)) return group_size;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "group_size \"", text, "\" is not allowed: use 16, 32, 64, 128, 256 or -1 (channel-wise)"));
}

absl::StatusOr<int> ParseScaleLevels(absl::string_view text) {
  if (text == "1") return 1;
  if (text == "2") return 2;
  return absl::InvalidArgumentError(absl::StrCat("scale_levels \"", text, "\" is not allowed: use 1 or 2"));
}

absl::StatusOr<KernelSignature> ParseSignature(const ProblemArguments& arguments) {
  KernelSignature signature;
  WeightFormat& format = signature.format;
  QGEMM_ASSIGN_OR_RETURN(format.bits, ParseBits(arguments.format));
  QGEMM_ASSIGN_OR_RETURN(format.group_size, ParseGroupSize(arguments.group_size));
  QGEMM_ASSIGN_OR_RETURN(format.scale_levels, ParseScaleLevels(arguments.scale_levels));
  QGEMM_ASSIGN_OR_RETURN(signature.act, ParseScalarType("act", arguments.act));
  if (signature.act == ScalarType::kFp32) {  // it would be refused as the scales' type
    return absl::InvalidArgumentError("act fp32 is not allowed: use bf16 or fp16");
  }
  QGEMM_ASSIGN_OR_RETURN(signature.quantization,
                         ParseActivationQuantization("act_quant", arguments.act_quant));
  signature.out = signature.act;
  if (!arguments.out.empty()) {
    QGEMM_ASSIGN_OR_RETURN(signature.out, ParseScalarType("out", arguments.out));
  }
  QGEMM_ASSIGN_OR_RETURN(format.zero_point, ParseZeroPoint("zero", arguments.zero));
  format.scale_type = format.two_level() ? ScalarType::kFp16 : signature.act;
  if (!arguments.scale.empty()) {
    QGEMM_ASSIGN_OR_RETURN(format.scale_type, ParseScalarType("scale", arguments.scale));
  }
  QGEMM_ASSIGN_OR_RETURN(signature.epilogue.activation, ParseActivation("activation", arguments.activation));
  signature.epilogue.bias = arguments.bias;
  signature.epilogue.gated = arguments.gated;
  signature.epilogue.residual = arguments.residual;
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

// Every N with every K, as shapes.
absl::StatusOr<std::vector<std::string>> ParseGrid(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::ByAnyChar("xX"));
  if (parts.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("grid \"", text, "\" is not N,...xK,...: such as 1024,4096,16384x4096,8192 is needed"));
  }
  std::vector<std::string> shapes;
  for (const absl::string_view n : absl::StrSplit(parts[0], ',')) {
    for (const absl::string_view k : absl::StrSplit(parts[1], ',')) shapes.push_back(absl::StrCat(n, "x", k));
  }
  return shapes;
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

absl::Status AddModel(const std::string& path, int tp, bool fuse_gate_up, const KernelSignature& signature,
                      std::vector<RequestedProblem>& problems) {
  absl::StatusOr<std::vector<LinearLayer>> layers = ReadModelConfig(path, tp, fuse_gate_up);
  // Whatever is wrong with the file, it is the command line that must change.
  if (!layers.ok()) return absl::InvalidArgumentError(layers.status().message());
  for (LinearLayer& layer : *layers) layer.bias |= signature.epilogue.bias;
  for (const LayerGroup& group : GroupLayers(*layers)) {
    const LinearLayer& layer = group.layers.front();
    RequestedProblem requested{.problem = {.n = layer.n, .k = layer.k, .signature = signature},
                               .layers = group.Names(),
                               .variant = group.Variants(),
                               .count = group.Count()};
    Epilogue& epilogue = requested.problem.signature.epilogue;
    epilogue.bias = layer.bias;
    if (layer.gate != Activation::kNone) {
      epilogue.gated = true;
      epilogue.activation = layer.gate;
    }
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
  command.add_option("--format", format, "Bits of a weight")
      ->type_name("int4|int5|int6|int8")
      ->capture_default_str();
  command.add_option("--group-size", group_size, "Weights along K that share a scale; -1: all of a row")
      ->type_name("16|32|64|128|256|-1")
      ->capture_default_str();
  command.add_option("--act", act, "Type of activations")->type_name("bf16|fp16")->capture_default_str();
  command
      .add_option(
          "--act-quant", act_quant,
          "int8: the kernel rounds activations to bytes, per row and 32 along K (some 0.7 % of error); "
          "a class of its own, never chosen unasked")
      ->type_name("none|int8")
      ->capture_default_str();
  command.add_option("--out", out, "Type of outputs; else that of activations")->type_name("bf16|fp16|fp32");
  command.add_option("--zero", zero, "Zero points of the weights: none, codes, or numbers added to them")
      ->type_name("none|int|float")
      ->capture_default_str();
  command.add_option("--scale", scale, "Type of scales; else that of activations, fp16 with two levels")
      ->type_name("bf16|fp16");
  command
      .add_option("--scale-levels", scale_levels,
                  "2: a scale is an 8-bit code times an fp16 step per 256 weights")
      ->type_name("1|2")
      ->capture_default_str();
  command.add_flag("--bias", bias, "Add a bias per column of Y (a model's own biases need no flag)");
  command.add_option("--activation", activation, "Function applied to the outputs")
      ->type_name("none|silu|gelu_tanh|relu")
      ->capture_default_str();
  command.add_flag("--gated", gated,
                   "Rows of W alternate gate and up: Y = activation(gate) * up, with N / 2 columns");
  command.add_flag("--residual", residual, "Add a matrix of Y's shape last");
  command.add_option("--shape", shapes, "Rows x columns of the weight; may be given several times")
      ->type_name("NxK,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--grid", grid, "Every N with every K: hints for shapes nobody tunes (lookup --similar)")
      ->type_name("N,...xK,...");
  command.add_option("--model", model_path, "A model's Hugging Face config.json: all its linear layers")
      ->type_name("FILE");
  command.add_option("--tp", tp, "Devices that share the model's layers: one device's part is read")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--fuse-gate-up", fuse_gate_up,
                   "The model's gate_up_proj is one gated GEMM with the model's activation");
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
  std::vector<std::string> shapes = arguments.shapes;
  if (!arguments.grid.empty()) {
    QGEMM_ASSIGN_OR_RETURN(const std::vector<std::string> grid, ParseGrid(arguments.grid));
    shapes.insert(shapes.end(), grid.begin(), grid.end());
  }
  if (shapes.empty() && arguments.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--shape and --model are missing: one of them is needed, such as --shape 5376x4096");
  }
  QGEMM_ASSIGN_OR_RETURN(const int tp, ParseTensorParallel(arguments.tp));
  if (tp != 1 && arguments.model_path.empty()) {
    return absl::InvalidArgumentError("--tp is for --model alone: give shapes as one device has them");
  }
  for (const std::string& shape : shapes) {
    QGEMM_ASSIGN_OR_RETURN(const Problem problem, ParseShape(shape, signature));
    AddProblem({.problem = problem}, requested.problems);
  }
  if (arguments.fuse_gate_up && arguments.model_path.empty()) {
    return absl::InvalidArgumentError(
        "--fuse-gate-up is for --model, whose activation it takes: a shape needs --gated and --activation");
  }
  if (!arguments.model_path.empty()) {
    QGEMM_RETURN_IF_ERROR(
        AddModel(arguments.model_path, tp, arguments.fuse_gate_up, signature, requested.problems));
  }
  QGEMM_ASSIGN_OR_RETURN(requested.m, ParseRows(arguments.m));
  if (requested.problems.size() > kMaxProblems) {
    return absl::InvalidArgumentError(
        absl::StrCat(requested.problems.size(), " shapes are too many: allowed are ", kMaxProblems));
  }
  return requested;
}

}  // namespace qgemm
