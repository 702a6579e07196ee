#include "server/similar_picks.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/cost_model.h"
#include "kernels/launch_spec.h"
#include "server/launch_spec_proto.h"
#include "server/proto_convert.h"

namespace qgemm {
namespace {

constexpr int kPatience = 20;  // times the duration of the last reading

std::optional<ShapeHint> HintOf(const v1::Pick& pick) {
  const absl::StatusOr<Problem> problem = ProblemFromProto(pick.problem());
  const absl::StatusOr<KernelConfig> config = ParseConfig(pick.config());
  if (!problem.ok() || !config.ok()) return std::nullopt;
  ShapeHint hint{*problem, pick.m_bucket(), {*config, pick.split_k(), Reduction::kNone}};
  for (const Reduction reduction : {Reduction::kWorkspace, Reduction::kCluster}) {
    if (ReductionToProto(reduction) == pick.reduction()) hint.candidate.reduction = reduction;
  }
  return hint;
}

v1::Pick MakeSimilar(const v1::Pick& from, const Problem& problem, int64_t m, const TuningTarget& target,
                     const Candidate& candidate, ShapeDistance distance, double value) {
  v1::Pick pick;
  const int m_bucket = BucketFor(m);
  *pick.mutable_problem() = ProblemToProto(problem);
  pick.set_m_bucket(m_bucket);
  pick.set_target(target.name);
  *pick.mutable_device() = from.device();
  pick.set_source(v1::PICK_SOURCE_SIMILAR);
  pick.set_effort(from.effort());
  pick.set_config(from.config());
  pick.set_split_k(candidate.split_k);
  pick.set_reduction(ReductionToProto(candidate.reduction));
  pick.set_predicted_us(PredictCost(candidate, problem, m_bucket, target.profile).total_us);
  pick.set_confidence(v1::CONFIDENCE_LOW);
  *pick.mutable_kernel() = from.kernel();
  *pick.mutable_launch() = LaunchSpecToProto(MakeLaunchSpec(candidate, problem, m_bucket));
  pick.set_driver_version(from.driver_version());
  pick.set_tuned_at_unix_ms(from.tuned_at_unix_ms());
  pick.set_producer(from.producer());
  v1::SimilarTo& origin = *pick.mutable_similar_to();
  origin.set_n(from.problem().n());
  origin.set_k(from.problem().k());
  origin.set_m_bucket(from.m_bucket());
  origin.set_distance(std::string(ShapeDistanceName(distance)));
  origin.set_value(value);
  origin.set_time_us(from.time_us());
  return pick;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SimilarPicks::Snapshot>> SimilarPicks::Read() {
  MutexLock lock(mu_);
  const TimePoint start = clock_.Now();
  if (snapshot_ != nullptr && start < next_read_) return snapshot_;
  auto snapshot = std::make_shared<Snapshot>();
  QGEMM_RETURN_IF_ERROR(store_.VisitPicks([&](const internal::PickRecord& record) {
    if (record.pick().source() != v1::PICK_SOURCE_MEASURED) return true;
    std::optional<ShapeHint> hint = HintOf(record.pick());
    if (!hint.has_value()) return true;
    snapshot->records.push_back(record);
    snapshot->hints.push_back(*hint);
    return true;
  }));
  snapshot_ = std::move(snapshot);
  const TimePoint now = clock_.Now();
  next_read_ = now + kPatience * (now - start);
  return snapshot_;
}

std::vector<size_t> SimilarPicks::OfTarget(const Snapshot& snapshot, const TuningTarget& target,
                                           std::vector<ShapeHint>* hints) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < snapshot.records.size(); ++i) {
    const v1::Pick& pick = snapshot.records[i].pick();
    // Without the GPU, picks that were brought from one of the target's kind serve.
    const bool same = target.measured ? pick.device().SerializeAsString() == target.device.SerializeAsString()
                                      : pick.target() == target.name;
    if (!same || pick.kernel().arch() != target.profile.arch) continue;
    indices.push_back(i);
    hints->push_back(snapshot.hints[i]);
  }
  return indices;
}

absl::StatusOr<std::optional<v1::Pick>> SimilarPicks::Find(const Problem& problem, int64_t m,
                                                           const TuningTarget& target,
                                                           ShapeDistance distance) {
  QGEMM_ASSIGN_OR_RETURN(const std::shared_ptr<const Snapshot> snapshot, Read());
  std::vector<ShapeHint> hints;
  const std::vector<size_t> indices = OfTarget(*snapshot, target, &hints);
  for (const SimilarHint& near :
       RankSimilar(problem, m, target.profile, hints, distance, hints.size(), SplitChoice::kFitted)) {
    const internal::PickRecord& record = snapshot->records[indices[near.index]];
    const absl::Status kernel = store_.GetKernel(record.kernel_key()).status();
    if (absl::IsNotFound(kernel)) continue;  // corrupt or evicted
    QGEMM_RETURN_IF_ERROR(kernel);
    return std::optional<v1::Pick>(
        MakeSimilar(record.pick(), problem, m, target, near.candidate, distance, near.distance));
  }
  return std::optional<v1::Pick>();
}

absl::StatusOr<std::vector<Candidate>> SimilarPicks::Seeds(const Problem& problem, int m_bucket,
                                                           const TuningTarget& target, size_t limit) {
  QGEMM_ASSIGN_OR_RETURN(const std::shared_ptr<const Snapshot> snapshot, Read());
  std::vector<ShapeHint> hints;
  OfTarget(*snapshot, target, &hints);
  std::vector<Candidate> seeds;
  for (const SimilarHint& near :
       RankSimilar(problem, m_bucket, target.profile, hints, ShapeDistance::kWeighted, limit)) {
    seeds.push_back(near.candidate);
  }
  return seeds;
}

}  // namespace qgemm
