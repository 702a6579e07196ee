#include "server/daemon.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr int kMaxReceiveBytes = 4 << 20;  // 4096 problems take about 200 KB

bool SomebodyListens(const std::string& path) {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return fd.valid() && connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Makes `path` free to be bound, or says why it is not. gRPC itself would replace whatever is there.
absl::StatusOr<FileLock> ClaimSocket(const std::string& path, const std::string& holder) {
  const std::string folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("the folder ", folder, " of the socket cannot be created: ", error.message(),
                     "; choose another with --listen unix:PATH (and qgemmctl --server)"));
  }
  absl::StatusOr<FileLock> lock = FileLock::Take(path + ".lock", holder);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat("socket ", path, " is in use by another qgemmd (",
                                                      std::string(lock.status().message()), ")"));
  }
  QGEMM_RETURN_IF_ERROR(lock.status());
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return lock;
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at the socket ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat("socket ", path, " exists and is not a socket"));
  }
  if (SomebodyListens(path)) {
    return absl::FailedPreconditionError(absl::StrCat("socket ", path, " is in use by another program"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove the stale socket ", path));
  }
  return lock;
}

// gRPC's own words, most of them about single connections, in the place and the format of the log.
void LogForGrpc(gpr_log_func_args* entry) { spdlog::debug("gRPC: {}", entry->message); }

TunerOptions WithNote(TunerOptions options, PausableGpu* gpu) {
  if (gpu != nullptr) {
    options.note = [gpu] {
      return std::string(gpu->paused() ? "the GPU is paused: qgemmctl device resume" : "");
    };
  }
  return options;
}

}  // namespace

Daemon::Daemon(CacheStore& store, Compiler& compiler, PausableGpu* gpu, Clock& clock, TargetResolver targets,
               const DaemonOptions& options)
    : access_(options.access),
      gpu_(gpu),
      gpu_sharer_(gpu != nullptr ? std::make_unique<GpuSharer>(*gpu) : nullptr),
      tuner_gpu_(gpu != nullptr ? gpu_sharer_->NewUser() : nullptr),
      bench_gpu_(gpu != nullptr ? gpu_sharer_->NewUser() : nullptr),
      source_bench_(store, compiler, bench_gpu_.get(), clock, targets),
      tuner_(store, compiler, tuner_gpu_.get(), clock, std::move(targets), WithNote(options.tuner, gpu)),
      tuner_service_(tuner_, store, access_),
      cache_service_(tuner_, store, clock, access_, options.data_dir, options.version),
      device_service_(tuner_, compiler, gpu, access_, options.version),
      bench_service_(source_bench_, access_) {}

Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(CacheStore& store, Compiler& compiler, PausableGpu* gpu,
                                                      Clock& clock, TargetResolver targets,
                                                      const DaemonOptions& options) {
  std::unique_ptr<Daemon> daemon(new Daemon(store, compiler, gpu, clock, std::move(targets), options));
  const absl::Status journal = daemon->tuner_.OpenJournal();
  if (!journal.ok()) spdlog::error("the journal of jobs cannot be read: {}", journal.ToString());
  QGEMM_RETURN_IF_ERROR(daemon->Listen(options));
  return daemon;
}

absl::Status Daemon::Listen(const DaemonOptions& options) {
  gpr_set_log_function(LogForGrpc);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  // Two daemons must not share a port: clients would reach one or the other.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients ping during a long silent Tune to notice a daemon that hangs; by default that is refused as
  // abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  std::vector<int> ports(options.listen.size(), 0);
  for (size_t i = 0; i < options.listen.size(); ++i) {
    const ListenAddress& address = options.listen[i];
    if (address.is_unix) {
      QGEMM_RETURN_IF_ERROR(ListenOnUnixSocket(address.path, options.holder));
      continue;
    }
    credentials_.push_back(options.tls != nullptr ? NewTlsServerCredentials(*options.tls)
                                                  : grpc::InsecureServerCredentials());
    builder.AddListeningPort(address.ForGrpc(), credentials_.back(), &ports[i]);
  }
  if (!unix_acceptors_.empty()) {
    using grpc::ServerBuilder;
    constexpr auto kFromFd = ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD;
    own_user_connections_ = builder.experimental().AddExternalConnectionAcceptor(
        kFromFd, grpc::experimental::LocalServerCredentials(UDS));
    other_connections_ =
        builder.experimental().AddExternalConnectionAcceptor(kFromFd, grpc::InsecureServerCredentials());
  }
  builder.RegisterService(&tuner_service_);
  builder.RegisterService(&cache_service_);
  builder.RegisterService(&device_service_);
  builder.RegisterService(&bench_service_);
  server_ = builder.BuildAndStart();
  for (size_t i = 0; i < options.listen.size(); ++i) {
    ListenAddress address = options.listen[i];
    if (server_ == nullptr || (!address.is_unix && ports[i] == 0)) {
      if (server_ != nullptr) Stop(std::chrono::milliseconds(0));
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address.ForGrpc(), ": the address is in use or not permitted"));
    }
    if (!address.is_unix) address.port = ports[i];
    addresses_.push_back(address.ForGrpc());
  }
  AcceptUnixConnections();
  return absl::OkStatus();
}

absl::Status Daemon::ListenOnUnixSocket(const std::string& path, const std::string& holder) {
  QGEMM_ASSIGN_OR_RETURN(FileLock lock, ClaimSocket(path, holder));
  socket_locks_.push_back(std::move(lock));
  QGEMM_ASSIGN_OR_RETURN(std::unique_ptr<UnixAcceptor> acceptor, UnixAcceptor::Listen(path));
  unix_acceptors_.push_back(std::move(acceptor));
  return absl::OkStatus();
}

void Daemon::AcceptUnixConnections() {
  for (const std::unique_ptr<UnixAcceptor>& acceptor : unix_acceptors_) {
    acceptor->Start([this](UniqueFd connection, bool own_user) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
      parameters.fd = connection.release();
      (own_user ? own_user_connections_ : other_connections_)->HandleNewConnection(&parameters);
    });
  }
}

absl::Status Daemon::UpdateHealth() {
  absl::Status toolchain = tuner_.Toolchain().status();
  grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
  health.SetServingStatus("qgemm.v1.Tuner", toolchain.ok());
  health.SetServingStatus("qgemm.v1.Cache", true);
  health.SetServingStatus("qgemm.v1.Device", true);
  health.SetServingStatus("qgemm.v1.Bench", toolchain.ok());
  return toolchain;
}

void Daemon::Drain() {
  if (grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService()) {
    health->SetServingStatus(false);
  }
  tuner_.jobs().Drain();
}

void Daemon::Stop(std::chrono::milliseconds grace) {
  if (grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService()) health->Shutdown();
  // First those who wait for jobs: their calls would last as long as the jobs.
  if (gpu_ != nullptr) gpu_->Stop();
  tuner_.Stop();
  source_bench_.Stop();
  for (const std::unique_ptr<UnixAcceptor>& acceptor : unix_acceptors_) acceptor->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace qgemm
