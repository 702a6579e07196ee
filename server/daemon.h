#ifndef QGEMM_SERVER_DAEMON_H_
#define QGEMM_SERVER_DAEMON_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/cache_store.h"
#include "server/access.h"
#include "server/bench_service.h"
#include "server/cache_service.h"
#include "server/compiler.h"
#include "server/file_lock.h"
#include "server/gpu.h"
#include "server/gpu_sharer.h"
#include "server/listen_address.h"
#include "server/pausable_gpu.h"
#include "server/service.h"
#include "server/source_bench.h"
#include "server/tls_credentials.h"
#include "server/tuner.h"
#include "server/unix_acceptor.h"

namespace qgemm {

struct DaemonOptions {
  std::vector<ListenAddress> listen;
  std::string data_dir;
  std::string version;
  std::string holder;  // what the socket's lock file says
  // Of every TCP address; null: they speak no TLS. Borrowed.
  const TlsCertificates* tls = nullptr;
  Access::Rules access;
  TunerOptions tuner;
};

// The tuner behind its RPCs, health and reflection. Owned and used by the main thread.
class Daemon {
 public:
  // Locks the sockets, listens, serves. Borrowed: store, compiler, gpu (may be null), clock.
  // FailedPrecondition: a socket is in use by another daemon (it is left alone) or its path is something
  // else's; Unavailable: an address cannot be listened on.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Daemon>> Start(CacheStore& store, Compiler& compiler,
                                                                     PausableGpu* gpu, Clock& clock,
                                                                     TargetResolver targets,
                                                                     const DaemonOptions& options);
  // Stop() must have been called.
  ~Daemon();

  // Where it listens, port 0 replaced by the port it got.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Asks the compiler whether a worker can be started (waiting for the first one's hello) and tells the
  // health service: "qgemm.v1.Tuner" is NOT_SERVING without one. Returns the reason when that state is new to
  // the caller.
  absl::Status UpdateHealth();

  // To be called about once a second: deadlines, jobs that wait for something to come back, history.
  void Tick() { tuner_.Tick(); }

  // Gives the GPU back when nothing has used it for `idle`.
  void ReleaseIdleGpu(Duration idle) {
    if (gpu_ != nullptr) gpu_->ReleaseIfIdle(idle);
  }

  // New jobs are refused from here on, after health has said NOT_SERVING; lookups and accepted jobs go on.
  void Drain();
  // Jobs that have not ended and do not wait for something to come back.
  int active_jobs() { return tuner_.jobs().active(); }
  void SetLimits(const JobLimits& limits) { tuner_.jobs().SetLimits(limits); }
  void SetAccess(Access::Rules rules) { access_.SetRules(std::move(rules)); }

  // Accepts nothing new, lets running calls end within `grace`, then withdraws them.
  void Stop(std::chrono::milliseconds grace);

 private:
  Daemon(CacheStore& store, Compiler& compiler, PausableGpu* gpu, Clock& clock, TargetResolver targets,
         const DaemonOptions& options);

  absl::Status Listen(const DaemonOptions& options);
  absl::Status ListenOnUnixSocket(const std::string& path, const std::string& holder);
  void AcceptUnixConnections();

  Access access_;
  PausableGpu* const gpu_;  // may be null
  // The tuner and the source bench share the GPU; all three are null without one.
  std::unique_ptr<GpuSharer> gpu_sharer_;
  std::unique_ptr<Gpu> tuner_gpu_;
  std::unique_ptr<Gpu> bench_gpu_;
  SourceBench source_bench_;
  Tuner tuner_;
  TunerService tuner_service_;
  CacheService cache_service_;
  DeviceService device_service_;
  BenchService bench_service_;
  std::vector<FileLock> socket_locks_;
  std::vector<std::shared_ptr<grpc::ServerCredentials>> credentials_;  // of the TCP addresses
  // What connects over a unix socket goes to one of two, whose credentials tell them apart later.
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> own_user_connections_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> other_connections_;
  std::vector<std::unique_ptr<UnixAcceptor>> unix_acceptors_;
  std::vector<std::string> addresses_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_DAEMON_H_
