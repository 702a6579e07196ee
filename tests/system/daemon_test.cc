// A real qgemmd with real compile workers and the simulated GPU process, over its unix socket.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/digest.h"
#include "kernels/embedded_sources.h"
#include "qgemm/v1/bench.grpc.pb.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "tests/system/daemon_fixture.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST_F(DaemonTest, ServesItsPicksAgainAfterKillMinusNine) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const v1::TuneRequest request = RequestFor(Int4Problem(512, 1024), {1, 16}, v1::EFFORT_BALANCED);
  const TuneAnswer cold = Tune(request);
  ASSERT_TRUE(cold.status.ok()) << cold.status.error_message();
  ASSERT_EQ(cold.results.size(), 2u);
  for (const v1::TuneResult& result : cold.results) {
    EXPECT_TRUE(result.has_pick()) << result.error();
    EXPECT_FALSE(result.cached());
    EXPECT_EQ(result.pick().source(), v1::PICK_SOURCE_MEASURED);
    EXPECT_EQ(result.pick().kernel().spill_store_bytes(), 0);
  }
  EXPECT_GT(cold.summary.compiles(), 0);
  EXPECT_GT(cold.summary.timings(), 0);

  const TuneAnswer warm = Tune(request);
  ASSERT_TRUE(warm.status.ok());
  EXPECT_EQ(warm.summary.compiles(), 0);
  EXPECT_EQ(warm.summary.timings(), 0);
  EXPECT_EQ(warm.summary.cache_hits(), 2);

  daemon_->Signal(SIGKILL);
  EXPECT_EQ(daemon_->AwaitExit(), 128 + SIGKILL);
  Start(/*gpu=*/true);
  const TuneAnswer again = Tune(request);
  ASSERT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(again.summary.compiles(), 0);
  EXPECT_EQ(again.summary.timings(), 0);
  ASSERT_EQ(again.results.size(), 2u);
  EXPECT_EQ(again.results[0].pick().SerializeAsString(), cold.results[0].pick().SerializeAsString());

  // A new shape of a known format compiles nothing.
  const TuneAnswer other = Tune(RequestFor(Int4Problem(768, 1024), {1, 16}, v1::EFFORT_MODEL_ONLY));
  ASSERT_TRUE(other.status.ok());
  EXPECT_EQ(other.results.size(), 2u);
}

// One shape without and with int8 activations: two classes, which a restart keeps apart, too.
TEST_F(DaemonTest, Int8ActivationsAreTunedAndServedApart) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  v1::TuneRequest plain = RequestFor(Int4Problem(512, 1024), {16}, v1::EFFORT_QUICK);
  v1::TuneRequest int8 = plain;
  int8.mutable_problems(0)->set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  const auto lookup = [&](v1::Problem problem, int64_t n) {
    problem.set_n(n);
    v1::LookupRequest request;
    *request.add_keys()->mutable_problem() = problem;
    request.mutable_keys(0)->set_m(16);
    request.set_allow_similar(true);
    grpc::ClientContext context;
    v1::LookupResponse response;
    const grpc::Status status = tuner_->Lookup(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() ? response.answers(0) : v1::LookupAnswer();
  };
  const TuneAnswer first = Tune(plain);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_TRUE(first.results.size() == 1 && first.results[0].has_pick());
  for (const int64_t n : {512, 640}) {
    EXPECT_TRUE(lookup(plain.problems(0), n).has_pick()) << n;
    EXPECT_FALSE(lookup(int8.problems(0), n).has_pick()) << n;
  }

  const TuneAnswer second = Tune(int8);
  ASSERT_TRUE(second.status.ok()) << second.status.error_message();
  ASSERT_TRUE(second.results.size() == 1 && second.results[0].has_pick());
  EXPECT_FALSE(second.results[0].cached());
  EXPECT_GT(second.summary.compiles(), 0);
  const v1::Pick& pick = second.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MEASURED);
  EXPECT_EQ(pick.problem().act_quantization(), v1::ACTIVATION_QUANTIZATION_INT8);
  EXPECT_NE(pick.kernel().sha256(), first.results[0].pick().kernel().sha256());

  daemon_->Signal(SIGKILL);
  EXPECT_EQ(daemon_->AwaitExit(), 128 + SIGKILL);
  Start(/*gpu=*/true);
  const std::pair<v1::Problem, std::string> expected[] = {
      {plain.problems(0), first.results[0].pick().kernel().sha256()},
      {int8.problems(0), pick.kernel().sha256()}};
  for (const auto& [problem, sha256] : expected) {
    for (const int64_t n : {512, 640}) {
      EXPECT_EQ(lookup(problem, n).pick().kernel().sha256(), sha256) << n;
    }
  }
  for (const v1::TuneRequest& request : {plain, int8}) {
    const TuneAnswer again = Tune(request);
    ASSERT_TRUE(again.status.ok()) << again.status.error_message();
    EXPECT_EQ(again.summary.compiles() + again.summary.timings(), 0);
  }
}

TEST_F(DaemonTest, TwoClientsAtOnceShareOneTuning) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const v1::TuneRequest request = RequestFor(Int4Problem(512, 1024), {4}, v1::EFFORT_BALANCED);
  std::future<TuneAnswer> other = std::async(std::launch::async, [&] { return Tune(request); });
  const TuneAnswer one = Tune(request);
  const TuneAnswer two = other.get();
  ASSERT_TRUE(one.status.ok()) << one.status.error_message();
  ASSERT_TRUE(two.status.ok()) << two.status.error_message();
  ASSERT_EQ(one.results.size(), 1u);
  ASSERT_EQ(two.results.size(), 1u);
  EXPECT_EQ(one.results[0].pick().SerializeAsString(), two.results[0].pick().SerializeAsString());
  EXPECT_EQ(one.summary.timings() + two.summary.timings(), one.results[0].pick().timed());
}

TEST_F(DaemonTest, SixtyFourClientsOfOneColdKeyShareOneTuning) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const v1::TuneRequest request = RequestFor(Int4Problem(512, 1024), {4}, v1::EFFORT_QUICK);
  std::vector<std::future<TuneAnswer>> tunes;
  for (int i = 0; i < 64; ++i) tunes.push_back(std::async(std::launch::async, [&] { return Tune(request); }));
  std::set<std::string> picks;
  int64_t compiles = 0;
  int64_t timings = 0;
  int64_t timed = 0;
  for (std::future<TuneAnswer>& tune : tunes) {
    const TuneAnswer answer = tune.get();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.results.size(), 1u);
    picks.insert(answer.results[0].pick().SerializeAsString());
    compiles += answer.summary.compiles();
    timings += answer.summary.timings();
    timed = answer.results[0].pick().timed();
  }
  EXPECT_EQ(picks.size(), 1u);
  EXPECT_EQ(timings, timed);
  // The store's kernels are those that were compiled, each once.
  grpc::ClientContext context;
  v1::CacheStatsResponse stats;
  ASSERT_TRUE(v1::Cache::NewStub(channel_)->Stats(&context, {}, &stats).ok());
  EXPECT_GT(compiles, 0);
  EXPECT_EQ(compiles, stats.kernels());
}

TEST_F(DaemonTest, SendsTheKernelOfAPickWithItsDigest) {
  Start(/*gpu=*/false);
  SKIP_WITHOUT_NVRTC();
  const TuneAnswer answer = Tune(RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY));
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.results.size(), 1u);
  const v1::Pick& pick = answer.results[0].pick();
  EXPECT_EQ(pick.source(), v1::PICK_SOURCE_MODEL);
  EXPECT_FALSE(pick.has_time_us());
  EXPECT_EQ(answer.summary.compiles(), 1);

  v1::GetKernelsRequest request;
  request.add_sha256(pick.kernel().sha256());
  grpc::ClientContext context;
  const auto reader = tuner_->GetKernels(&context, request);
  std::string cubin;
  v1::KernelChunk chunk;
  while (reader->Read(&chunk)) {
    EXPECT_EQ(chunk.offset(), static_cast<int64_t>(cubin.size()));
    EXPECT_LE(chunk.data().size(), 256u << 10);
    cubin += chunk.data();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Sha256Hex(cubin), pick.kernel().sha256());
  EXPECT_EQ(static_cast<int64_t>(cubin.size()), pick.kernel().cubin_bytes());
}

TEST_F(DaemonTest, AnswersBadInputWithTheRightCodes) {
  Start(/*gpu=*/false);
  const auto code_of = [&](const v1::TuneRequest& request) { return Tune(request).status.error_code(); };
  v1::TuneRequest good = RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY);
  EXPECT_EQ(code_of(RequestFor(Int4Problem(0, 1024), {1}, v1::EFFORT_MODEL_ONLY)), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(RequestFor(Int4Problem(512, 1000), {1}, v1::EFFORT_MODEL_ONLY)), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(RequestFor(Int4Problem(512, 1024), {0}, v1::EFFORT_MODEL_ONLY)), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(RequestFor(Int4Problem(512, 1024), {-1}, v1::EFFORT_MODEL_ONLY)), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(RequestFor(Int4Problem(512, 1024), {}, v1::EFFORT_MODEL_ONLY)), grpc::INVALID_ARGUMENT);
  v1::TuneRequest bad = good;
  bad.set_target("h900");
  EXPECT_EQ(code_of(bad), grpc::INVALID_ARGUMENT);
  bad = good;
  bad.mutable_problems(0)->mutable_format()->set_bits(3);
  EXPECT_EQ(code_of(bad), grpc::INVALID_ARGUMENT);

  for (const std::string& sha256 : {std::string("xyz"), std::string(64, '0')}) {
    v1::GetKernelsRequest request;
    request.add_sha256(sha256);
    grpc::ClientContext context;
    const auto reader = tuner_->GetKernels(&context, request);
    v1::KernelChunk chunk;
    while (reader->Read(&chunk)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), sha256.size() == 64 ? grpc::NOT_FOUND : grpc::INVALID_ARGUMENT);
  }
}

// What the daemon says of a changed mma.cuh at 512x1024, M = 16.
struct ComparisonAnswer {
  grpc::Status status;
  std::vector<v1::ComparedCandidate> candidates;
  v1::CompareSourceSummary summary;
};
ComparisonAnswer Compare(const std::shared_ptr<grpc::Channel>& channel, const std::string& source) {
  v1::CompareSourceRequest request;
  *request.add_problems() = Int4Problem(512, 1024);
  request.add_m(16);
  request.set_source_name("mma.cuh");
  request.set_source(source);
  request.set_max_candidates(2);
  ComparisonAnswer answer;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
  const auto reader = v1::Bench::NewStub(channel)->CompareSource(&context, request);
  v1::CompareSourceEvent event;
  while (reader->Read(&event)) {
    if (event.has_candidate()) answer.candidates.push_back(event.candidate());
    if (event.has_summary()) answer.summary = event.summary();
  }
  answer.status = reader->Finish();
  return answer;
}

TEST_F(DaemonTest, ComparesAChangedSourceWithTheShippedOne) {
  Start(/*gpu=*/true);
  SKIP_WITHOUT_NVRTC();
  const std::string shipped(EmbeddedSource("mma.cuh"));
  const ComparisonAnswer changed = Compare(channel_, shipped + "\n__device__ int changed;\n");
  ASSERT_TRUE(changed.status.ok()) << changed.status.error_message();
  ASSERT_EQ(changed.candidates.size(), 2u);
  for (const v1::ComparedCandidate& candidate : changed.candidates) {
    EXPECT_EQ(candidate.changed().failure(), "");
    EXPECT_TRUE(candidate.current().has_time_us());
    EXPECT_TRUE(candidate.changed().has_time_us());
    EXPECT_NE(candidate.changed().kernel().sha256(), candidate.current().kernel().sha256());
    EXPECT_EQ(candidate.changed().kernel().registers(), candidate.current().kernel().registers());
  }
  EXPECT_TRUE(changed.summary.timed());
  EXPECT_EQ(changed.summary.compiles(), 5);  // two kernels twice, and the support kernels

  const ComparisonAnswer broken = Compare(channel_, "this is no CUDA C++\n");
  ASSERT_TRUE(broken.status.ok()) << broken.status.error_message();
  for (const v1::ComparedCandidate& candidate : broken.candidates) {
    EXPECT_THAT(candidate.changed().failure(), HasSubstr("mma.cuh(1)"));
    EXPECT_TRUE(candidate.current().has_time_us());
  }
  v1::CacheStatsResponse stats;
  grpc::ClientContext context;
  ASSERT_TRUE(v1::Cache::NewStub(channel_)->Stats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.picks(), 0);
  EXPECT_EQ(stats.timings(), 0);
}

TEST_F(DaemonTest, LookupOfAnUnknownKeyIsAMissWithAReason) {
  Start(/*gpu=*/false);
  v1::LookupRequest request;
  *request.add_keys()->mutable_problem() = Int4Problem(512, 1024);
  request.mutable_keys(0)->set_m(100);
  v1::LookupResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(tuner_->Lookup(&context, request, &response).ok());
  ASSERT_EQ(response.answers_size(), 1);
  EXPECT_FALSE(response.answers(0).has_pick());
  EXPECT_THAT(response.answers(0).miss_reason(), HasSubstr("bucket 128"));
}

TEST_F(DaemonTest, DescribesItselfAndItsCache) {
  Start(/*gpu=*/true);
  v1::DescribeResponse device;
  grpc::ClientContext device_context;
  ASSERT_TRUE(v1::Device::NewStub(channel_)->Describe(&device_context, {}, &device).ok());
  EXPECT_TRUE(device.has_gpu());
  EXPECT_EQ(device.state(), "ready");
  EXPECT_EQ(device.target(), "h200");
  EXPECT_GE(device.known_targets_size(), 7);
  v1::CacheStatsResponse stats;
  grpc::ClientContext stats_context;
  ASSERT_TRUE(v1::Cache::NewStub(channel_)->Stats(&stats_context, {}, &stats).ok());
  EXPECT_EQ(stats.data_dir(), folder_ + "/data");
  EXPECT_EQ(stats.picks(), 0);
}

// One request and one response of a method whose messages have no generated code here, as bytes.
grpc::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  grpc::CompletionQueue queue;
  const auto step = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  step();
  grpc::Slice slice(request);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  step();
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  if (step()) {
    grpc::Slice bytes;
    if (answer.DumpToSingleSlice(&bytes).ok()) {
      response->assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
    }
  }
  call->WritesDone(nullptr);
  step();
  grpc::Status status;
  call->Finish(&status, nullptr);
  step();
  return status;
}

TEST_F(DaemonTest, ReflectionListsTheServices) {
  Start(/*gpu=*/false);
  std::string response;
  // ServerReflectionRequest{list_services: "*"}
  const grpc::Status status = RawCall(
      channel_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*", &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  for (const char* service :
       {"qgemm.v1.Tuner", "qgemm.v1.Cache", "qgemm.v1.Device", "qgemm.v1.Bench", "grpc.health.v1.Health"}) {
    EXPECT_THAT(response, HasSubstr(service));
  }
}

// HealthCheckRequest{service} and HealthCheckResponse{status}.
std::string HealthRequest(const std::string& service) {
  return std::string("\x0a") + static_cast<char>(service.size()) + service;
}
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";

TEST_F(DaemonTest, HealthSaysServing) {
  Start(/*gpu=*/false);
  SKIP_WITHOUT_NVRTC();
  for (const char* service : {"", "qgemm.v1.Tuner", "qgemm.v1.Cache"}) {
    std::string response;
    EXPECT_TRUE(RawCall(channel_, "/grpc.health.v1.Health/Check", HealthRequest(service), &response).ok());
    EXPECT_EQ(response, kServing) << service;
  }
}

TEST_F(DaemonTest, WithoutCompileWorkersServesTheCacheAndSaysUnavailable) {
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  for (size_t i = 0; i + 1 < flags.size(); ++i) {
    if (flags[i] == "--compile-binary") flags[i + 1] = folder_ + "/missing";
  }
  daemon_ = std::make_unique<DaemonProcess>(QGEMMD, flags);
  ASSERT_TRUE(daemon_->AwaitLine("ready: listening on").has_value()) << daemon_->Output();
  Connect();
  const TuneAnswer answer = Tune(RequestFor(Int4Problem(512, 1024), {1}, v1::EFFORT_MODEL_ONLY));
  EXPECT_EQ(answer.status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_message(), HasSubstr(folder_ + "/missing"));
  std::string health;
  EXPECT_TRUE(
      RawCall(channel_, "/grpc.health.v1.Health/Check", HealthRequest("qgemm.v1.Tuner"), &health).ok());
  EXPECT_EQ(health, kNotServing);
  v1::CacheStatsResponse stats;
  grpc::ClientContext context;
  EXPECT_TRUE(v1::Cache::NewStub(channel_)->Stats(&context, {}, &stats).ok());
}

TEST_F(DaemonTest, SecondDaemonOnTheDataDirSaysWhoHasIt) {
  Start(/*gpu=*/false);
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  flags[1] = "unix:" + folder_ + "/other.sock";
  const auto [code, output] = RunToTheEnd(flags);
  EXPECT_EQ(code, 1) << output;
  EXPECT_THAT(output, HasSubstr(folder_ + "/data"));
}

TEST_F(DaemonTest, SecondDaemonOnTheGpuSaysWhoHasIt) {
  Start(/*gpu=*/true);
  std::vector<std::string> flags = Flags(/*gpu=*/true);
  flags[1] = "unix:" + folder_ + "/other.sock";
  flags[3] = folder_ + "/other-data";
  const auto [code, output] = RunToTheEnd(flags);
  EXPECT_EQ(code, 1) << output;
  EXPECT_THAT(output, HasSubstr("pid " + std::to_string(daemon_->pid())));
  EXPECT_THAT(output, HasSubstr(folder_ + "/data"));
}

TEST_F(DaemonTest, LiveSocketIsNotStolen) {
  Start(/*gpu=*/false);
  std::vector<std::string> flags = Flags(/*gpu=*/false);
  flags[3] = folder_ + "/other-data";
  const auto [code, output] = RunToTheEnd(flags);
  EXPECT_EQ(code, 1) << output;
  EXPECT_THAT(output, HasSubstr("pid " + std::to_string(daemon_->pid())));
  // The first one still answers on it.
  v1::DescribeResponse device;
  grpc::ClientContext context;
  Connect();
  EXPECT_TRUE(v1::Device::NewStub(channel_)->Describe(&context, {}, &device).ok());
}

TEST_F(DaemonTest, StaleSocketIsReplacedAndItsModeIsPrivate) {
  Start(/*gpu=*/false);
  daemon_->Signal(SIGKILL);
  ASSERT_TRUE(daemon_->AwaitExit().has_value());
  struct stat info;
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  Start(/*gpu=*/false);
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST_F(DaemonTest, FileThatIsNoSocketIsNotReplaced) {
  std::ofstream(socket_) << "precious";
  const auto [code, output] = RunToTheEnd(Flags(/*gpu=*/false));
  EXPECT_EQ(code, 1);
  EXPECT_THAT(output, HasSubstr("not a socket"));
  EXPECT_TRUE(std::filesystem::is_regular_file(socket_));
}

TEST_F(DaemonTest, PortThatIsNotLoopbackIsRefused) {
  const auto [code, output] = RunToTheEnd({"--listen", "0.0.0.0:7461", "--data-dir", folder_ + "/data"});
  EXPECT_EQ(code, 2);
  EXPECT_THAT(output, HasSubstr("0.0.0.0:7461"));
  EXPECT_THAT(output, HasSubstr("loopback"));
}

TEST_F(DaemonTest, ListensOnALoopbackPortOfItsChoice) {
  Start(/*gpu=*/false, {"--listen", "127.0.0.1:0"});
  const std::string ready = *daemon_->AwaitLine("ready: listening on");
  const size_t at = ready.find("127.0.0.1:");
  ASSERT_NE(at, std::string::npos) << ready;
  const std::string address = ready.substr(at, ready.find_first_of(" ,", at) - at);
  EXPECT_NE(address, "127.0.0.1:0");
  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  v1::DescribeResponse device;
  grpc::ClientContext context;
  EXPECT_TRUE(v1::Device::NewStub(channel)->Describe(&context, {}, &device).ok());
}

TEST_F(DaemonTest, SigtermEndsItWithSuccessInTheMiddleOfATuning) {
  Start(/*gpu=*/true, {"--drain-seconds", "0"});
  SKIP_WITHOUT_NVRTC();
  grpc::ClientContext context;
  const auto reader =
      tuner_->Tune(&context, RequestFor(Int4Problem(512, 1024), {1, 16, 64, 256}, v1::EFFORT_EXHAUSTIVE));
  v1::TuneEvent event;
  ASSERT_TRUE(reader->Read(&event)) << reader->Finish().error_message();
  daemon_->Signal(SIGTERM);
  while (reader->Read(&event)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_EQ(daemon_->AwaitExit(std::chrono::seconds(30)), 0);
}

TEST_F(DaemonTest, CheckConfigPrintsWhatWouldBeUsedAndTouchesNothing) {
  const std::string file = folder_ + "/qgemmd.toml";
  std::ofstream(file) << "data_dir = \"" << folder_
                      << "/from-file\"\nworkers = 3\nlisten = \"unix:" << socket_ << "\"\n";
  const auto [code, output] = RunToTheEnd({"--config", file, "--check-config", "--target", "a100"});
  EXPECT_EQ(code, 0) << output;
  EXPECT_THAT(output, HasSubstr("from-file"));
  EXPECT_THAT(output, HasSubstr("workers = 3"));
  EXPECT_THAT(output, HasSubstr("target = \"a100\""));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/from-file"));
}

TEST_F(DaemonTest, BadFlagsEndWithUsage) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--no-such-flag"},
                                             {"--target", "h900"},
                                             {"--arch", "sm_7x"},
                                             {"--device", "cuda0"},
                                             {"--config", folder_ + "/missing.toml"},
                                             {"--log-format", "xml"},
                                             {"--data-dir", ""},
                                             {"--workers", "-2"}}) {
    const auto [code, output] = RunToTheEnd(flags);
    EXPECT_EQ(code, 2) << flags[0] << ": " << output;
    EXPECT_THAT(output, HasSubstr("qgemmd: "));
  }
}

}  // namespace
}  // namespace qgemm
