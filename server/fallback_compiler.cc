#include "server/fallback_compiler.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace qgemm {

// One task, wherever it is compiled. Its callback runs at most once, and not after Cancel() has returned.
class FallbackCompiler::Job {
 public:
  Job(CompileTask task, Done done) : task_(std::move(task)), done_(std::move(done)) {}

  const CompileTask& task() const { return task_; }
  bool cancelled() {
    MutexLock lock(mu_);
    return cancelled_;
  }

  void Answer(absl::StatusOr<internal::CompileReply> reply) {
    {
      MutexLock lock(mu_);
      if (cancelled_) return;
      answering_ = std::this_thread::get_id();
    }
    done_(std::move(reply));
    MutexLock lock(mu_);
    answering_ = std::thread::id();
    cancelled_ = true;
    changed_.NotifyAll();
  }

  void Cancel() {
    MutexLock lock(mu_);
    while (answering_ != std::thread::id() && answering_ != std::this_thread::get_id()) changed_.Wait(mu_);
    cancelled_ = true;
  }

 private:
  const CompileTask task_;
  const Done done_;
  Mutex mu_;
  CondVar changed_;
  bool cancelled_ QGEMM_GUARDED_BY(mu_) = false;
  std::thread::id answering_ QGEMM_GUARDED_BY(mu_);  // whose callback runs
};

class FallbackCompiler::Ticket : public CompileTicket {
 public:
  Ticket(std::shared_ptr<Job> job, std::unique_ptr<CompileTicket> with_workers)
      : job_(std::move(job)), with_workers_(std::move(with_workers)) {}
  ~Ticket() override { Cancel(); }
  void Cancel() override {
    with_workers_->Cancel();
    job_->Cancel();
  }
  void AlsoFor(const Flow& flow) override { with_workers_->AlsoFor(flow); }

 private:
  const std::shared_ptr<Job> job_;
  const std::unique_ptr<CompileTicket> with_workers_;
};

FallbackCompiler::FallbackCompiler(Compiler& workers, std::function<absl::StatusOr<InProcess>()> load)
    : workers_(workers), load_(std::move(load)) {}

std::unique_ptr<CompileTicket> FallbackCompiler::Compile(CompileTask task, Done done) {
  auto job = std::make_shared<Job>(task, std::move(done));
  std::unique_ptr<CompileTicket> ticket =
      workers_.Compile(std::move(task), [this, job](absl::StatusOr<internal::CompileReply> reply) {
        if (!absl::IsUnavailable(reply.status())) {
          warned_ = false;
          job->Answer(std::move(reply));
          return;
        }
        executor_.Schedule([this, job, why = reply.status()] { CompileHere(job, why); });
      });
  return std::make_unique<Ticket>(std::move(job), std::move(ticket));
}

void FallbackCompiler::CompileHere(const std::shared_ptr<Job>& job, const absl::Status& why) {
  if (job->cancelled()) return;
  const absl::StatusOr<const InProcess*> here = Loaded();
  if (!here.ok()) {
    job->Answer(absl::UnavailableError(absl::StrCat(
        std::string(why.message()), "; and in this process: ", std::string(here.status().message()))));
    return;
  }
  if (!warned_.exchange(true)) {
    spdlog::warn(
        "no compile worker can be started ({}): kernels are compiled inside the daemon, one at a time",
        std::string(why.message()));
  }
  job->Answer((*here)->compile(job->task()));
}

absl::StatusOr<const FallbackCompiler::InProcess*> FallbackCompiler::Loaded() {
  MutexLock lock(mu_);
  if (loaded_ == nullptr) {
    QGEMM_ASSIGN_OR_RETURN(InProcess loaded, load_());
    loaded_ = std::make_unique<const InProcess>(std::move(loaded));
  }
  return loaded_.get();
}

absl::StatusOr<std::string> FallbackCompiler::Toolchain() {
  absl::StatusOr<std::string> toolchain = workers_.Toolchain();
  if (toolchain.ok() || !absl::IsUnavailable(toolchain.status())) return toolchain;
  const absl::StatusOr<const InProcess*> here = Loaded();
  if (here.ok()) return (*here)->toolchain;
  return absl::UnavailableError(
      absl::StrCat(std::string(toolchain.status().message()),
                   "; and in this process: ", std::string(here.status().message())));
}

absl::Status FallbackCompiler::SupportsArch(absl::string_view arch) {
  absl::Status supported = workers_.SupportsArch(arch);
  if (!absl::IsUnavailable(supported)) return supported;
  QGEMM_ASSIGN_OR_RETURN(const InProcess* here, Loaded());
  if (std::find(here->archs.begin(), here->archs.end(), arch) != here->archs.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("arch '", arch, "' is not known to ", here->toolchain,
                                                 ": it compiles for ", absl::StrJoin(here->archs, " ")));
}

}  // namespace qgemm
