#include "tests/fakes/fake_compiler.h"

#include <algorithm>
#include <utility>

namespace qgemm {

class FakeCompiler::Ticket : public CompileTicket {
 public:
  Ticket(FakeCompiler& compiler, std::shared_ptr<Job> job) : compiler_(compiler), job_(std::move(job)) {}
  ~Ticket() override { Cancel(); }
  void Cancel() override {
    MutexLock lock(compiler_.mu_);
    // As the contract says: after Cancel() the callback does not run, not even its tail.
    while (job_->answered && !job_->done_returned && job_->answering != std::this_thread::get_id()) {
      compiler_.changed_.Wait(compiler_.mu_);
    }
    if (job_->answered || job_->cancelled) return;
    job_->cancelled = true;
    ++compiler_.cancelled_;
    auto& held = compiler_.held_;
    held.erase(std::remove(held.begin(), held.end(), job_), held.end());
    compiler_.changed_.NotifyAll();
  }
  void AlsoFor(const Flow& /*flow*/) override {}

 private:
  FakeCompiler& compiler_;
  const std::shared_ptr<Job> job_;
};

void FakeCompiler::SetBehaviour(Behaviour behaviour) {
  MutexLock lock(mu_);
  behaviour_ = std::move(behaviour);
}

void FakeCompiler::SetUnavailable(absl::Status status) {
  MutexLock lock(mu_);
  unavailable_ = std::move(status);
}

void FakeCompiler::SetToolchain(std::string toolchain) {
  MutexLock lock(mu_);
  toolchain_ = std::move(toolchain);
}

void FakeCompiler::Hold() {
  MutexLock lock(mu_);
  holding_ = true;
}

void FakeCompiler::Release() {
  {
    MutexLock lock(mu_);
    holding_ = false;
  }
  ReleaseSome(1 << 30);
}

void FakeCompiler::ReleaseSome(int count) {
  MutexLock lock(mu_);
  for (; count > 0 && !held_.empty(); --count) {
    executor_.Schedule([this, job = std::move(held_.front())] { Answer(job); });
    held_.pop_front();
  }
}

void FakeCompiler::AwaitHeld(int count) {
  MutexLock lock(mu_);
  while (static_cast<int>(held_.size()) < count) changed_.Wait(mu_);
}

void FakeCompiler::AwaitNoneHeld() {
  MutexLock lock(mu_);
  while (!held_.empty()) changed_.Wait(mu_);
}

int FakeCompiler::compiles() const {
  MutexLock lock(mu_);
  return compiles_;
}

int FakeCompiler::cancelled() const {
  MutexLock lock(mu_);
  return cancelled_;
}

std::map<std::string, int> FakeCompiler::compiles_by_name() const {
  MutexLock lock(mu_);
  return compiles_by_name_;
}

std::unique_ptr<CompileTicket> FakeCompiler::Compile(CompileTask task, Done done) {
  auto job = std::make_shared<Job>();
  job->task = std::move(task);
  job->done = std::move(done);
  MutexLock lock(mu_);
  if (holding_) {
    held_.push_back(job);
    changed_.NotifyAll();
  } else {
    executor_.Schedule([this, job] { Answer(job); });
  }
  return std::make_unique<Ticket>(*this, job);
}

void FakeCompiler::Answer(const std::shared_ptr<Job>& job) {
  absl::StatusOr<internal::CompileReply> reply = Reply(job->task);
  Behaviour behaviour;
  {
    MutexLock lock(mu_);
    if (job->cancelled) return;
    job->answered = true;
    job->answering = std::this_thread::get_id();
    ++compiles_;
    ++compiles_by_name_[job->task.source.name + " " + job->task.arch];
    behaviour = behaviour_;
    if (!unavailable_.ok()) reply = unavailable_;
  }
  if (reply.ok() && behaviour) reply = behaviour(job->task);
  job->done(std::move(reply));
  MutexLock lock(mu_);
  job->done_returned = true;
  changed_.NotifyAll();
}

absl::StatusOr<std::string> FakeCompiler::Toolchain() {
  MutexLock lock(mu_);
  if (!unavailable_.ok()) return unavailable_;
  return toolchain_;
}

absl::Status FakeCompiler::SupportsArch(absl::string_view arch) {
  if (arch == "sm_999") return absl::InvalidArgumentError("arch is sm_999; allowed: sm_80, sm_90a");
  return absl::OkStatus();
}

internal::CompileReply FakeCompiler::Reply(const CompileTask& task, int spill_bytes) {
  internal::CompileReply reply;
  reply.set_cubin("cubin of " + task.source.name + " " + task.arch);
  reply.set_ptx("ptx of " + task.source.name);
  reply.mutable_report()->set_registers(64);
  reply.mutable_report()->set_spill_store_bytes(spill_bytes);
  reply.mutable_report()->set_spill_load_bytes(spill_bytes);
  reply.set_compile_ms(100);
  return reply;
}

}  // namespace qgemm
