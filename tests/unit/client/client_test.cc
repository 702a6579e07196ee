#include "client/qgemm/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/unique_fd.h"
#include "tests/unit/client/fake_daemon.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<Client> ClientOf(const std::string& address,
                                 absl::Duration connect_timeout = absl::Seconds(10)) {
  ClientOptions options;
  options.server = address;
  options.connect_timeout = connect_timeout;
  auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// `bytes` as a kernel's chunks of at most `chunk_bytes`.
std::vector<v1::KernelChunk> Chunks(const std::string& sha256, const std::string& bytes, size_t chunk_bytes) {
  std::vector<v1::KernelChunk> chunks;
  for (size_t offset = 0; offset < bytes.size(); offset += chunk_bytes) {
    v1::KernelChunk chunk;
    chunk.set_sha256(sha256);
    if (offset == 0) {
      chunk.mutable_info()->set_sha256(sha256);
      chunk.mutable_info()->set_entry("qgemm_mma");
      chunk.set_total_bytes(static_cast<int64_t>(bytes.size()));
    }
    chunk.set_offset(static_cast<int64_t>(offset));
    chunk.set_data(bytes.substr(offset, chunk_bytes));
    chunks.push_back(chunk);
  }
  return chunks;
}

TEST(Client, TuneHandsOverEveryEventInOrder) {
  FakeDaemon daemon;
  daemon.answers().tune = [](const v1::TuneRequest& request, auto* writer) {
    for (int i = 0; i < 3; ++i) {
      v1::TuneEvent event;
      event.mutable_progress()->set_kernels_compiled(i);
      writer->Write(event);
    }
    v1::TuneEvent result;
    result.mutable_result()->set_m_bucket(static_cast<int>(request.m(0)));
    writer->Write(result);
    v1::TuneEvent summary;
    summary.mutable_summary()->set_compiles(44);
    writer->Write(summary);
    return grpc::Status::OK;
  };
  v1::TuneRequest request;
  request.add_m(16);
  std::vector<std::string> events;
  const auto summary = ClientOf(daemon.address())->Tune(request, [&](const v1::TuneEvent& event) {
    events.push_back(event.has_progress() ? absl::StrCat("progress ", event.progress().kernels_compiled())
                     : event.has_result() ? absl::StrCat("result ", event.result().m_bucket())
                                          : "summary");
  });
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->compiles(), 44);
  EXPECT_THAT(events,
              ::testing::ElementsAre("progress 0", "progress 1", "progress 2", "result 16", "summary"));
}

TEST(Client, TuneWithoutASummaryIsAnError) {
  FakeDaemon daemon;
  daemon.answers().tune = [](const v1::TuneRequest&, auto*) { return grpc::Status::OK; };
  const auto summary = ClientOf(daemon.address())->Tune({}, [](const v1::TuneEvent&) {});
  EXPECT_TRUE(absl::IsInternal(summary.status())) << summary.status();
}

TEST(Client, CancelEndsARunningCallAndLaterOnes) {
  FakeDaemon daemon;
  Notification started;
  daemon.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
    return TuneForEver(writer, [&] { started.Notify(); });
  };
  const auto client = ClientOf(daemon.address());
  std::thread canceller([&] {
    started.Wait();
    client->Cancel();
  });
  const auto summary = client->Tune({}, [](const v1::TuneEvent&) {});
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(summary.status())) << summary.status();
  EXPECT_TRUE(absl::IsCancelled(client->Describe().status()));
}

TEST(Client, TheDeadlineEndsACall) {
  FakeDaemon daemon;
  daemon.answers().tune = [](const v1::TuneRequest&, auto* writer) { return TuneForEver(writer, [] {}); };
  ClientOptions options;
  options.server = daemon.address();
  options.tune_timeout = absl::Milliseconds(200);
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok());
  const auto summary = (*client)->Tune({}, [](const v1::TuneEvent&) {});
  EXPECT_TRUE(absl::IsDeadlineExceeded(summary.status())) << summary.status();
  EXPECT_THAT(Message(summary.status()), HasSubstr("raise --timeout"));
}

TEST(Client, TheDaemonsErrorsKeepCodeAndMessage) {
  FakeDaemon daemon;
  const auto client = ClientOf(daemon.address());
  const std::pair<grpc::StatusCode, absl::StatusCode> codes[] = {
      {grpc::StatusCode::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
      {grpc::StatusCode::UNAVAILABLE, absl::StatusCode::kUnavailable},
      {grpc::StatusCode::FAILED_PRECONDITION, absl::StatusCode::kFailedPrecondition},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted},
      {grpc::StatusCode::DEADLINE_EXCEEDED, absl::StatusCode::kDeadlineExceeded},  // one of a job's own
      {grpc::StatusCode::DATA_LOSS, absl::StatusCode::kDataLoss}};
  for (const auto& [sent, expected] : codes) {
    daemon.answers().lookup = [code = sent](const v1::LookupRequest&, v1::LookupResponse*) {
      return grpc::Status(code, "k 100 is not a multiple of group_size 128");
    };
    const auto response = client->Lookup({});
    EXPECT_EQ(response.status(), absl::Status(expected, "k 100 is not a multiple of group_size 128"));
  }
}

// A daemon that answers Unavailable a number of times before it answers.
void AnswerAfter(FakeDaemon& daemon, int refusals, std::atomic<int>& calls) {
  daemon.answers().lookup = [refusals, &calls](const v1::LookupRequest&, v1::LookupResponse*) {
    return calls++ < refusals
               ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no compile worker can be started")
               : grpc::Status::OK;
  };
}

std::unique_ptr<Client> RetryingClientOf(const std::string& address, absl::Duration call_timeout,
                                         absl::Duration backoff = absl::Milliseconds(1)) {
  ClientOptions options;
  options.server = address;
  options.call_timeout = options.tune_timeout = call_timeout;
  options.retry_for = absl::InfiniteDuration();
  options.retry_backoff = backoff;
  auto client = Client::Connect(options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(Client, TriesAgainWhileTheDaemonIsUnavailable) {
  FakeDaemon daemon;
  std::atomic<int> calls = 0;
  AnswerAfter(daemon, 3, calls);
  const auto response = RetryingClientOf(daemon.address(), absl::Seconds(30))->Lookup({});
  EXPECT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(calls, 4);
}

TEST(Client, DoesNotTryAgainUnlessTold) {
  FakeDaemon daemon;
  std::atomic<int> calls = 0;
  AnswerAfter(daemon, 3, calls);
  EXPECT_TRUE(absl::IsUnavailable(ClientOf(daemon.address())->Lookup({}).status()));
  EXPECT_EQ(calls, 1);
}

TEST(Client, OtherErrorsAreNotTriedAgain) {
  FakeDaemon daemon;
  std::atomic<int> calls = 0;
  daemon.answers().lookup = [&](const v1::LookupRequest&, v1::LookupResponse*) {
    ++calls;
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "k 100 is not a multiple of group_size 128");
  };
  EXPECT_TRUE(
      absl::IsInvalidArgument(RetryingClientOf(daemon.address(), absl::Seconds(30))->Lookup({}).status()));
  EXPECT_EQ(calls, 1);
}

TEST(Client, TheDeadlineHoldsForAllAttempts) {
  FakeDaemon daemon;
  std::atomic<int> calls = 0;
  AnswerAfter(daemon, 1 << 30, calls);
  // Ends at all: each attempt is refused at once, for ever.
  const auto response = RetryingClientOf(daemon.address(), absl::Seconds(2))->Lookup({});
  EXPECT_FALSE(response.ok());
  EXPECT_GT(calls, 1);
}

TEST(Client, CancelEndsThePauseBetweenAttempts) {
  FakeDaemon daemon;
  Notification refused;
  daemon.answers().lookup = [&](const v1::LookupRequest&, v1::LookupResponse*) {
    refused.Notify();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "starting");
  };
  const auto client = RetryingClientOf(daemon.address(), absl::InfiniteDuration(), absl::Hours(1));
  absl::Status status;
  const auto call = client->LookupAsync({}, [&](const auto& response) { status = response.status(); });
  refused.Wait();
  call->Cancel();
  call->Wait();
  EXPECT_FALSE(status.ok());
}

TEST(Client, CallbacksGetEventsThenTheEnd) {
  FakeDaemon daemon;
  daemon.answers().tune = [](const v1::TuneRequest&, auto* writer) {
    v1::TuneEvent event;
    event.mutable_progress()->set_kernels_compiled(7);
    writer->Write(event);
    event.mutable_summary()->set_compiles(44);
    writer->Write(event);
    return grpc::Status::OK;
  };
  const auto client = ClientOf(daemon.address());
  std::vector<std::string> seen;
  const auto call = client->TuneAsync(
      {}, [&](const v1::TuneEvent& event) { seen.push_back(event.has_progress() ? "progress" : "summary"); },
      [&](absl::StatusOr<v1::TuneSummary> summary) {
        seen.push_back(summary.ok() ? absl::StrCat("done ", summary->compiles())
                                    : summary.status().ToString());
      });
  call->Wait();
  EXPECT_THAT(seen, ::testing::ElementsAre("progress", "summary", "done 44"));
}

TEST(Client, CancellingOneCallLeavesTheOthers) {
  FakeDaemon daemon;
  Notification started;
  daemon.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
    return TuneForEver(writer, [&] { started.Notify(); });
  };
  daemon.answers().lookup = [](const v1::LookupRequest&, v1::LookupResponse*) { return grpc::Status::OK; };
  const auto client = ClientOf(daemon.address());
  absl::Status status;
  auto call = client->TuneAsync(
      {}, [](const v1::TuneEvent&) {}, [&](const auto& summary) { status = summary.status(); });
  started.Wait();
  call.reset();  // cancels and waits
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(client->Lookup({}).ok());
}

TEST(Client, CancelEndsCallsOfDerivedClientsToo) {
  FakeDaemon daemon;
  Notification started;
  daemon.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
    return TuneForEver(writer, [&] { started.Notify(); });
  };
  const auto client = ClientOf(daemon.address());
  absl::Status status;
  const auto call = client->TuneAsync(
      {}, [](const v1::TuneEvent&) {}, [&](const auto& summary) { status = summary.status(); });
  started.Wait();
  client->Cancel();
  call->Wait();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(absl::IsCancelled(client->Derive(client->options())->Describe().status()));
}

TEST(Client, ACallMayHaveADeadlineOfItsOwn) {
  FakeDaemon daemon;
  daemon.answers().tune = [](const v1::TuneRequest&, auto* writer) { return TuneForEver(writer, [] {}); };
  const auto client = ClientOf(daemon.address());
  absl::Status status;
  client
      ->TuneAsync(
          {}, [](const v1::TuneEvent&) {}, [&](const auto& summary) { status = summary.status(); },
          absl::Milliseconds(200))
      ->Wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(Client, AnUnknownCallNamesTheVersions) {
  FakeDaemon daemon;
  const auto response = ClientOf(daemon.address())->Lookup({});
  EXPECT_TRUE(absl::IsUnimplemented(response.status()));
  EXPECT_THAT(Message(response.status()), AllOf(HasSubstr(daemon.address()), HasSubstr("qgemmctl version")));
}

TEST(Client, EveryKeyNeedsAnAnswer) {
  FakeDaemon daemon;
  daemon.answers().lookup = [](const v1::LookupRequest&, v1::LookupResponse*) { return grpc::Status::OK; };
  v1::LookupRequest request;
  request.add_keys();
  EXPECT_TRUE(absl::IsInternal(ClientOf(daemon.address())->Lookup(request).status()));
}

// A daemon of before there were int8 activations does not see that they are asked for.
TEST(Client, APickOfAnotherActivationClassIsRefused) {
  FakeDaemon daemon;
  daemon.answers().lookup = [](const v1::LookupRequest& request, v1::LookupResponse* response) {
    for (const v1::LookupKey& key : request.keys()) {
      v1::Pick& pick = *response->add_answers()->mutable_pick();
      *pick.mutable_problem() = key.problem();
      pick.mutable_problem()->clear_act_quantization();
    }
    return grpc::Status::OK;
  };
  daemon.answers().tune = [](const v1::TuneRequest& request, auto* writer) {
    for (int i = 0; i < request.problems_size(); ++i) {
      v1::TuneEvent result;
      result.mutable_result()->set_problem_index(i);
      *result.mutable_result()->mutable_pick()->mutable_problem() = request.problems(i);
      result.mutable_result()->mutable_pick()->mutable_problem()->clear_act_quantization();
      writer->Write(result);
    }
    v1::TuneEvent summary;
    summary.mutable_summary();
    writer->Write(summary);
    return grpc::Status::OK;
  };
  v1::LookupRequest lookup;
  v1::TuneRequest tune;
  lookup.add_keys()->mutable_problem()->set_n(64);
  tune.add_problems()->set_n(64);
  const std::unique_ptr<Client> client = ClientOf(daemon.address());
  EXPECT_TRUE(client->Lookup(lookup).ok());
  EXPECT_TRUE(client->Tune(tune, [](const v1::TuneEvent&) {}).ok());

  lookup.add_keys()->mutable_problem()->set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  tune.add_problems()->set_act_quantization(v1::ACTIVATION_QUANTIZATION_INT8);
  const auto answers = client->Lookup(lookup);
  EXPECT_TRUE(absl::IsFailedPrecondition(answers.status())) << answers.status();
  EXPECT_THAT(Message(answers.status()), AllOf(HasSubstr("int8 activations"), HasSubstr("qgemmctl version")));
  int results = 0;
  const auto tuned =
      client->Tune(tune, [&](const v1::TuneEvent& event) { results += event.has_result() ? 1 : 0; });
  EXPECT_TRUE(absl::IsFailedPrecondition(tuned.status())) << tuned.status();
  EXPECT_EQ(results, 1);
}

TEST(Client, AnswersLargerThanFourMebibytesArrive) {
  FakeDaemon daemon;
  daemon.answers().lookup = [](const v1::LookupRequest& request, v1::LookupResponse* response) {
    for (int i = 0; i < request.keys_size(); ++i) {
      response->add_answers()->set_miss_reason(std::string(4096, 'x'));
    }
    return grpc::Status::OK;
  };
  v1::LookupRequest request;
  for (int i = 0; i < 4096; ++i) request.add_keys();
  const auto response = ClientOf(daemon.address())->Lookup(request);
  EXPECT_TRUE(response.ok()) << response.status();
}

TEST(Client, NobodyThereSaysHowToStartADaemon) {
  FakeDaemon daemon;
  daemon.Stop();
  const auto description = ClientOf(daemon.address())->Describe();
  EXPECT_EQ(description.status(), absl::UnavailableError(absl::StrCat(
                                      "cannot reach qgemmd at ", daemon.address(),
                                      ": start one with `qgemmd`, or set --server / QGEMM_SERVER")));
}

TEST(Client, AWedgedDaemonIsUnavailableWithinTheConnectTimeout) {
  // A socket that takes connections into its backlog and never answers.
  std::string folder = ::testing::TempDir() + "wedged.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  sockaddr_un name = {.sun_family = AF_UNIX};
  const std::string path = folder + "/s";
  std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);

  const auto description = ClientOf("unix:" + path, absl::Milliseconds(200))->Describe();
  EXPECT_TRUE(absl::IsUnavailable(description.status())) << description.status();
  EXPECT_THAT(Message(description.status()),
              AllOf(HasSubstr("no answer from qgemmd"), HasSubstr("start one")));
  unlink(path.c_str());
  rmdir(folder.c_str());
}

TEST(Client, ADaemonThatDiesDuringACallIsUnavailable) {
  FakeDaemon daemon;
  Notification started;
  daemon.answers().tune = [&](const v1::TuneRequest&, auto* writer) {
    return TuneForEver(writer, [&] { started.Notify(); });
  };
  std::thread killer([&] {
    started.Wait();
    daemon.Stop();
  });
  const auto summary = ClientOf(daemon.address())->Tune({}, [](const v1::TuneEvent&) {});
  killer.join();
  EXPECT_TRUE(absl::IsUnavailable(summary.status()) || absl::IsCancelled(summary.status()))
      << summary.status();
}

TEST(Client, GetKernelJoinsChunks) {
  FakeDaemon daemon;
  std::string bytes(700'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
  const std::string sha256 = Sha256Hex(bytes);
  daemon.answers().chunks = Chunks(sha256, bytes, 256 << 10);
  const auto kernel = ClientOf(daemon.address())->GetKernel(sha256);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_EQ(kernel->cubin, bytes);
  EXPECT_EQ(kernel->info.entry(), "qgemm_mma");
}

TEST(Client, GetKernelNoticesDamage) {
  const std::string bytes(1000, 'k');
  const std::string sha256 = Sha256Hex(bytes);
  std::string flipped = bytes;
  flipped[500] ^= 1;
  std::vector<v1::KernelChunk> truncated = Chunks(sha256, bytes, 300);
  truncated.pop_back();
  std::vector<v1::KernelChunk> gap = Chunks(sha256, bytes, 300);
  gap.erase(gap.begin() + 1);
  std::vector<v1::KernelChunk> headless = Chunks(sha256, bytes, 300);
  headless[0].clear_info();
  std::vector<v1::KernelChunk> endless = Chunks(sha256, bytes, 300);
  endless[0].set_total_bytes(700);
  const std::vector<v1::KernelChunk> none;
  for (const auto& chunks : {Chunks(sha256, flipped, 300), truncated, gap, headless, endless, none,
                             Chunks(Sha256Hex("other"), bytes, 300)}) {
    FakeDaemon daemon;
    daemon.answers().chunks = chunks;
    const auto kernel = ClientOf(daemon.address())->GetKernel(sha256);
    EXPECT_TRUE(absl::IsDataLoss(kernel.status())) << kernel.status();
  }
}

TEST(Client, AMissingKernelIsNotFound) {
  FakeDaemon daemon;
  daemon.answers().kernels_status = grpc::Status(grpc::StatusCode::NOT_FOUND, "no kernel 12ab");
  EXPECT_EQ(ClientOf(daemon.address())->GetKernel(std::string(64, '0')).status(),
            absl::NotFoundError("no kernel 12ab"));
}

TEST(Client, ABadAddressIsRefusedAtOnce) {
  ClientOptions options;
  options.server = "somewhere";
  EXPECT_TRUE(absl::IsInvalidArgument(Client::Connect(options).status()));
}

}  // namespace
}  // namespace qgemm
