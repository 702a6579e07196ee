#include "server/stale_picks.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "server/proto_convert.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kAtOnce = 2;
// More are found when the daemon starts again.
constexpr size_t kMost = 100'000;
constexpr char kClient[] = "qgemmd";

}  // namespace

struct StalePicks::State {
  Mutex mu;
  bool stopped QGEMM_GUARDED_BY(mu) = false;
  std::deque<Pick> left QGEMM_GUARDED_BY(mu);
  std::set<int> in_work QGEMM_GUARDED_BY(mu);
  int next_number QGEMM_GUARDED_BY(mu) = 0;
  std::map<int, JobBoard::Joined> joined QGEMM_GUARDED_BY(mu);  // of those in work, once they are
};

StalePicks::StalePicks(CacheStore& store, JobBoard& board,
                       std::function<bool(const internal::PickRecord&)> is_stale, Join join)
    : state_(std::make_shared<State>()),
      store_(store),
      board_(board),
      is_stale_(std::move(is_stale)),
      join_(std::move(join)) {}

absl::Status StalePicks::Find() {
  std::deque<Pick> found;
  QGEMM_RETURN_IF_ERROR(store_.VisitPicks([&](const internal::PickRecord& record) {
    if (!is_stale_(record)) return true;
    absl::StatusOr<Problem> problem = ProblemFromProto(record.pick().problem());
    if (problem.ok())
      found.push_back({*std::move(problem), record.pick().m_bucket(), record.pick().effort()});
    return found.size() < kMost;
  }));
  if (!found.empty()) {
    spdlog::info("{} picks were timed under another driver: they are timed again when nothing else is to do",
                 found.size());
  }
  MutexLock lock(state_->mu);
  state_->left = std::move(found);
  return absl::OkStatus();
}

void StalePicks::Advance() {
  while (true) {
    Pick next;
    int number = 0;
    {
      MutexLock lock(state_->mu);
      if (state_->stopped || state_->left.empty() || state_->in_work.size() >= kAtOnce) return;
      next = state_->left.front();
      state_->left.pop_front();
      number = state_->next_number++;
      state_->in_work.insert(number);
    }
    PickWaiter waiter;
    waiter.flow = {kClient, WorkClass::kBackground, 0};
    waiter.done = [state = state_, number, next](const std::shared_ptr<PickJob>& job) {
      MutexLock lock(state->mu);
      state->in_work.erase(number);
      state->joined.erase(number);
      // No worker or no GPU: later. Anything else would fail again.
      if (absl::IsUnavailable(job->shared.status)) state->left.push_back(next);
      if (!state->stopped && state->left.empty() && state->in_work.empty()) {
        spdlog::info("the last pick of another driver was timed again");
      }
    };
    const absl::StatusOr<JobBoard::Joined> joined = join_(next, std::move(waiter));
    MutexLock lock(state_->mu);
    if (!joined.ok()) {
      state_->in_work.erase(number);
      state_->left.push_back(next);
      return;
    }
    if (state_->in_work.count(number) > 0) state_->joined.emplace(number, *joined);
  }
}

void StalePicks::Stop() {
  std::map<int, JobBoard::Joined> joined;
  {
    MutexLock lock(state_->mu);
    state_->stopped = true;
    joined = std::exchange(state_->joined, {});
  }
  for (const auto& [number, one] : joined) board_.Leave(one.job, one.waiter);
}

size_t StalePicks::left() {
  MutexLock lock(state_->mu);
  return state_->left.size() + state_->in_work.size();
}

}  // namespace qgemm
