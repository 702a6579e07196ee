// A real qgemmd under a steady mixture of what teams do to it: lookups one by one and in batches, tunings
// that are cached, new and repeated, clients that leave in the middle, detached jobs that are watched and
// cancelled, kernels, lists and explanations read, connections opened and closed; with a simulated GPU and
// real compile workers. Samples the daemon's memory and descriptors and checks every answer. Prints JSON;
// exit status 1: memory grew by 5 % or more after the first tenth, descriptors grew, or an answer was wrong.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"
#include "tests/fakes/int4_problem.h"
#include "tests/system/daemon_process.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;
using SteadyClock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr int kShapes = 48;
constexpr int64_t kRows[] = {1, 16, 64};
constexpr std::chrono::seconds kSampleEvery(2);

struct Options {
  double seconds = 1800;
  double lookups_per_s = 300;
  std::string programs = fs::read_symlink("/proc/self/exe").parent_path();
  std::string data_dir;
};

v1::Problem Shape(int i) { return Int4Problem(256 * (1 + i % 12), 1024 * (1 + i / 12)); }

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

float At(const std::vector<float>& sorted, double part) {
  return sorted.empty() ? 0 : sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
}

// What clients counted and saw. Thread-safe.
class Tally {
 public:
  void Count(const std::string& what, int64_t n = 1) {
    MutexLock lock(mu_);
    counts_[what] += n;
  }
  // A client was told something that is not so.
  void Wrong(const std::string& what) {
    MutexLock lock(mu_);
    counts_["wrong"] += 1;
    if (wrong_.size() < 20) wrong_.push_back(what);
  }
  void Expect(const grpc::Status& status, const std::string& what) {
    if (!status.ok()) Wrong(absl::StrCat(what, ": ", status.error_code(), " ", status.error_message()));
  }
  void Took(double us) {
    MutexLock lock(mu_);
    lookup_us_.push_back(static_cast<float>(us));
  }
  Json ToJson() {
    MutexLock lock(mu_);
    std::sort(lookup_us_.begin(), lookup_us_.end());
    const std::vector<float>& us = lookup_us_;
    return {{"counts", counts_},
            {"wrong", wrong_},
            {"lookup_us",
             {{"p50", At(us, 0.5)}, {"p99", At(us, 0.99)}, {"p999", At(us, 0.999)}, {"max", At(us, 1)}}}};
  }

 private:
  Mutex mu_;
  std::map<std::string, int64_t> counts_ QGEMM_GUARDED_BY(mu_);
  std::vector<std::string> wrong_ QGEMM_GUARDED_BY(mu_);
  std::vector<float> lookup_us_ QGEMM_GUARDED_BY(mu_);
};

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Tuner::Stub> tuner;
  std::unique_ptr<v1::Cache::Stub> cache;

  explicit Connection(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    tuner = v1::Tuner::NewStub(channel);
    cache = v1::Cache::NewStub(channel);
  }
};

std::unique_ptr<grpc::ClientContext> Context(const std::string& client) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("client_id", client);
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  return context;
}

bool Answers(const v1::Pick& pick, const v1::Problem& problem) {
  return pick.problem().n() == problem.n() && pick.problem().k() == problem.k() &&
         pick.kernel().sha256().size() == 64 && !pick.launch().entry().empty();
}

class Clients {
 public:
  Clients(std::string address, const Options& options, Tally& tally)
      : address_(std::move(address)), options_(options), tally_(tally) {}

  // Every shape has its picks, and every client has done everything once, before memory counts.
  void Begin() {
    Connection connection(address_);
    for (int i = 0; i < kShapes; ++i) Tune(connection, "begin", i, /*retune=*/false);
    end_ = SteadyClock::now() +
           std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(options_.seconds));
    constexpr int kLookupClients = 3;
    for (int t = 0; t < kLookupClients; ++t) {
      Loop(options_.lookups_per_s / kLookupClients,
           [this, connection = std::make_shared<Connection>(address_), t](int64_t i,
                                                                          SteadyClock::time_point due) {
             LookUp(*connection, static_cast<int>(i * 7 + t) % kShapes, due);
           });
    }
    Loop(4, [this, connection = std::make_shared<Connection>(address_)](int64_t i, SteadyClock::time_point) {
      LookUpBatch(*connection, /*brief=*/i % 2 == 0);
    });
    Loop(0.7, [this, connection = std::make_shared<Connection>(address_)](int64_t i,
                                                                          SteadyClock::time_point) {
      Tune(*connection, absl::StrCat("tuner", i % 5), static_cast<int>(i % kShapes), /*retune=*/i % 4 == 0);
    });
    // Connections of their own, each time.
    Loop(0.5, [this](int64_t i, SteadyClock::time_point) { LeaveInTheMiddle(static_cast<int>(i)); });
    Loop(0.3, [this](int64_t i, SteadyClock::time_point) { DetachWatchAndCancel(static_cast<int>(i)); });
    Loop(0.5, [this](int64_t i, SteadyClock::time_point) { Read(static_cast<int>(i)); });
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
  }
  bool Ended() const { return SteadyClock::now() >= end_; }

 private:
  // Calls `work` so often per second; late calls are made up for, and counted from when they were due.
  void Loop(double per_second, std::function<void(int64_t, SteadyClock::time_point)> work) {
    threads_.emplace_back([this, per_second, work = std::move(work)] {
      const auto begin = SteadyClock::now();
      for (int64_t i = 0;; ++i) {
        const auto due = begin + std::chrono::duration_cast<SteadyClock::duration>(
                                     std::chrono::duration<double>(static_cast<double>(i) / per_second));
        if (due >= end_) return;
        std::this_thread::sleep_until(due);
        work(i, due);
      }
    });
  }

  void LookUp(Connection& connection, int shape, SteadyClock::time_point due) {
    v1::LookupRequest request;
    *request.add_keys()->mutable_problem() = Shape(shape);
    request.mutable_keys(0)->set_m(kRows[shape % std::size(kRows)]);
    v1::LookupResponse response;
    const auto context = Context("lookup");
    const grpc::Status status = connection.tuner->Lookup(context.get(), request, &response);
    tally_.Took(std::chrono::duration<double, std::micro>(SteadyClock::now() - due).count());
    tally_.Expect(status, "lookup");
    if (status.ok() && (response.answers_size() != 1 || !Answers(response.answers(0).pick(), Shape(shape)))) {
      tally_.Wrong(absl::StrCat("lookup of shape ", shape, ": ", response.ShortDebugString().substr(0, 200)));
    }
    tally_.Count("lookups");
  }

  void LookUpBatch(Connection& connection, bool brief) {
    v1::LookupRequest request;
    request.set_brief(brief);
    for (int i = 0; i < 1000; ++i) {
      *request.add_keys()->mutable_problem() = Shape(i % kShapes);
      request.mutable_keys(i)->set_m(kRows[i % std::size(kRows)]);
    }
    v1::LookupResponse response;
    const auto context = Context("batch");
    tally_.Expect(connection.tuner->Lookup(context.get(), request, &response), "batch");
    int answered = 0;
    for (const v1::LookupAnswer& answer : response.answers()) {
      answered += brief ? answer.has_brief() : answer.has_pick();
    }
    if (answered != 1000) tally_.Wrong(absl::StrCat("batch: ", answered, " of 1000 keys answered"));
    tally_.Count("batches of 1000");
  }

  v1::TuneRequest TuneRequestOf(int shape, bool retune) {
    v1::TuneRequest request;
    *request.add_problems() = Shape(shape);
    for (const int64_t m : kRows) request.add_m(m);
    request.set_effort(v1::EFFORT_QUICK);
    request.set_retune(retune);
    return request;
  }

  void Tune(Connection& connection, const std::string& client, int shape, bool retune) {
    const auto context = Context(client);
    const auto reader = connection.tuner->Tune(context.get(), TuneRequestOf(shape, retune));
    v1::TuneEvent event;
    int picks = 0;
    while (reader->Read(&event)) {
      if (event.has_result()) picks += Answers(event.result().pick(), Shape(shape)) ? 1 : 0;
    }
    tally_.Expect(reader->Finish(), "tune");
    if (picks != std::size(kRows)) tally_.Wrong(absl::StrCat("tune of shape ", shape, ": ", picks, " picks"));
    tally_.Count(retune ? "tunings repeated" : "tunings");
  }

  void LeaveInTheMiddle(int i) {
    Connection connection(address_);
    const auto context = Context("leaver");
    v1::TuneRequest request = TuneRequestOf(i % kShapes, /*retune=*/true);
    request.set_effort(v1::EFFORT_BALANCED);
    const auto reader = connection.tuner->Tune(context.get(), request);
    v1::TuneEvent event;
    for (int events = 0; events <= i % 4 && reader->Read(&event); ++events) {
    }
    if (i % 2 == 0) context->TryCancel();
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    if (status.error_code() != grpc::CANCELLED) tally_.Expect(status, "tune that is left");
    tally_.Count("tunings left in the middle");
  }

  void DetachWatchAndCancel(int i) {
    Connection connection(address_);
    v1::TuneRequest request = TuneRequestOf(i % kShapes, /*retune=*/true);
    request.set_detach(true);
    std::string job_id;
    v1::TuneEvent event;
    {
      const auto context = Context("detacher");
      const auto reader = connection.tuner->Tune(context.get(), request);
      while (reader->Read(&event)) {
        if (event.has_accepted()) job_id = event.accepted().job_id();
      }
      tally_.Expect(reader->Finish(), "detach");
    }
    if (i % 2 == 0) {
      const auto context = Context("detacher");
      v1::CancelJobRequest cancel;
      cancel.set_job_id(job_id);
      v1::CancelJobResponse response;
      tally_.Expect(connection.tuner->CancelJob(context.get(), cancel, &response), "cancel");
    }
    const auto context = Context("detacher");
    v1::WatchJobRequest watch;
    watch.set_job_id(job_id);
    const auto reader = connection.tuner->WatchJob(context.get(), watch);
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    if (i % 2 == 1 || status.error_code() != grpc::CANCELLED) tally_.Expect(status, "watch");
    tally_.Count("detached jobs");
  }

  void Read(int i) {
    Connection connection(address_);
    v1::CacheListRequest list;
    list.set_what(v1::CacheListRequest::KERNELS);
    std::vector<std::string> kernels;
    {
      const auto context = Context("reader");
      const auto reader = connection.cache->List(context.get(), list);
      v1::CacheEntry entry;
      while (reader->Read(&entry)) kernels.push_back(entry.key());
      tally_.Expect(reader->Finish(), "list");
    }
    if (!kernels.empty()) {
      v1::GetKernelsRequest request;
      request.add_sha256(kernels[static_cast<size_t>(i) % kernels.size()]);
      const auto context = Context("reader");
      const auto reader = connection.tuner->GetKernels(context.get(), request);
      v1::KernelChunk chunk;
      int64_t bytes = 0;
      int64_t total = 0;
      while (reader->Read(&chunk)) {
        bytes += static_cast<int64_t>(chunk.data().size());
        total += chunk.total_bytes();
      }
      tally_.Expect(reader->Finish(), "kernel");
      if (bytes != total || bytes == 0) {
        tally_.Wrong(absl::StrCat("kernel: ", bytes, " of ", total, " bytes"));
      }
    }
    if (i % 10 == 0) {
      const auto context = Context("reader");
      v1::CacheExportRequest request;
      request.mutable_selection()->set_all(true);
      const auto reader = connection.cache->Export(context.get(), request);
      v1::PackChunk chunk;
      while (reader->Read(&chunk)) {
      }
      tally_.Expect(reader->Finish(), "export");
      tally_.Count("exports");
    }
    {
      const auto context = Context("reader");
      v1::CacheStatsResponse stats;
      tally_.Expect(connection.cache->Stats(context.get(), {}, &stats), "stats");
    }
    {
      const auto context = Context("reader");
      v1::ListJobsResponse jobs;
      tally_.Expect(connection.tuner->ListJobs(context.get(), {}, &jobs), "list of jobs");
    }
    const auto context = Context("reader");
    v1::ExplainRequest explain;
    *explain.mutable_problem() = Shape(i % kShapes);
    explain.set_m(16);
    v1::ExplainResponse explained;
    tally_.Expect(connection.cache->Explain(context.get(), explain, &explained), "explain");
    tally_.Count("readings");
  }

  const std::string address_;
  const Options& options_;
  Tally& tally_;
  SteadyClock::time_point end_;
  std::vector<std::thread> threads_;
};

struct Sample {
  double at_s = 0;
  double rss_kib = 0;
  double descriptors = 0;  // but for:
  double store_files = 0;  // open tables and blob files, which come and go with the store's size
  double threads = 0;
};

Sample SampleOf(pid_t pid, double at_s) {
  Sample sample{.at_s = at_s};
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:") status >> sample.rss_kib;
    if (word == "Threads:") status >> sample.threads;
  }
  std::error_code error;
  for (fs::directory_iterator entry(absl::StrCat("/proc/", pid, "/fd"), error), end; entry != end; ++entry) {
    const std::string extension = fs::read_symlink(entry->path(), error).extension();
    ++(extension == ".sst" || extension == ".blob" ? sample.store_files : sample.descriptors);
  }
  return sample;
}

double MedianOf(const std::vector<Sample>& samples, double begin_s, double end_s, double Sample::*field) {
  std::vector<double> values;
  for (const Sample& sample : samples) {
    if (sample.at_s >= begin_s && sample.at_s < end_s) values.push_back(sample.*field);
  }
  return Median(values);
}

int Main(int argc, char** argv) {
  Options options;
  std::string out;
  CLI::App app("A real qgemmd under a mixed load: memory, descriptors, latencies.", "mixed_load");
  app.add_option("--seconds", options.seconds, "Length, after all shapes were tuned")->capture_default_str();
  app.add_option("--lookups-per-s", options.lookups_per_s, "Single lookups per second")
      ->capture_default_str();
  app.add_option("--programs", options.programs, "Folder of qgemmd, qgemm-compile, qgemm-time-simulated");
  app.add_option("--data-dir", options.data_dir, "Of the daemon; default: a temporary one");
  app.add_option("--out", out, "Also writes the JSON, with all samples, there");
  CLI11_PARSE(app, argc, argv);

  std::string folder = (fs::temp_directory_path() / "qgemm-load-XXXXXX").string();
  QGEMM_CHECK(mkdtemp(folder.data()) != nullptr);
  if (options.data_dir.empty()) options.data_dir = folder + "/data";
  const std::string address = "unix:" + folder + "/qgemm.sock";
  Json json;
  bool good = false;
  {
    DaemonProcess daemon(
        options.programs + "/qgemmd",
        {"--listen", address, "--data-dir", options.data_dir, "--lock-dir", folder, "--compile-binary",
         options.programs + "/qgemm-compile", "--time-binary", options.programs + "/qgemm-time-simulated"});
    if (!daemon.AwaitLine("ready: listening on").has_value()) {
      std::fprintf(stderr, "qgemmd did not start:\n%s\n", daemon.Output().c_str());
      return 2;
    }
    const Sample idle = SampleOf(daemon.pid(), 0);
    Tally tally;
    Clients clients(address, options, tally);
    clients.Begin();
    const auto begin = SteadyClock::now();
    std::vector<Sample> samples;
    while (!clients.Ended()) {
      std::this_thread::sleep_for(kSampleEvery);
      samples.push_back(
          SampleOf(daemon.pid(), std::chrono::duration<double>(SteadyClock::now() - begin).count()));
      if (samples.size() % 30 == 1) {
        std::fprintf(stderr, "%5.0f s  %6.1f MiB  %3.0f descriptors  %3.0f threads\n", samples.back().at_s,
                     samples.back().rss_kib / 1024, samples.back().descriptors, samples.back().threads);
      }
    }
    clients.Join();
    // The second tenth against the last one.
    const double tenth = options.seconds / 10;
    const auto window = [&](int number, double Sample::*field) {
      return MedianOf(samples, number * tenth, (number + 1) * tenth, field);
    };
    const double rss_before = window(1, &Sample::rss_kib);
    const double rss_after = window(9, &Sample::rss_kib);
    const double descriptors_before = window(1, &Sample::descriptors);
    const double descriptors_after = window(9, &Sample::descriptors);
    const double growth = rss_before > 0 ? 100 * (rss_after / rss_before - 1) : 0;
    json = tally.ToJson();
    json["seconds"] = options.seconds;
    json["idle_rss_mib"] = idle.rss_kib / 1024;
    json["rss_mib"] = {{"second_tenth", rss_before / 1024}, {"last_tenth", rss_after / 1024}};
    json["rss_growth_percent"] = growth;
    json["descriptors"] = {{"second_tenth", descriptors_before}, {"last_tenth", descriptors_after}};
    json["store_files"] = {{"second_tenth", window(1, &Sample::store_files)},
                           {"last_tenth", window(9, &Sample::store_files)}};
    json["threads"] = {{"second_tenth", window(1, &Sample::threads)},
                       {"last_tenth", window(9, &Sample::threads)}};
    good = growth < 5 && descriptors_after <= descriptors_before + 2 && json["wrong"].empty();
    std::printf("%s\n", json.dump(2).c_str());
    for (const Sample& sample : samples) {
      json["samples"].push_back(
          {sample.at_s, sample.rss_kib, sample.descriptors, sample.store_files, sample.threads});
    }
  }
  if (!out.empty()) std::ofstream(out) << json.dump() << "\n";
  fs::remove_all(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
