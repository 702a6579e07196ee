// What all commands share (usage, errors, exit codes, signals), and the small ones: cache, device, version.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/unique_fd.h"
#include "client/qgemm/client.h"
#include "tests/unit/client/qgemmctl_fixture.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(Qgemmctl, ListsAndStats) {
  v1::CacheEntry kernel;
  kernel.mutable_kernel()->set_sha256(std::string(64, 'a'));
  kernel.mutable_kernel()->set_cubin_bytes(int64_t{1} << 33);
  v1::CacheEntry pick;
  v1::Problem problem;
  problem.set_n(64);
  *pick.mutable_pick() = MakePick(problem, 16);
  daemon_.answers().entries = {kernel, pick};
  daemon_.answers().stats.set_kernels(3);
  EXPECT_EQ(Run({"kernel", "ls", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["kernels"][0]["cubin_bytes"], int64_t{1} << 33);
  EXPECT_EQ(Run({"kernel", "ls"}), 0);
  EXPECT_THAT(out_, HasSubstr(std::string(64, 'a')));
  EXPECT_EQ(Run({"cache", "ls", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["results"].size(), 1u);
  EXPECT_EQ(Run({"cache", "stats", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["kernels"], 3);
}

TEST_F(Qgemmctl, DeviceAndVersion) {
  daemon_.answers().description.set_target("h200");
  daemon_.answers().description.set_state("no GPU");
  daemon_.answers().description.set_server_version("9.8.7");
  EXPECT_EQ(Run({"device"}), 0);
  EXPECT_THAT(out_, AllOf(HasSubstr("h200"), HasSubstr("no GPU")));
  EXPECT_EQ(Run({"device", "--output", "json"}), 0);
  EXPECT_TRUE(json::parse(out_)["device"].is_null());
  EXPECT_EQ(Run({"version", "--output", "json"}), 0);
  EXPECT_EQ(json::parse(out_)["server"], "9.8.7");
  daemon_.Stop();
  EXPECT_EQ(Run({"version", "--output", "json"}), 0);
  EXPECT_TRUE(json::parse(out_)["server"].is_null());
  EXPECT_EQ(json::parse(out_)["client"], std::string(ClientVersion()));
}

TEST_F(Qgemmctl, DeviceIsPausedAndResumed) {
  daemon_.answers().description.set_state("paused");
  ASSERT_EQ(Run({"device", "pause"}), 0) << err_;
  EXPECT_TRUE(daemon_.answers().paused);
  EXPECT_THAT(out_, HasSubstr("paused"));
  ASSERT_EQ(Run({"device", "resume"}), 0) << err_;
  EXPECT_EQ(Run({"device", "resume"}), 3);
  EXPECT_THAT(err_, HasSubstr("pid 7 has the GPU"));
}

TEST_F(Qgemmctl, UsageErrorsAreOneSentenceAndExitCode2) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"frob"},
                                             {"kernel"},
                                             {"kernel", "get", "abc", "-o", "x"},
                                             {"tune", "--nonsense"},
                                             {"tune", "--shape", "64x128"},
                                             {"tune", "--shape", "64x128", "--m", "0"},
                                             {"tune", "--shape", "64x128", "--m", "1", "--effort", "max"},
                                             {"--output", "xml", "device"},
                                             {"--timeout", "0", "device"},
                                             {"--timeout", "soon", "device"},
                                             {"lookup", "--shape", "64x128", "--m", "1", "--launch-spec"}}) {
    EXPECT_EQ(Run(arguments), 2) << err_;
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_THAT(out_, IsEmpty());
  }
}

TEST_F(Qgemmctl, TheDaemonsErrorBecomesExitCodeAndJson) {
  const std::pair<grpc::StatusCode, int> codes[] = {{grpc::StatusCode::INVALID_ARGUMENT, 2},
                                                    {grpc::StatusCode::UNAVAILABLE, 3},
                                                    {grpc::StatusCode::UNAUTHENTICATED, 4},
                                                    {grpc::StatusCode::PERMISSION_DENIED, 4},
                                                    {grpc::StatusCode::DEADLINE_EXCEEDED, 5},
                                                    {grpc::StatusCode::NOT_FOUND, 6},
                                                    {grpc::StatusCode::RESOURCE_EXHAUSTED, 7},
                                                    {grpc::StatusCode::DATA_LOSS, 8},
                                                    {grpc::StatusCode::INTERNAL, 1}};
  for (const auto& [code, exit_code] : codes) {
    daemon_.answers().tune = [code = code](const v1::TuneRequest&, auto*) {
      return grpc::Status(code, "the reason");
    };
    EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--output", "json"}), exit_code) << err_;
    EXPECT_FALSE(json::parse(out_)["error"]["message"].get<std::string>().empty());
  }
}

TEST_F(Qgemmctl, WithoutADaemonSaysHowToStartOne) {
  daemon_.Stop();
  EXPECT_EQ(Run({"device", "--output", "json"}), 3);
  EXPECT_THAT(err_, HasSubstr("start one with `qgemmd`"));
  EXPECT_EQ(json::parse(out_)["error"]["code"], "UNAVAILABLE");
}

TEST_F(Qgemmctl, TheTimeoutEndsATune) {
  daemon_.answers().tune = [](const v1::TuneRequest&, auto* writer) { return TuneForEver(writer, [] {}); };
  EXPECT_EQ(Run({"tune", "--shape", "64x128", "--m", "1", "--timeout", "0.3"}), 5);
  EXPECT_THAT(err_, HasSubstr("--timeout"));
}

TEST_F(Qgemmctl, ASignalCancelsTheCall) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Notification started;
    Notification cancelled;
    daemon_.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
      const grpc::Status status = TuneForEver(writer, [&] { started.Notify(); });
      cancelled.Notify();
      return status;
    };
    Program program(folder_, {"--server", daemon_.address(), "tune", "--shape", "64x128", "--m", "1"});
    started.Wait();
    program.Signal(signal);
    EXPECT_EQ(program.Wait(), 130);
    EXPECT_EQ(program.err, "qgemmctl: interrupted\n");
    cancelled.Wait();
  }
}

TEST_F(Qgemmctl, ASignalEndsTheWaitForAFile) {
  const std::string pipe = folder_ + "/config.json";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  Program program(folder_, {"--server", daemon_.address(), "lookup", "--model", pipe, "--m", "1"});
  const UniqueFd writer(open(pipe.c_str(), O_WRONLY | O_CLOEXEC));  // returns once qgemmctl reads
  ASSERT_TRUE(writer.valid());
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 130);
  EXPECT_EQ(program.err, "qgemmctl: interrupted\n");
}

}  // namespace
}  // namespace qgemm
