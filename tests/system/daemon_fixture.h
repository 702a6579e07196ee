#ifndef QGEMM_TESTS_SYSTEM_DAEMON_FIXTURE_H_
#define QGEMM_TESTS_SYSTEM_DAEMON_FIXTURE_H_

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "tests/fakes/int4_problem.h"
#include "tests/system/daemon_process.h"

namespace qgemm {

inline v1::TuneRequest RequestFor(const v1::Problem& problem, std::vector<int64_t> m, v1::Effort effort) {
  v1::TuneRequest request;
  *request.add_problems() = problem;
  for (const int64_t rows : m) request.add_m(rows);
  request.set_effort(effort);
  return request;
}

struct TuneAnswer {
  grpc::Status status;
  std::vector<v1::TuneResult> results;
  v1::TuneSummary summary;
};

// A folder, a socket and a qgemmd on them.
class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemmd-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    socket_ = folder_ + "/qgemm.sock";
  }
  ~DaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(folder_);
  }

  // The usual flags, with a simulated H200 when `gpu`.
  std::vector<std::string> Flags(bool gpu) const {
    std::vector<std::string> flags = {"--listen",         "unix:" + socket_, "--data-dir", folder_ + "/data",
                                      "--compile-binary", QGEMM_COMPILE,     "--lock-dir", folder_};
    if (gpu) {
      flags.insert(flags.end(), {"--time-binary", QGEMM_TIME_SIMULATED});
    } else {
      flags.insert(flags.end(), {"--device", "none"});
    }
    return flags;
  }

  void Start(bool gpu, const std::vector<std::string>& more = {}) {
    daemon_.reset();
    std::vector<std::string> flags = Flags(gpu);
    flags.insert(flags.end(), more.begin(), more.end());
    daemon_ = std::make_unique<DaemonProcess>(QGEMMD, flags);
    const std::optional<std::string> ready = daemon_->AwaitLine("ready: listening on");
    ASSERT_TRUE(ready.has_value()) << daemon_->Output();
    Connect();
  }

  void Connect() {
    grpc::ChannelArguments arguments;
    // Each daemon needs a new connection, not the last one's back-off.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel("unix:" + socket_, grpc::InsecureChannelCredentials(), arguments);
    tuner_ = v1::Tuner::NewStub(channel_);
  }

  bool CanCompile() { return !absl::StrContains(daemon_->Output(), "nothing can be compiled"); }

  TuneAnswer Tune(const v1::TuneRequest& request) {
    TuneAnswer answer;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
    const auto reader = tuner_->Tune(&context, request);
    v1::TuneEvent event;
    while (reader->Read(&event)) {
      if (event.has_result()) answer.results.push_back(event.result());
      if (event.has_summary()) answer.summary = event.summary();
    }
    answer.status = reader->Finish();
    // They come in the order in which they were made.
    std::sort(answer.results.begin(), answer.results.end(), [](const auto& a, const auto& b) {
      return std::pair(a.problem_index(), a.m_bucket()) < std::pair(b.problem_index(), b.m_bucket());
    });
    return answer;
  }

  // What a second qgemmd with these flags says and how it ends.
  std::pair<int, std::string> RunToTheEnd(const std::vector<std::string>& flags) {
    DaemonProcess process(QGEMMD, flags);
    const std::optional<int> code = process.AwaitExit();
    return {code.value_or(-1), process.Output()};
  }

  std::string folder_;
  std::string socket_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Tuner::Stub> tuner_;
};

#define SKIP_WITHOUT_NVRTC() \
  if (!CanCompile()) GTEST_SKIP() << "no compile worker can be started here: " << daemon_->Output()

}  // namespace qgemm

#endif  // QGEMM_TESTS_SYSTEM_DAEMON_FIXTURE_H_
