// Lookups of stored picks through the whole daemon beside a bare gRPC echo of the same message sizes, in the
// same process and run: rates, latencies, batches; how long a store of many picks takes to open; the idle
// daemon's memory. Prints JSON.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/method_handler.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/digest.h"
#include "cache/housekeeping.h"
#include "cache/rocksdb_store.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "server/daemon.h"
#include "server/listen_address.h"
#include "server/pick_lookup.h"
#include "server/proto_convert.h"
#include "spdlog/spdlog.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;

constexpr char kLookupMethod[] = "/qgemm.v1.Tuner/Lookup";

struct Options {
  int picks = 2000;
  int64_t many_picks = 0;  // for the opening; 0: not measured
  double seconds = 3;
  int threads = 2;
  int batch = 1000;
  int rounds = 3;
};

// Answers every call with the same bytes, without looking at them: what gRPC's synchronous server costs,
// which is the one that the daemon uses, too.
class EchoService : public grpc::Service {
 public:
  explicit EchoService(const std::string& answer) {
    const grpc::Slice slice(answer);
    answer_ = grpc::ByteBuffer(&slice, 1);
    AddMethod(new grpc::internal::RpcServiceMethod(
        kLookupMethod, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<EchoService, grpc::ByteBuffer, grpc::ByteBuffer>(
            [](EchoService* service, grpc::ServerContext*, const grpc::ByteBuffer*,
               grpc::ByteBuffer* answer) {
              *answer = service->answer_;
              return grpc::Status::OK;
            },
            this)));
  }

 private:
  grpc::ByteBuffer answer_;
};

// An echo that listens; gone with this.
class Echo {
 public:
  // `address` empty: any port of the loopback.
  Echo(size_t answer_bytes, const std::string& address) : service_(std::string(answer_bytes, 'x')) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address.empty() ? "127.0.0.1:0" : address, grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    QGEMM_CHECK(server_ != nullptr);
    address_ = address.empty() ? absl::StrCat("127.0.0.1:", port) : address;
  }
  ~Echo() { server_->Shutdown(); }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  const std::string& address() const { return address_; }

 private:
  EchoService service_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

v1::Problem ProblemOf(int i) {
  v1::Problem problem;
  problem.set_n(64 * (1 + i % 4096));
  problem.set_k(128 * (1 + i / 4096));
  problem.mutable_format()->set_bits(4);
  problem.mutable_format()->set_group_size(128);
  problem.set_act(v1::SCALAR_TYPE_BF16);
  return problem;
}

// Of the size that picks really have: about 1.3 KB.
internal::PickRecord PickRecordOf(int i, const TuningTarget& target) {
  const absl::StatusOr<Problem> problem = ProblemFromProto(ProblemOf(i));
  QGEMM_CHECK(problem.ok());
  internal::PickRecord record;
  record.set_pick_key(PickLookup::KeyFor(*problem, 16, target, v1::EFFORT_MODEL_ONLY));
  record.set_kernel_key(Sha256(absl::StrCat("kernel", i % 50)));
  v1::Pick& pick = *record.mutable_pick();
  *pick.mutable_problem() = ProblemToProto(*problem);
  pick.set_m_bucket(16);
  pick.set_target(target.name);
  pick.set_source(v1::PICK_SOURCE_MODEL);
  pick.set_effort(v1::EFFORT_MODEL_ONLY);
  pick.set_config("wgmma m64 n128 k64 s4 w4 tma");
  pick.set_split_k(4);
  pick.set_predicted_us(12.5);
  pick.mutable_kernel()->set_sha256(Sha256Hex(absl::StrCat(i % 50)));
  pick.mutable_kernel()->set_config(pick.config());
  pick.mutable_kernel()->set_entry("qgemm_wgmma_m64_n128_k64_s4_w4_tma");
  pick.mutable_kernel()->set_arch("sm_90a");
  pick.mutable_kernel()->set_cubin_bytes(50'000 + i);
  pick.mutable_kernel()->set_toolchain("nvrtc 13.0");
  pick.mutable_launch()->set_layout_id("qgemm-packed-1");
  pick.mutable_launch()->set_entry(pick.kernel().entry());
  for (int argument = 0; argument < 14; ++argument) {
    v1::KernelArgument& one = *pick.mutable_launch()->add_arguments();
    one.set_name(absl::StrCat("argument_", argument));
    one.mutable_pointer()->set_role(v1::KernelArgument::POINTER_ROLE_WEIGHTS);
    one.mutable_pointer()->set_alignment(16);
  }
  return record;
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

double Percentile(const std::vector<double>& sorted, double part) {
  return sorted.empty() ? 0 : sorted[std::min(sorted.size() - 1, static_cast<size_t>(part * sorted.size()))];
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Load {
  double rate = 0;  // calls per second
  double p50_us = 0;
  double p99_us = 0;
  size_t answer_bytes = 0;
};

// Calls the method with the requests in turn, each of `threads` threads one call after the other, and returns
// the latencies in us, in order. `paced` above 0: so many calls per second of all threads together, latencies
// counted from when a call was due. Sets what is not null.
std::vector<double> Latencies(const std::string& address, const std::vector<std::string>& requests,
                              const Options& options, double paced, double* rate = nullptr,
                              size_t* last_answer_bytes = nullptr) {
  std::vector<std::vector<double>> latencies(options.threads);
  std::atomic<size_t> answer_bytes{0};
  std::vector<std::thread> threads;
  // Everybody is warm when the first begins.
  std::latch warm(options.threads);
  std::vector<double> rates(options.threads);
  for (int t = 0; t < options.threads; ++t) {
    threads.emplace_back([&, t] {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      arguments.SetMaxReceiveMessageSize(64 << 20);
      const auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      grpc::GenericStub stub(channel);
      grpc::CompletionQueue queue;
      const auto call = [&](const std::string& request) {
        grpc::ClientContext context;
        grpc::ByteBuffer response;
        grpc::Status status;
        const auto reader = stub.PrepareUnaryCall(&context, kLookupMethod, ToBuffer(request), &queue);
        reader->StartCall();
        reader->Finish(&response, &status, &response);
        void* tag = nullptr;
        bool ok = false;
        QGEMM_CHECK(queue.Next(&tag, &ok) && ok && status.ok());
        return response.Length();
      };
      size_t next = static_cast<size_t>(t) * 7919;
      for (int i = 0; i < (requests[0].size() > 1000 ? 20 : 500); ++i) {
        answer_bytes = call(requests[next++ % requests.size()]);
      }
      warm.arrive_and_wait();
      const auto begin = SteadyClock::now();
      const auto end = begin + std::chrono::duration_cast<SteadyClock::duration>(
                                   std::chrono::duration<double>(options.seconds));
      for (int64_t i = 0;; ++i) {
        auto due = SteadyClock::now();
        if (paced > 0) {
          due = begin + std::chrono::duration_cast<SteadyClock::duration>(
                            std::chrono::duration<double>(static_cast<double>(i) * options.threads / paced));
          std::this_thread::sleep_until(due);
        }
        if (due >= end) break;
        call(requests[next++ % requests.size()]);
        latencies[t].push_back(std::chrono::duration<double, std::micro>(SteadyClock::now() - due).count());
      }
      rates[t] = static_cast<double>(latencies[t].size()) /
                 std::chrono::duration<double>(SteadyClock::now() - begin).count();
      queue.Shutdown();
      void* tag = nullptr;
      bool ok = false;
      while (queue.Next(&tag, &ok)) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const std::vector<double>& one : latencies) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  if (rate != nullptr) *rate = std::accumulate(rates.begin(), rates.end(), 0.0);
  if (last_answer_bytes != nullptr) *last_answer_bytes = answer_bytes;
  return all;
}

Load Run(const std::string& address, const std::vector<std::string>& requests, const Options& options,
         double paced = 0) {
  Load load;
  const std::vector<double> all =
      Latencies(address, requests, options, paced, &load.rate, &load.answer_bytes);
  load.p50_us = Percentile(all, 0.5);
  load.p99_us = Percentile(all, 0.99);
  return load;
}

Json ToJson(const Load& load) {
  return {{"calls_per_s", load.rate},
          {"p50_us", load.p50_us},
          {"p99_us", load.p99_us},
          {"answer_bytes", load.answer_bytes}};
}

// The daemon beside the echo, in turn, so that a slow moment of the machine hits both.
Json Compare(const std::string& echo, const std::string& daemon, const std::vector<std::string>& requests,
             const Options& options) {
  Json rounds = Json::array();
  std::vector<double> ratios;
  std::vector<double> echo_rates;
  std::vector<double> lookup_rates;
  for (int round = 0; round < options.rounds; ++round) {
    const Load bare = Run(echo, requests, options);
    const Load lookup = Run(daemon, requests, options);
    ratios.push_back(lookup.rate / bare.rate);
    echo_rates.push_back(bare.rate);
    lookup_rates.push_back(lookup.rate);
    rounds.push_back({{"echo", ToJson(bare)}, {"lookup", ToJson(lookup)}, {"ratio", ratios.back()}});
  }
  return {{"median_ratio", Median(ratios)},
          {"echo_calls_per_s", Median(echo_rates)},
          {"lookup_calls_per_s", Median(lookup_rates)},
          {"rounds", rounds}};
}

std::string BatchRequest(int first, int count, int picks, bool brief) {
  v1::LookupRequest request;
  for (int i = 0; i < count; ++i) {
    v1::LookupKey& key = *request.add_keys();
    *key.mutable_problem() = ProblemOf((first + i) % picks);
    key.set_m(16);
  }
  request.set_brief(brief);
  return request.SerializeAsString();
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Writes many picks, closes, and opens again.
Json MeasureOpening(int64_t picks, const TuningTarget& target) {
  TemporaryDirectory temporary;
  {
    auto store = RocksDbStore::Open(temporary.store());
    QGEMM_CHECK(store.ok());
    constexpr int64_t kPerWrite = 1000;
    // Each pick is a synced write; those of several threads share their syncs.
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 64; ++t) {
      threads.emplace_back([&] {
        for (int64_t i = next.fetch_add(kPerWrite); i < picks; i = next.fetch_add(kPerWrite)) {
          for (int64_t j = i; j < std::min(picks, i + kPerWrite); ++j) {
            QGEMM_CHECK((*store)->PutPick(PickRecordOf(static_cast<int>(j), target), {}).ok());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Json openings = Json::array();
  int64_t disk_bytes = 0;
  for (int i = 0; i < 3; ++i) {
    const auto begin = SteadyClock::now();
    auto store = RocksDbStore::Open(temporary.store());
    QGEMM_CHECK(store.ok());
    QGEMM_CHECK((*store)->GetPick(PickRecordOf(static_cast<int>(picks / 2), target).pick_key()).ok());
    openings.push_back(std::chrono::duration<double>(SteadyClock::now() - begin).count());
    disk_bytes = (*store)->Stats()->disk_bytes;
  }
  return {{"picks", picks}, {"open_and_first_lookup_s", openings}, {"disk_bytes", disk_bytes}};
}

// A store at its size limit while a week's inserts, four times the limit, come in; lookups through the daemon
// all the while.
Json MeasureAtTheLimit(const Options& options, const TuningTarget& target) {
  constexpr size_t kKernelBytes = 100'000;
  constexpr int kHot = 200;
  constexpr double kWeekSeconds = 30;  // all of its inserts, 9 MB/s
  TemporaryDirectory temporary;
  SimulatedClock clock;
  RocksDbStoreOptions store_options;
  store_options.clock = &clock;
  store_options.limit_bytes = kMinStoreLimitBytes;
  auto store = RocksDbStore::Open(temporary.store(), store_options);
  QGEMM_CHECK(store.ok());
  Housekeeping housekeeping(**store, clock, HousekeepingOptions());
  FakeCompiler compiler;
  DaemonOptions daemon_options;
  daemon_options.listen.push_back(*ParseListenAddress("unix:" + temporary.path() + "/qgemm.sock"));
  daemon_options.data_dir = temporary.store();
  auto daemon = Daemon::Start(**store, compiler, nullptr, clock,
                              *TargetResolver::Create("h200", "", std::nullopt), daemon_options);
  QGEMM_CHECK(daemon.ok());
  for (int i = 0; i < kHot; ++i) QGEMM_CHECK((*store)->PutPick(PickRecordOf(i, target), {}).ok());

  const int inserts = static_cast<int>(4 * kMinStoreLimitBytes / static_cast<int64_t>(kKernelBytes));
  std::atomic<bool> done{false};
  int64_t largest = 0;
  const auto begin = SteadyClock::now();
  std::thread inserter([&] {
    for (int i = 0; i < inserts; ++i) {
      std::this_thread::sleep_until(begin + std::chrono::duration_cast<SteadyClock::duration>(
                                                std::chrono::duration<double>(kWeekSeconds * i / inserts)));
      QGEMM_CHECK((*store)->PutKernel(Kernel(absl::StrCat("k", i), Noise(kKernelBytes, i))).ok());
      QGEMM_CHECK((*store)->PutPick(PickRecordOf(kHot + i, target), {}).ok());
      if (i % 8 == 0) largest = std::max(largest, (*store)->Stats()->disk_bytes);
      clock.Advance(std::chrono::minutes(7 * 24 * 60 / inserts + 1));
      if (i % 20 == 0) housekeeping.RunDue();
    }
    done = true;
  });
  std::vector<std::string> requests;
  for (int i = 0; i < kHot; ++i) requests.push_back(BatchRequest(i, 1, kHot, false));
  std::vector<double> latencies;
  while (!done) {
    Options one = options;
    one.threads = 1;
    one.seconds = 1;
    const std::vector<double> more = Latencies((*daemon)->addresses()[0], requests, one, 1000);
    latencies.insert(latencies.end(), more.begin(), more.end());
  }
  inserter.join();
  std::sort(latencies.begin(), latencies.end());
  Json json = {
      {"limit_bytes", store_options.limit_bytes},
      {"inserted_bytes", static_cast<int64_t>(inserts) * static_cast<int64_t>(kKernelBytes)},
      {"largest_bytes", largest},
      {"largest_over_limit", static_cast<double>(largest) / static_cast<double>(store_options.limit_bytes)},
      {"evicted", (*store)->Stats()->evicted},
      {"lookups", latencies.size()},
      {"lookup_p50_us", Percentile(latencies, 0.5)},
      {"lookup_p99_us", Percentile(latencies, 0.99)}};
  (*daemon)->Stop(std::chrono::milliseconds(0));
  return json;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Lookups through the daemon beside a bare gRPC echo of the same sizes.", "rpc_bench");
  app.add_option("--picks", options.picks, "Stored picks that are asked for")->capture_default_str();
  app.add_option("--many-picks", options.many_picks, "Picks of the store whose opening is timed; 0: none");
  app.add_option("--seconds", options.seconds, "Per measurement")->capture_default_str();
  app.add_option("--threads", options.threads, "Clients, one call at a time each")->capture_default_str();
  app.add_option("--batch", options.batch, "Keys of a batch")->capture_default_str();
  app.add_option("--rounds", options.rounds, "Of each measurement; medians count")->capture_default_str();
  bool at_limit = false;
  app.add_flag("--at-limit", at_limit,
               "Only: lookups while a week's inserts go into a store at its size limit");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);

  TemporaryDirectory temporary;
  auto store = RocksDbStore::Open(temporary.store());
  QGEMM_CHECK(store.ok());
  absl::StatusOr<TargetResolver> targets = TargetResolver::Create("h200", "", std::nullopt);
  QGEMM_CHECK(targets.ok());
  const TuningTarget target = *targets->Resolve("");
  if (at_limit) {
    std::printf("%s\n", MeasureAtTheLimit(options, target).dump(2).c_str());
    return 0;
  }
  FakeCompiler compiler;
  DaemonOptions daemon_options;
  const std::string socket = temporary.path() + "/qgemm.sock";
  for (const std::string& address : {"unix:" + socket, std::string("127.0.0.1:0")}) {
    daemon_options.listen.push_back(*ParseListenAddress(address));
  }
  daemon_options.data_dir = temporary.store();
  daemon_options.version = "bench";
  absl::StatusOr<std::unique_ptr<Daemon>> daemon =
      Daemon::Start(**store, compiler, nullptr, RealClock(), *std::move(targets), daemon_options);
  QGEMM_CHECK(daemon.ok());
  const int64_t idle_bytes = ResidentBytes();

  for (int i = 0; i < options.picks; ++i) QGEMM_CHECK((*store)->PutPick(PickRecordOf(i, target), {}).ok());
  std::vector<std::string> single;
  for (int i = 0; i < options.picks; ++i) single.push_back(BatchRequest(i, 1, options.picks, false));

  Json json;
  json["threads"] = options.threads;
  json["cores"] = std::thread::hardware_concurrency();
  json["idle_rss_bytes"] = idle_bytes;
  for (const std::string& address : (*daemon)->addresses()) {
    const bool is_unix = absl::StartsWith(address, "unix:");
    Json& out = json[is_unix ? "unix" : "loopback"];
    const auto echo_of = [&](size_t answer_bytes) {
      return Echo(answer_bytes, is_unix ? "unix:" + temporary.path() + "/echo.sock" : "");
    };
    {
      const Echo echo = echo_of(Run(address, single, {.seconds = 0.05, .threads = 1}).answer_bytes);
      out["single"] = Compare(echo.address(), address, single, options);
    }
    const double rate = out["single"]["lookup_calls_per_s"];
    std::vector<double> p99;
    for (int round = 0; round < options.rounds; ++round) {
      const Load load = Run(address, single, options, rate / 2);
      out["half_load"].push_back(ToJson(load));
      p99.push_back(load.p99_us);
    }
    out["half_load_p99_us"] = Median(p99);
    for (const bool brief : {true, false}) {
      std::vector<std::string> batches;
      for (int i = 0; i < 8; ++i) {
        batches.push_back(BatchRequest(i * options.batch, options.batch, options.picks, brief));
      }
      const Echo echo = echo_of(Run(address, batches, {.seconds = 0.05, .threads = 1}).answer_bytes);
      Json& batch = out[brief ? "batch_brief" : "batch_full"] =
          Compare(echo.address(), address, batches, options);
      batch["keys_per_s"] = batch["lookup_calls_per_s"].get<double>() * options.batch;
    }
  }
  if (options.many_picks > 0) json["opening"] = MeasureOpening(options.many_picks, target);
  std::printf("%s\n", json.dump(2).c_str());
  (*daemon)->Stop(std::chrono::milliseconds(0));
  return 0;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
