#ifndef QGEMM_CLIENT_QGEMMCTL_TUNE_RESULTS_H_
#define QGEMM_CLIENT_QGEMMCTL_TUNE_RESULTS_H_

#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/qgemmctl/exit_code.h"
#include "client/qgemmctl/problem_arguments.h"
#include "client/qgemmctl/result.h"
#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// A stream's results, in the order of the request whatever the order of their arrival.
class TuneResults {
 public:
  explicit TuneResults(const RequestedProblems& requested);
  // As the daemon repeats it: without the names of a model's layers.
  explicit TuneResults(const v1::TuneRequest& request);

  void Add(const v1::TuneResult& event);

  // All of them. Internal: some did not arrive.
  absl::StatusOr<std::vector<Result>> Take() &&;

 private:
  void Expect(int problem_index, Result result);

  std::vector<Result> results_;
  std::vector<bool> arrived_;
  std::map<std::pair<int, int>, size_t> index_;  // by problem_index, m_bucket
};

// Results and summary on standard output, reasons for missing picks on standard error. kFailed when a pick is
// missing.
absl::StatusOr<ExitCode> PrintTuneResults(const std::vector<Result>& results, const v1::TuneSummary& summary,
                                          bool json);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_TUNE_RESULTS_H_
