#ifndef QGEMM_SERVER_STALE_PICKS_H_
#define QGEMM_SERVER_STALE_PICKS_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "kernels/problem.h"
#include "qgemm/internal/store.pb.h"
#include "server/job_board.h"

namespace qgemm {

// Times picks again that were timed under another driver version: a few at a time, and only when nobody else
// has work. They are served, marked stale, until then. Thread-safe.
class StalePicks {
 public:
  struct Pick {
    Problem problem;
    int m_bucket = 0;
    v1::Effort effort = v1::EFFORT_BALANCED;
  };
  // Joins the retuning of one of them (JobBoard::Join).
  using Join = std::function<absl::StatusOr<JobBoard::Joined>(const Pick&, PickWaiter)>;

  // `store` and `board` are borrowed. `is_stale` tells which records are to be timed again.
  StalePicks(CacheStore& store, JobBoard& board, std::function<bool(const internal::PickRecord&)> is_stale,
             Join join);

  // Reads the whole store, and forgets what an earlier call found and is not in work.
  absl::Status Find();
  // Keeps a few of them in work.
  void Advance();
  // Withdraws what is in work and begins no other.
  void Stop();

  // Not timed again yet.
  size_t left();

 private:
  struct State;
  const std::shared_ptr<State> state_;  // what callbacks hold

  CacheStore& store_;
  JobBoard& board_;
  const std::function<bool(const internal::PickRecord&)> is_stale_;
  const Join join_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_STALE_PICKS_H_
