#ifndef QGEMM_CLIENT_QGEMMCTL_PROBLEM_ARGUMENTS_H_
#define QGEMM_CLIENT_QGEMMCTL_PROBLEM_ARGUMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/problem.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}

namespace qgemm {

// What the command line of `tune` and `lookup` says about the problems, as text.
struct ProblemArguments {
  std::string format = "int4";
  std::string group_size = "128";
  std::string act = "bf16";
  std::string act_quant = "none";
  std::string out;  // empty: the activation type
  std::string zero = "none";
  std::string scale;  // empty: the activation type, fp16 with two levels
  std::string scale_levels = "1";
  bool bias = false;
  std::string activation = "none";
  bool gated = false;
  bool residual = false;
  bool fuse_gate_up = false;        // a model's gate_up_proj is one gated GEMM with the model's activation
  std::vector<std::string> shapes;  // NxK
  std::string grid;                 // N,N,...xK,K,...
  std::string model_path;
  std::string tp = "1";  // devices that share the model's layers
  std::vector<std::string> m;
  std::string target;

  void AddTo(CLI::App& command);
};

// A problem with where it comes from; layers, variant and count are empty for a shape of the command line.
struct RequestedProblem {
  Problem problem;
  std::string layers;   // "k_proj,v_proj"
  std::string variant;  // "separate", "fused", "both"
  int64_t count = 0;    // GEMMs of the model that are this problem
};

struct RequestedProblems {
  std::vector<RequestedProblem> problems;  // the shapes first, then the model's; no problem twice
  std::vector<int64_t> m;                  // ascending, no bucket twice
};

// InvalidArgument names the option or field, its value and what is allowed, in the daemon's words where it
// checks the same.
[[nodiscard]] absl::StatusOr<RequestedProblems> ResolveProblems(const ProblemArguments& arguments);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_PROBLEM_ARGUMENTS_H_
