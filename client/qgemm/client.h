#ifndef QGEMM_CLIENT_QGEMM_CLIENT_H_
#define QGEMM_CLIENT_QGEMM_CLIENT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "qgemm/v1/bench.pb.h"
#include "qgemm/v1/cache.pb.h"
#include "qgemm/v1/device.pb.h"
#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// This library's version, "0.1.0".
absl::string_view ClientVersion();

// Where a client connects when it is told nothing: the environment's QGEMM_SERVER, else the daemon's default
// socket unix:$XDG_RUNTIME_DIR/qgemm.sock, else unix:/run/qgemm/qgemm.sock.
std::string DefaultServerAddress();

// Who a client is for the daemon's queues when it is told nothing: the environment's QGEMM_CLIENT_ID, else
// user@host.
std::string DefaultClientId();

struct ClientOptions {
  std::string server;  // unix:PATH or HOST:PORT; empty: DefaultServerAddress()
  // Clients of one name share a queue and a quota; empty: DefaultClientId().
  std::string client_id;
  // What a daemon with a tokens file asks for: the token, or a file that holds it. Both empty: the
  // environment's QGEMM_TOKEN, else the file QGEMM_TOKEN_FILE, else none is sent.
  std::string token;
  std::string token_file;
  // PEM files for TLS. Over TCP to another machine TLS is always spoken, to this one when tls_ca or tls_cert
  // is set; over a unix socket never. Empty: the environment's QGEMM_TLS_CA (else the system's roots),
  // QGEMM_TLS_CERT and QGEMM_TLS_KEY (else no certificate is shown). Read by Connect.
  std::string tls_ca;
  std::string tls_cert;
  std::string tls_key;
  // How long a daemon may take to accept the connection before a call is answered Unavailable.
  absl::Duration connect_timeout = absl::Seconds(5);
  // Deadline of every call but Tune and WatchJob, from its start.
  absl::Duration call_timeout = absl::Seconds(30);
  // Deadline of Tune and WatchJob; tuning a model takes minutes. A daemon that hangs is noticed after half a
  // minute all the same.
  absl::Duration tune_timeout = absl::InfiniteDuration();
  // For how long, from its start, a call answered Unavailable is tried again: after retry_backoff, then twice
  // as long each time, at most 5 s. Zero: never. Deadlines hold for all attempts together. Tune starts over:
  // events may come again, finished results from the daemon's store.
  absl::Duration retry_for = absl::ZeroDuration();
  absl::Duration retry_backoff = absl::Milliseconds(100);
};

// A fetched kernel: the bytes have the SHA-256 they were asked for by.
struct Kernel {
  v1::KernelInfo info;
  std::string cubin;
};

// A call that runs on a thread of its own. Destroying it cancels the call and waits for its end, so that none
// of its callbacks runs later; not to be destroyed by one of its own callbacks.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // Ends the call with Cancelled, unless it is done. Does not wait. Thread-safe.
  virtual void Cancel() = 0;
  // Returns after the last callback has returned.
  virtual void Wait() = 0;

 protected:
  PendingCall() = default;
};

// A client of one qgemmd with blocking calls, and the same with callbacks. Calls may run at once on several
// threads; Cancel may be called from any.
//
// Errors of every call: InvalidArgument = fix the request; Unavailable = no daemon answers there (the message
// says how to start one) or it cannot serve now; DeadlineExceeded; Cancelled = Cancel was called;
// Unimplemented = a daemon of another version; else what the daemon answered.
class Client {
 public:
  // InvalidArgument for an address that is neither unix:PATH nor HOST:PORT, or a file that cannot be read.
  // Does not wait for the daemon: a call connects when it must.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options = {});

  virtual ~Client() = default;
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  virtual const std::string& address() const = 0;

  // Hands every event to `on_event`, in order, on the calling thread, and returns the summary, which is the
  // last of them. Results of single problems may hold errors of their own (TuneResult.error).
  [[nodiscard]] virtual absl::StatusOr<v1::TuneSummary> Tune(
      const v1::TuneRequest& request, absl::FunctionRef<void(const v1::TuneEvent&)> on_event) = 0;

  // What Tune would do for the same request, without doing it.
  [[nodiscard]] virtual absl::StatusOr<v1::TuneEstimate> Estimate(const v1::TuneRequest& request) = 0;
  // Compiles a format's kernels into the daemon's store; hands its progress to `on_event` and returns the
  // last of it. Has Tune's deadline.
  [[nodiscard]] virtual absl::StatusOr<v1::WarmEvent> Warm(
      const v1::WarmRequest& request, absl::FunctionRef<void(const v1::WarmEvent&)> on_event) = 0;
  [[nodiscard]] virtual absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) = 0;
  // Leaves the request with the daemon and returns the id of its job, which goes on without this client.
  [[nodiscard]] virtual absl::StatusOr<std::string> TuneDetached(const v1::TuneRequest& request) = 0;
  // As Tune, for a job that was accepted earlier; its first event is `accepted`, with the request. Cancelled:
  // also when the job was. NotFound: there is no such job.
  [[nodiscard]] virtual absl::StatusOr<v1::TuneSummary> WatchJob(
      const std::string& job_id, absl::FunctionRef<void(const v1::TuneEvent&)> on_event) = 0;
  [[nodiscard]] virtual absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request) = 0;
  // The job as it is then. NotFound: there is no such job.
  [[nodiscard]] virtual absl::StatusOr<v1::Job> CancelJob(const std::string& job_id) = 0;

  // One answer per key, in order.
  [[nodiscard]] virtual absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request) = 0;

  // The kernel whose cubin has this SHA-256 (64 lower-case hex digits). NotFound: the daemon has none;
  // DataLoss: the bytes that arrived have another digest.
  [[nodiscard]] virtual absl::StatusOr<Kernel> GetKernel(const std::string& sha256) = 0;
  // The PTX text of that kernel.
  [[nodiscard]] virtual absl::StatusOr<std::string> GetPtx(const std::string& sha256) = 0;

  [[nodiscard]] virtual absl::StatusOr<v1::CacheStatsResponse> CacheStats() = 0;
  // Visits stored picks or kernels in key order.
  [[nodiscard]] virtual absl::Status CacheList(v1::CacheListRequest::What what,
                                               absl::FunctionRef<void(const v1::CacheEntry&)> visit) = 0;
  // The same of a selection.
  [[nodiscard]] virtual absl::Status CacheList(const v1::CacheListRequest& request,
                                               absl::FunctionRef<void(const v1::CacheEntry&)> visit) = 0;
  // The next six may take as long as a Tune: their deadline is the same. InvalidArgument: the selection is
  // empty or malformed.
  [[nodiscard]] virtual absl::StatusOr<v1::CacheDeleteResponse> CacheDelete(
      const v1::CacheSelection& selection) = 0;
  [[nodiscard]] virtual absl::StatusOr<v1::CachePinResponse> CachePin(const v1::CacheSelection& selection,
                                                                      bool unpin) = 0;
  [[nodiscard]] virtual absl::StatusOr<v1::CacheVerifyResponse> CacheVerify() = 0;
  // Hands the pack's bytes to `write`, in order; an error of `write` ends the call with that error.
  [[nodiscard]] virtual absl::Status CacheExport(
      const v1::CacheSelection& selection, absl::FunctionRef<absl::Status(absl::string_view)> write) = 0;
  // Sends a pack's bytes: `read` returns the next of them, empty at the end.
  [[nodiscard]] virtual absl::StatusOr<v1::CacheImportResponse> CacheImport(
      bool replace, absl::FunctionRef<absl::StatusOr<std::string>()> read) = 0;
  // `directory`: a new one, on the daemon's machine.
  [[nodiscard]] virtual absl::StatusOr<v1::CacheBackupResponse> CacheBackup(const std::string& directory) = 0;

  [[nodiscard]] virtual absl::StatusOr<v1::DescribeResponse> Describe() = 0;
  // Has the daemon give its GPU back, and take it again; lookups are served meanwhile, jobs wait.
  // Unavailable: somebody else has the GPU.
  [[nodiscard]] virtual absl::Status PauseDevice() = 0;
  [[nodiscard]] virtual absl::Status ResumeDevice() = 0;

  // For developers of kernels: tries a changed device source (bench.proto). Events as with Tune, which also
  // gives the deadline. PermissionDenied: not over the unix socket or loopback.
  [[nodiscard]] virtual absl::StatusOr<v1::CompareSourceSummary> CompareSource(
      const v1::CompareSourceRequest& request,
      absl::FunctionRef<void(const v1::CompareSourceEvent&)> on_event) = 0;

  // Ends running calls and all later ones with Cancelled, those of derived clients included.
  virtual void Cancel() = 0;

  // A client of the same daemon over the same connection, with its own Cancel and, for some calls, other
  // deadlines; server, connect_timeout, token and TLS are this client's. Must be destroyed before this
  // client.
  virtual std::unique_ptr<Client> Derive(const ClientOptions& options) = 0;
  // This client's options, the server's address filled in.
  virtual const ClientOptions& options() const = 0;

  // The calls above on a thread of their own. `on_event` and `on_done` run on that thread, on_done once and
  // last. The client must outlive what is returned. `timeout`: deadline from now; zero: as in options().
  template <typename Result>
  using OnDone = std::function<void(absl::StatusOr<Result>)>;
  [[nodiscard]] std::unique_ptr<PendingCall> TuneAsync(v1::TuneRequest request,
                                                       std::function<void(const v1::TuneEvent&)> on_event,
                                                       OnDone<v1::TuneSummary> on_done,
                                                       absl::Duration timeout = absl::ZeroDuration());
  [[nodiscard]] std::unique_ptr<PendingCall> LookupAsync(v1::LookupRequest request,
                                                         OnDone<v1::LookupResponse> on_done,
                                                         absl::Duration timeout = absl::ZeroDuration());
  [[nodiscard]] std::unique_ptr<PendingCall> GetKernelAsync(std::string sha256, OnDone<Kernel> on_done,
                                                            absl::Duration timeout = absl::ZeroDuration());

 protected:
  Client() = default;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMM_CLIENT_H_
