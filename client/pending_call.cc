#include <thread>
#include <utility>

#include "client/qgemm/client.h"

namespace qgemm {
namespace {

// The blocking call of a derived client, which is what can be cancelled.
class ThreadCall final : public PendingCall {
 public:
  ThreadCall(std::unique_ptr<Client> client, std::function<void(Client&)> call)
      : client_(std::move(client)), thread_([this, call = std::move(call)] { call(*client_); }) {}
  ~ThreadCall() override {
    Cancel();
    Wait();
  }

  void Cancel() override { client_->Cancel(); }
  void Wait() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  const std::unique_ptr<Client> client_;
  std::thread thread_;  // last: it uses the client
};

ClientOptions WithTimeout(ClientOptions options, absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) options.call_timeout = options.tune_timeout = timeout;
  return options;
}

}  // namespace

std::unique_ptr<PendingCall> Client::TuneAsync(v1::TuneRequest request,
                                               std::function<void(const v1::TuneEvent&)> on_event,
                                               OnDone<v1::TuneSummary> on_done, absl::Duration timeout) {
  return std::make_unique<ThreadCall>(
      Derive(WithTimeout(options(), timeout)),
      [request = std::move(request), on_event = std::move(on_event),
       on_done = std::move(on_done)](Client& client) { on_done(client.Tune(request, on_event)); });
}

std::unique_ptr<PendingCall> Client::LookupAsync(v1::LookupRequest request,
                                                 OnDone<v1::LookupResponse> on_done, absl::Duration timeout) {
  return std::make_unique<ThreadCall>(Derive(WithTimeout(options(), timeout)),
                                      [request = std::move(request), on_done = std::move(on_done)](
                                          Client& client) { on_done(client.Lookup(request)); });
}

std::unique_ptr<PendingCall> Client::GetKernelAsync(std::string sha256, OnDone<Kernel> on_done,
                                                    absl::Duration timeout) {
  return std::make_unique<ThreadCall>(Derive(WithTimeout(options(), timeout)),
                                      [sha256 = std::move(sha256), on_done = std::move(on_done)](
                                          Client& client) { on_done(client.GetKernel(sha256)); });
}

}  // namespace qgemm
