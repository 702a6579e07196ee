#ifndef QGEMM_CLIENT_QGEMMCTL_RESULT_H_
#define QGEMM_CLIENT_QGEMMCTL_RESULT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/qgemmctl/problem_arguments.h"
#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// What qgemmctl shows for one (problem, bucket).
struct Result {
  std::string layers;
  std::string variant;
  int64_t count = 0;
  v1::Problem problem;
  int m_bucket = 0;
  std::optional<v1::Pick> pick;
  bool cached = false;
  bool stale = false;
  std::string error;  // why there is no pick
};

// A result for a problem of the request, without a pick yet.
Result ResultFor(const RequestedProblem& requested, int m_bucket);

// The keys that scripts rely on, in their order: layers n k m_bucket format group_size act
// act_quantization out zero scale scale_levels epilogue target source cached stale config split_k reduction
// time_us predicted_us spread_us confidence kernel_sha256 candidates verified timed rejected. group_size is 0
// when channel-wise; epilogue is "none" or some of bias, an activation, gated and residual, as in
// "bias+silu". Without a pick those that need one are null and "error" says why.
nlohmann::ordered_json ResultToJson(const Result& result);

// One line per result, for people; format and target stand above them where all share them.
std::string ResultsTable(const std::vector<Result>& results);

// "5376x4096 int4-g128 bf16 M <= 16", for messages.
std::string ResultName(const Result& result);
// "int4-g128 bf16", with " as int8", " out fp32", " scale fp16x2" (two levels), " zint" and " bias+silu"
// where they are.
std::string SignatureWord(const v1::Problem& problem);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_RESULT_H_
