// Tuner::Explain: why a lookup is answered as it is.
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "server/kernel_key.h"
#include "server/pick_choice.h"
#include "server/proto_convert.h"
#include "server/tuner.h"

namespace qgemm {
namespace {

std::string DeviceText(const v1::DeviceClass& device) {
  return absl::StrCat(device.product_name(), ", ", device.compute_major(), ".", device.compute_minor(), ", ",
                      device.sm_count(), " SMs, ", device.memory_gib(), " GiB");
}

// Collects the fields in which a stored pick's key differs from what a lookup wants.
class Differences {
 public:
  void Compare(const std::string& field, const std::string& wanted, const std::string& stored) {
    if (wanted == stored) return;
    v1::KeyDifference difference;
    difference.set_field(field);
    difference.set_wanted(wanted);
    difference.set_stored(stored);
    found_.push_back(std::move(difference));
  }
  const std::vector<v1::KeyDifference>& found() const { return found_; }

 private:
  std::vector<v1::KeyDifference> found_;
};

std::string EpilogueText(const KernelSignature& signature) {
  // The signature's name without its format and types.
  KernelSignature plain = signature;
  plain.epilogue = {};
  const std::string with = SignatureName(signature);
  const std::string without = SignatureName(plain);
  return with.size() > without.size() && with.compare(0, without.size(), without) == 0
             ? with.substr(without.size() + 1)
         : with == without ? "none"
                           : with;
}

std::vector<v1::KeyDifference> KeyDifferences(const Problem& problem, int m_bucket,
                                              const TuningTarget& target, const v1::Pick& pick) {
  Differences differences;
  const absl::StatusOr<Problem> stored = ProblemFromProto(pick.problem());
  if (!stored.ok()) {
    differences.Compare("format", WeightFormatName(problem.signature.format), "of another version of qgemm");
    return differences.found();
  }
  differences.Compare("format", WeightFormatName(problem.signature.format),
                      WeightFormatName(stored->signature.format));
  differences.Compare("act", std::string(ScalarTypeName(problem.signature.act)),
                      std::string(ScalarTypeName(stored->signature.act)));
  differences.Compare("act_quantization",
                      std::string(ActivationQuantizationName(problem.signature.quantization)),
                      std::string(ActivationQuantizationName(stored->signature.quantization)));
  differences.Compare("out", std::string(ScalarTypeName(problem.signature.out)),
                      std::string(ScalarTypeName(stored->signature.out)));
  differences.Compare("epilogue", EpilogueText(problem.signature), EpilogueText(stored->signature));
  differences.Compare("n", absl::StrCat(problem.n), absl::StrCat(stored->n));
  differences.Compare("k", absl::StrCat(problem.k), absl::StrCat(stored->k));
  differences.Compare("m_bucket", absl::StrCat(m_bucket), absl::StrCat(pick.m_bucket()));
  differences.Compare("arch", target.profile.arch, pick.kernel().arch());
  if (target.measured && pick.source() == v1::PICK_SOURCE_MEASURED) {
    differences.Compare("device", DeviceText(target.device), DeviceText(pick.device()));
  } else {
    differences.Compare("target", target.name, pick.target());
    differences.Compare("source", target.measured ? "MEASURED" : "MODEL",
                        pick.source() == v1::PICK_SOURCE_MEASURED ? "MEASURED" : "MODEL");
  }
  return differences.found();
}

// Of the asked shape to a stored pick's: the sum of the factors between them, in powers of two.
double ShapeDistanceTo(const Problem& problem, int m_bucket, const v1::Pick& pick) {
  const auto octaves = [](double a, double b) { return std::fabs(std::log2(a / std::max(b, 1.0))); };
  return octaves(static_cast<double>(problem.n), static_cast<double>(pick.problem().n())) +
         octaves(static_cast<double>(problem.k), static_cast<double>(pick.problem().k())) +
         octaves(m_bucket, pick.m_bucket());
}

std::string FieldsOf(const std::vector<v1::KeyDifference>& differences) {
  return absl::StrJoin(differences, ", ", [](std::string* out, const v1::KeyDifference& difference) {
    absl::StrAppend(out, difference.field(), " (wanted ", difference.wanted(), ", stored ",
                    difference.stored(), ")");
  });
}

v1::ExplainedCandidate Explained(const PlannedCandidate& planned, const internal::TimingRecord* record,
                                 const TuningTarget& target) {
  v1::ExplainedCandidate explained;
  explained.set_candidate(CandidateName(planned.candidate));
  explained.set_predicted_us(planned.predicted_us);
  if (record == nullptr) return explained;
  explained.set_driver_changed(record->driver_version() != target.driver_version);
  if (record->failure() != internal::CANDIDATE_FAILURE_NONE) {
    explained.set_rejected(absl::StrCat(FailureText(record->failure()), ": ", record->reason()));
    return explained;
  }
  explained.set_relative_error(record->relative_error());
  const internal::Timing& timing = record->timing();
  if (timing.samples() == 0) return explained;
  explained.set_time_us(timing.median_us());
  explained.set_center_us(ComparedUs(timing));
  explained.set_error_us(timing.error_us());
  explained.set_samples(timing.samples());
  explained.set_low_confidence(timing.low_confidence());
  return explained;
}

}  // namespace

absl::Status Tuner::ExplainPick(const Problem& problem, int m_bucket, const TuningTarget& target,
                                v1::ExplainResponse* response) {
  const v1::Effort least = target.measured ? v1::EFFORT_QUICK : v1::EFFORT_MODEL_ONLY;
  const std::string toolchain = known_toolchain();
  QGEMM_ASSIGN_OR_RETURN(std::optional<StoredPick> found,
                         lookup_.Find(problem, m_bucket, target, least, toolchain));
  if (found.has_value()) {
    const v1::Pick& pick = found->record.pick();
    Differences changed;
    if (found->driver_changed) {
      changed.Compare("driver", target.driver_version, pick.driver_version());
    }
    if (found->kernel_outdated) {
      changed.Compare("toolchain", toolchain, pick.kernel().toolchain());
      if (changed.found().size() == (found->driver_changed ? 1U : 0U)) {
        changed.Compare("source", "today's device code, options and layout", "another version of them");
      }
    }
    for (const v1::KeyDifference& difference : changed.found()) *response->add_differences() = difference;
    response->set_stale(found->stale());
    response->set_answer(
        found->stale() ? absl::StrCat("stale hit, changed since it was tuned: ", FieldsOf(changed.found()))
                       : "hit");
    *response->mutable_pick() = std::move(*found->record.mutable_pick());
    return absl::OkStatus();
  }
  // The stored pick that differs in the fewest fields; of several, the one that is nearest in shape.
  std::vector<v1::KeyDifference> nearest;
  double nearest_distance = 0;
  bool any = false;
  QGEMM_RETURN_IF_ERROR(store_.VisitPicks([&](const internal::PickRecord& record) {
    std::vector<v1::KeyDifference> differences = KeyDifferences(problem, m_bucket, target, record.pick());
    const double distance = ShapeDistanceTo(problem, m_bucket, record.pick());
    if (!any ||
        std::make_pair(differences.size(), distance) < std::make_pair(nearest.size(), nearest_distance)) {
      nearest = std::move(differences);
      nearest_distance = distance;
    }
    any = true;
    return true;
  }));
  for (const v1::KeyDifference& difference : nearest) *response->add_differences() = difference;
  response->set_answer(any ? absl::StrCat("miss; the nearest stored pick differs in ", FieldsOf(nearest))
                           : "miss; the store holds no pick");
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainResponse> Tuner::Explain(const v1::ExplainRequest& request) {
  QGEMM_ASSIGN_OR_RETURN(const Problem problem, ProblemFromProto(request.problem()));
  QGEMM_RETURN_IF_ERROR(ValidateRows(request.m()));
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget target, targets_.Resolve(request.target()));
  const int m_bucket = BucketFor(request.m());
  v1::ExplainResponse response;
  QGEMM_RETURN_IF_ERROR(ExplainPick(problem, m_bucket, target, &response));
  const std::string toolchain = known_toolchain();
  if (toolchain.empty()) return response;  // no key of a kernel can be known

  const std::vector<PlannedCandidate> legal = LegalByPrediction(problem, m_bucket, target.profile);
  std::vector<std::string> timing_keys;
  std::map<std::string, std::string> config_by_quarantine;
  for (const PlannedCandidate& planned : legal) {
    const std::string kernel_key =
        supply_.CurrentKey(planned.candidate.config, problem.signature, target.profile.arch, toolchain);
    timing_keys.push_back(TimingKeyFor(problem, m_bucket, target, planned.candidate, kernel_key));
    config_by_quarantine[QuarantineKey(kernel_key)] = ConfigName(planned.candidate.config);
  }
  QGEMM_ASSIGN_OR_RETURN(const auto records, store_.GetTimings(timing_keys));
  for (size_t i = 0; i < legal.size(); ++i) {
    v1::ExplainedCandidate explained =
        Explained(legal[i], records[i].has_value() ? &*records[i] : nullptr, target);
    explained.set_picked(response.has_pick() &&
                         ConfigName(legal[i].candidate.config) == response.pick().config() &&
                         legal[i].candidate.split_k == response.pick().split_k() &&
                         ReductionToProto(legal[i].candidate.reduction) == response.pick().reduction());
    *response.add_candidates() = std::move(explained);
  }
  const auto rank = [](const v1::ExplainedCandidate& candidate) {
    const int group = candidate.has_center_us() ? 0 : candidate.rejected().empty() ? 1 : 2;
    return std::make_tuple(group,
                           candidate.has_center_us() ? candidate.center_us() : candidate.predicted_us());
  };
  std::stable_sort(response.mutable_candidates()->begin(), response.mutable_candidates()->end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });

  std::vector<std::string> quarantine_keys;
  quarantine_keys.reserve(config_by_quarantine.size());
  for (const auto& [key, config] : config_by_quarantine) quarantine_keys.push_back(key);
  QGEMM_ASSIGN_OR_RETURN(const auto quarantined, store_.GetTimings(quarantine_keys));
  for (size_t i = 0; i < quarantined.size(); ++i) {
    if (!quarantined[i].has_value()) continue;
    v1::QuarantinedKernel& kernel = *response.add_quarantined();
    kernel.set_config(config_by_quarantine[quarantine_keys[i]]);
    kernel.set_reason(quarantined[i]->reason());
    kernel.set_candidate(quarantined[i]->candidate());
    kernel.set_unix_ms(quarantined[i]->unix_ms());
  }
  return response;
}

}  // namespace qgemm
