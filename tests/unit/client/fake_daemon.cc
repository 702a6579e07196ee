#include "tests/unit/client/fake_daemon.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/check.h"

namespace qgemm {

class FakeDaemon::Tuner final : public v1::Tuner::Service {
 public:
  explicit Tuner(FakeAnswers& answers) : answers_(answers) {}

  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::TuneEvent>* writer) override {
    if (!answers_.watch) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.watch(*request, writer);
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (!answers_.jobs) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.jobs(*request, response);
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse* response) override {
    if (!answers_.cancel) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.cancel(*request, response);
  }
  grpc::Status Tune(grpc::ServerContext* context, const v1::TuneRequest* request,
                    grpc::ServerWriter<v1::TuneEvent>* writer) override {
    const auto client = context->client_metadata().find("client_id");
    if (client != context->client_metadata().end()) {
      answers_.client_id.assign(client->second.data(), client->second.size());
    }
    if (!answers_.tune) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.tune(*request, writer);
  }
  grpc::Status Lookup(grpc::ServerContext*, const v1::LookupRequest* request,
                      v1::LookupResponse* response) override {
    if (!answers_.lookup) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.lookup(*request, response);
  }
  grpc::Status Estimate(grpc::ServerContext*, const v1::TuneRequest* request,
                        v1::TuneEstimate* response) override {
    if (!answers_.estimate) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.estimate(*request, response);
  }
  grpc::Status Warm(grpc::ServerContext*, const v1::WarmRequest* request,
                    grpc::ServerWriter<v1::WarmEvent>* writer) override {
    if (!answers_.warm) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.warm(*request, writer);
  }
  grpc::Status GetKernels(grpc::ServerContext*, const v1::GetKernelsRequest*,
                          grpc::ServerWriter<v1::KernelChunk>* writer) override {
    for (const v1::KernelChunk& chunk : answers_.chunks) writer->Write(chunk);
    return answers_.kernels_status;
  }

 private:
  FakeAnswers& answers_;
};

class FakeDaemon::Cache final : public v1::Cache::Service {
 public:
  explicit Cache(const FakeAnswers& answers) : answers_(answers) {}

  grpc::Status Stats(grpc::ServerContext*, const v1::CacheStatsRequest*,
                     v1::CacheStatsResponse* response) override {
    *response = answers_.stats;
    return grpc::Status::OK;
  }
  grpc::Status List(grpc::ServerContext*, const v1::CacheListRequest* request,
                    grpc::ServerWriter<v1::CacheEntry>* writer) override {
    for (const v1::CacheEntry& entry : answers_.entries) {
      if (entry.has_kernel() == (request->what() == v1::CacheListRequest::KERNELS)) writer->Write(entry);
    }
    return grpc::Status::OK;
  }
  grpc::Status Explain(grpc::ServerContext*, const v1::ExplainRequest* request,
                       v1::ExplainResponse* response) override {
    if (!answers_.explain) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.explain(*request, response);
  }

 private:
  const FakeAnswers& answers_;
};

class FakeDaemon::Device final : public v1::Device::Service {
 public:
  explicit Device(FakeAnswers& answers) : answers_(answers) {}

  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    *response = answers_.description;
    return grpc::Status::OK;
  }
  grpc::Status Pause(grpc::ServerContext*, const v1::PauseRequest*, v1::PauseResponse*) override {
    answers_.paused = true;
    return grpc::Status::OK;
  }
  grpc::Status Resume(grpc::ServerContext*, const v1::ResumeRequest*, v1::ResumeResponse*) override {
    if (!answers_.paused) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "pid 7 has the GPU");
    answers_.paused = false;
    return grpc::Status::OK;
  }

 private:
  FakeAnswers& answers_;
};

class FakeDaemon::Bench final : public v1::Bench::Service {
 public:
  explicit Bench(const FakeAnswers& answers) : answers_(answers) {}

  grpc::Status CompareSource(grpc::ServerContext*, const v1::CompareSourceRequest* request,
                             grpc::ServerWriter<v1::CompareSourceEvent>* writer) override {
    if (!answers_.compare_source) return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
    return answers_.compare_source(*request, writer);
  }

 private:
  const FakeAnswers& answers_;
};

FakeDaemon::FakeDaemon() {
  std::string pattern = (std::filesystem::temp_directory_path() / "qgemm-client.XXXXXX").string();
  QGEMM_CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  address_ = "unix:" + folder_ + "/socket";
  tuner_ = std::make_unique<Tuner>(answers_);
  cache_ = std::make_unique<Cache>(answers_);
  device_ = std::make_unique<Device>(answers_);
  bench_ = std::make_unique<Bench>(answers_);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
  builder.RegisterService(tuner_.get());
  builder.RegisterService(cache_.get());
  builder.RegisterService(device_.get());
  builder.RegisterService(bench_.get());
  // gRPC's synchronous server may notice its end only when a poll times out, by default after 10 s.
  builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 50);
  server_ = builder.BuildAndStart();
  QGEMM_CHECK(server_ != nullptr);
}

FakeDaemon::~FakeDaemon() {
  Stop();
  std::filesystem::remove_all(folder_);
}

void FakeDaemon::Stop() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_.reset();
}

grpc::Status TuneForEver(grpc::ServerWriter<v1::TuneEvent>* writer, const std::function<void()>& started) {
  v1::TuneEvent event;
  event.mutable_progress()->set_results_wanted(1);
  bool open = writer->Write(event);
  started();
  while (open) open = writer->Write(event);
  return grpc::Status::CANCELLED;
}

void Notification::Notify() {
  MutexLock lock(mu_);
  notified_ = true;
  cv_.NotifyAll();
}

void Notification::Wait() {
  MutexLock lock(mu_);
  while (!notified_) cv_.Wait(mu_);
}

}  // namespace qgemm
