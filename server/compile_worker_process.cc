#include "server/compile_worker_process.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/fd_io.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

constexpr int kProtocolVersion = 1;
constexpr auto kGiveUpInterval = std::chrono::milliseconds(200);
// How long a process whose channel has ended gets to end by itself before it is killed: its exit status tells
// more than our own signal would.
constexpr auto kExitPatience = std::chrono::seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<CompileWorkerProcess>> CompileWorkerProcess::Start(Spawner* spawner,
                                                                                  const SpawnOptions& program,
                                                                                  TimePoint deadline,
                                                                                  const GiveUp& give_up) {
  auto child = spawner->Spawn(program);
  if (!child.ok()) return absl::UnavailableError(child.status().message());
  UniqueFd channel = (*child)->TakeChannel();
  std::unique_ptr<CompileWorkerProcess> worker(
      new CompileWorkerProcess(*std::move(child), std::move(channel)));
  const auto unavailable = [&program](absl::string_view reason) {
    return absl::UnavailableError(absl::StrCat("compile worker '", program.path, "' ", reason));
  };
  const absl::Status read = worker->Read(&worker->hello_, deadline, give_up);
  if (absl::IsCancelled(read)) return read;
  if (absl::IsDeadlineExceeded(read)) return unavailable("did not report in time");
  if (!read.ok()) return unavailable(worker->EndAndDescribe(read));
  if (!worker->hello_.error().empty()) {
    return unavailable(absl::StrCat("cannot work: ", worker->hello_.error()));
  }
  if (worker->hello_.protocol_version() != kProtocolVersion) {
    return unavailable(absl::StrCat("speaks protocol ", worker->hello_.protocol_version(), ", not ",
                                    kProtocolVersion, ": install programs of one version"));
  }
  return worker;
}

absl::StatusOr<internal::CompileReply> CompileWorkerProcess::Compile(const internal::CompileRequest& request,
                                                                     TimePoint deadline,
                                                                     const GiveUp& give_up) {
  ++num_compiles_;
  const absl::Status written = channel_.Write(request, deadline);
  if (absl::IsInvalidArgument(written)) return written;
  // Any other failure to write shows again when reading.
  internal::CompileReply reply;
  const absl::Status read = Read(&reply, deadline, give_up);
  if (absl::IsDeadlineExceeded(read) || absl::IsCancelled(read)) {
    child_->KillGroup();
    return absl::Status(read.code(),
                        absl::StrCat("compiling ", request.name(),
                                     absl::IsCancelled(read) ? " was withdrawn" : " took too long"));
  }
  if (!read.ok()) {
    bool from_outside = false;
    const std::string how = EndAndDescribe(read, &from_outside);
    return absl::Status(from_outside ? absl::StatusCode::kAborted : absl::StatusCode::kInternal,
                        absl::StrCat("the compile worker ", how, " while compiling ", request.name()));
  }
  if (reply.id() != request.id()) {
    child_->KillGroup();
    return absl::InternalError(absl::StrCat("the compile worker answered request ", reply.id(),
                                            " instead of ", request.id(), " while compiling ",
                                            request.name()));
  }
  return reply;
}

absl::Status CompileWorkerProcess::Read(google::protobuf::MessageLite* message, TimePoint deadline,
                                        const GiveUp& give_up) {
  while (true) {
    absl::Status read = channel_.Read(message, std::min(deadline, RealClock().Now() + kGiveUpInterval));
    if (!absl::IsDeadlineExceeded(read) || RealClock().Now() >= deadline) return read;
    if (give_up()) return absl::CancelledError();
  }
}

std::string CompileWorkerProcess::EndAndDescribe(const absl::Status& stream_error, bool* from_outside) {
  // Nonsense on the channel comes from a process that may well run on.
  const bool closed = absl::IsUnavailable(stream_error);
  auto ended = child_->Wait(RealClock().Now() + (closed ? Duration(kExitPatience) : Duration::zero()));
  if (!ended.ok()) {
    child_->KillGroup();
    return absl::StrCat("broke its channel (", stream_error.message(), ")");
  }
  if (from_outside != nullptr) {
    *from_outside = ended->signaled && (ended->signal == SIGKILL || ended->signal == SIGTERM);
  }
  if (ended->signaled) return absl::StrCat("was ", ended->Describe());
  return absl::StrCat("ended with ", ended->Describe());
}

bool CompileWorkerProcess::IsAlive() const {
  return !PollFd(child_->pidfd(), POLLIN, RealClock().Now()).ok();
}

int64_t CompileWorkerProcess::ResidentBytes() const {
  std::ifstream statm(absl::StrCat("/proc/", child_->pid(), "/statm"));
  int64_t size_pages = 0;
  int64_t resident_pages = 0;
  statm >> size_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

}  // namespace qgemm
