#ifndef QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_
#define QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/bundle/manifest.h"
#include "client/qgemm/client.h"
#include "client/qgemmctl/problem_arguments.h"

namespace qgemm {

struct BundleCreateArguments {
  ProblemArguments problems;
  std::string output;                // directory, or *.tar
  std::vector<std::string> methods;  // NAME=M or NAME=dynamic
  std::string weights;               // canonical weights in safetensors; empty: the bundle has none
  std::string picks;                 // a bundle whose picks and kernels are taken; empty: the daemon's
  bool no_tune = false;              // refuse what is not tuned
};

struct CreatedBundle {
  int layers = 0;  // of each method
  int picks = 0;
  int kernels = 0;
  int64_t weight_bytes = 0;
  int64_t compiles = 0;
  int64_t timings = 0;
};

// Makes the bundle. InvalidArgument: the command line or the weights must change; NotFound names what is not
// tuned or not among the picks of the old bundle; else what the daemon or the disk answers.
[[nodiscard]] absl::StatusOr<CreatedBundle> CreateBundle(const BundleCreateArguments& arguments,
                                                         Client& client);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_BUNDLE_CREATE_H_
