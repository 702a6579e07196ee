#ifndef QGEMM_SERVER_PICK_CHOICE_H_
#define QGEMM_SERVER_PICK_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "qgemm/v1/tuner.pb.h"
#include "server/pick_job.h"

namespace qgemm {

// Times closer than this are a tie: their order does not repeat.
inline constexpr double kTieBand = 0.003;
// Candidates slower than the fastest by more than this are no finalists. Screened times of one tuning are
// taken up to seconds apart, while clocks move.
inline constexpr double kFinalistBand = 0.04;
// Screened candidates this much slower than the fastest get no more than the first few samples.
inline constexpr double kHopelessBand = 0.07;

// What timings are compared by, microseconds: see Timing.center_us; the median of a record without one.
double ComparedUs(const internal::Timing& timing);
// The smallest ComparedUs among good verdicts; infinity when there is none.
double FastestUs(absl::Span<const CandidateState> candidates);

// Indices of the candidates to race against each other: those with a good verdict that may be within
// kFinalistBand of the fastest, at most `limit`; those that tie with the fastest first, by prediction, then
// by time. Empty when none has a good verdict.
std::vector<size_t> ChooseFinalists(absl::Span<const CandidateState> candidates, int limit);

// The index, among `of`, of the pick: the smallest time; within the tie band the smaller predicted time,
// then fewer resources (registers of the block, then shared memory), then candidate order, so that two fresh
// tunings agree. `of` is not empty; its candidates have a good verdict and a ready kernel.
size_t ChooseMeasured(absl::Span<const CandidateState> candidates, absl::Span<const size_t> of,
                      const Problem& problem, int m_bucket);

// The pick of `winner` with the evidence of all candidates: MEASURED when it has a verdict of a measured job,
// else MODEL. `winner` has a ready kernel.
v1::Pick MakePick(const PickJob& job, const CandidateState& winner, int64_t now_unix_ms);

// Failed candidates by kind of failure, most frequent first, at most 16 kinds.
std::vector<v1::Rejection> CountRejections(absl::Span<const CandidateState> candidates);

// One sentence that says why no candidate can be used, with the reasons of CountRejections.
std::string NoCandidateSentence(const PickJob& job, absl::Span<const v1::Rejection> rejections);

}  // namespace qgemm

#endif  // QGEMM_SERVER_PICK_CHOICE_H_
