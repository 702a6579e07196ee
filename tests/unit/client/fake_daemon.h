#ifndef QGEMM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
#define QGEMM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "qgemm/v1/bench.grpc.pb.h"
#include "qgemm/v1/cache.grpc.pb.h"
#include "qgemm/v1/device.grpc.pb.h"
#include "qgemm/v1/tuner.grpc.pb.h"

namespace qgemm {

// What the daemon answers; set before the first call.
struct FakeAnswers {
  std::function<grpc::Status(const v1::TuneRequest&, grpc::ServerWriter<v1::TuneEvent>*)> tune;
  std::function<grpc::Status(const v1::WatchJobRequest&, grpc::ServerWriter<v1::TuneEvent>*)> watch;
  std::function<grpc::Status(const v1::ListJobsRequest&, v1::ListJobsResponse*)> jobs;
  std::function<grpc::Status(const v1::CancelJobRequest&, v1::CancelJobResponse*)> cancel;
  std::string client_id;  // of the last Tune
  bool paused = false;
  std::function<grpc::Status(const v1::LookupRequest&, v1::LookupResponse*)> lookup;
  std::function<grpc::Status(const v1::TuneRequest&, v1::TuneEstimate*)> estimate;
  std::function<grpc::Status(const v1::WarmRequest&, grpc::ServerWriter<v1::WarmEvent>*)> warm;
  std::function<grpc::Status(const v1::ExplainRequest&, v1::ExplainResponse*)> explain;
  std::vector<v1::KernelChunk> chunks;
  grpc::Status kernels_status;
  std::vector<v1::CacheEntry> entries;
  v1::CacheStatsResponse stats;
  v1::DescribeResponse description;
  std::function<grpc::Status(const v1::CompareSourceRequest&, grpc::ServerWriter<v1::CompareSourceEvent>*)>
      compare_source;
};

// A gRPC server on a unix socket in a folder of its own, in this process. Calls without an answer set are
// UNIMPLEMENTED.
class FakeDaemon {
 public:
  FakeDaemon();
  ~FakeDaemon();

  const std::string& address() const { return address_; }
  FakeAnswers& answers() { return answers_; }
  // Ends the server and its connections at once; the socket is gone.
  void Stop();

 private:
  class Tuner;
  class Cache;
  class Device;
  class Bench;

  std::string folder_;
  std::string address_;
  FakeAnswers answers_;
  std::unique_ptr<v1::Tuner::Service> tuner_;
  std::unique_ptr<v1::Cache::Service> cache_;
  std::unique_ptr<v1::Device::Service> device_;
  std::unique_ptr<v1::Bench::Service> bench_;
  std::unique_ptr<grpc::Server> server_;
};

// Writes progress until the client goes away: a Tune that never ends by itself. `started` is called after the
// first event is on its way.
grpc::Status TuneForEver(grpc::ServerWriter<v1::TuneEvent>* writer, const std::function<void()>& started);

// An event that another thread waits for.
class Notification {
 public:
  void Notify();
  void Wait();

 private:
  Mutex mu_;
  CondVar cv_;
  bool notified_ QGEMM_GUARDED_BY(mu_) = false;
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
