#include "server/job_journal.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cache/crash_point.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::JOB_STATE_DONE || job.state() == v1::JOB_STATE_FAILED ||
         job.state() == v1::JOB_STATE_CANCELLED;
}

}  // namespace

JobJournal::JobJournal(CacheStore& store, Clock& clock, HistoryLimits limits)
    : store_(store), clock_(clock), limits_(limits) {}

absl::StatusOr<std::vector<internal::JobRecord>> JobJournal::Open() {
  std::vector<internal::JobRecord> unfinished;
  std::map<Key, v1::Job> history;
  QGEMM_RETURN_IF_ERROR(store_.VisitJobs([&](const internal::JobRecord& record) {
    const v1::Job& job = record.job();
    if (HasEnded(job)) {
      history.emplace(Key(job.accepted_unix_ms(), job.job_id()), job);
    } else {
      unfinished.push_back(record);
    }
    return true;
  }));
  std::sort(unfinished.begin(), unfinished.end(), [](const auto& a, const auto& b) {
    return a.job().accepted_unix_ms() < b.job().accepted_unix_ms();
  });
  {
    MutexLock lock(mu_);
    history_ = std::move(history);
  }
  Trim();
  return unfinished;
}

absl::Status JobJournal::Accept(const internal::JobRecord& record) {
  CrashPoint("job-before-accept");
  QGEMM_RETURN_IF_ERROR(store_.PutJob(record));
  CrashPoint("job-after-accept");
  return absl::OkStatus();
}

absl::Status JobJournal::Finish(const internal::JobRecord& record) {
  CrashPoint("job-before-finish");
  absl::Status written = store_.PutJob(record);
  CrashPoint("job-after-finish");
  if (!written.ok()) {
    spdlog::error("the end of job {} was not written: {}", record.job().job_id(), written.ToString());
  }
  {
    MutexLock lock(mu_);
    history_[Key(record.job().accepted_unix_ms(), record.job().job_id())] = record.job();
  }
  Trim();
  return written;
}

absl::StatusOr<internal::JobRecord> JobJournal::Read(absl::string_view job_id) {
  const absl::Status unknown =
      absl::NotFoundError(absl::StrCat("job \"", absl::CEscape(job_id.substr(0, 80)),
                                       "\" is not known: it never was, or it ended so long "
                                       "ago that it was forgotten"));
  if (job_id.empty() || job_id.size() > 64) return unknown;
  absl::StatusOr<internal::JobRecord> record = store_.GetJob(job_id);
  if (absl::IsNotFound(record.status())) return unknown;
  return record;
}

std::vector<v1::Job> JobJournal::History() {
  std::vector<v1::Job> jobs;
  MutexLock lock(mu_);
  jobs.reserve(history_.size());
  for (const auto& [key, job] : history_) jobs.push_back(job);
  return jobs;
}

void JobJournal::SetLimits(HistoryLimits limits) {
  {
    MutexLock lock(mu_);
    limits_ = limits;
  }
  Trim();
}

void JobJournal::Trim() {
  std::vector<std::string> dropped;
  {
    MutexLock lock(mu_);
    const int64_t oldest = clock_.WallUnixMs() - limits_.age.count();
    size_t excess = history_.size() - std::min(history_.size(), static_cast<size_t>(limits_.count));
    for (auto entry = history_.begin(); entry != history_.end();) {
      if (excess == 0 && entry->second.finished_unix_ms() >= oldest) {
        ++entry;
        continue;
      }
      excess -= excess > 0 ? 1 : 0;
      dropped.push_back(entry->first.second);
      entry = history_.erase(entry);
    }
  }
  // What is not deleted is found again when the journal is opened.
  const absl::Status deleted = store_.DeleteJobs(dropped);
  if (!deleted.ok()) spdlog::warn("old jobs were not deleted: {}", deleted.ToString());
}

}  // namespace qgemm
