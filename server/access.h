#ifndef QGEMM_SERVER_ACCESS_H_
#define QGEMM_SERVER_ACCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/token_file.h"

namespace qgemm {

// What a call shows of its caller.
struct ShownIdentity {
  std::string peer;                          // gRPC's name of it: "unix:", "ipv4:10.0.0.7:4711"
  bool own_user = false;                     // a local process of the daemon's own user, or of root
  std::optional<std::string> certificate;    // the common name, else the subject, of a verified certificate
  std::optional<std::string> authorization;  // metadata
  std::string client_id;                     // metadata; a claim
};

// Who calls.
struct Caller {
  std::string name;        // for queues, quotas and the ownership of jobs; at most 128 printable characters
  bool proven = false;     // by a token or a certificate; else the name is what the caller says
  bool admin = false;      // may do everything
  bool reader = false;     // may not have anything tuned, compiled or cancelled
  bool same_host = false;  // came over the unix socket or loopback
};

// The name of callers that say none.
inline constexpr char kAnonymous[] = "anonymous";

// Who may call, and what. In three steps, the first that fits:
//   a token        its holder; a wrong one is refused whatever else the call shows
//   a certificate  its name
//   neither        refused when the daemon has a tokens file, but for the daemon's own user; else whoever the
//                  caller says it is
// Readers are holders of a token with that role. Admins are holders of a token with that role, names of
// `admins` that were proven, and the daemon's own user on the unix socket. Thread-safe.
class Access {
 public:
  struct Rules {
    std::shared_ptr<const TokenFile> tokens;  // null: no token is asked for, and none is looked at
    std::set<std::string> admins;
  };

  explicit Access(Rules rules = {}) { SetRules(std::move(rules)); }
  // For all calls from now on.
  void SetRules(Rules rules);

  // Unauthenticated with a sentence that says what to do; the log says it, too, a few times a second at most.
  [[nodiscard]] absl::StatusOr<Caller> Admit(const ShownIdentity& shown) const;

 private:
  absl::StatusOr<Caller> Decide(const ShownIdentity& shown) const;
  void LogRefusal(const std::string& peer, const absl::Status& why) const;

  mutable Mutex mu_;
  std::shared_ptr<const Rules> rules_ QGEMM_GUARDED_BY(mu_);
  mutable TimePoint next_log_ QGEMM_GUARDED_BY(mu_){};
  mutable int64_t unlogged_ QGEMM_GUARDED_BY(mu_) = 0;
};

// For what puts something into the store or runs it on the GPU. `what`: "tune". PermissionDenied: a reader.
[[nodiscard]] absl::Status MayWrite(const Caller& caller, absl::string_view what);

// The job's owner and admins may cancel it; jobs of nobody in particular are everybody's. PermissionDenied.
[[nodiscard]] absl::Status MayCancel(const Caller& caller, absl::string_view job_id, absl::string_view owner);

// For what changes the daemon for all of its clients. `what`: "cache delete". Admins may, and where names are
// not proven everybody on this machine: reaching the socket is the permission. PermissionDenied.
[[nodiscard]] absl::Status MayAdminister(const Caller& caller, absl::string_view what);

// Whether gRPC's name of a peer ("unix:", "ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711") is of this machine.
bool IsLocalPeer(absl::string_view peer);

}  // namespace qgemm

#endif  // QGEMM_SERVER_ACCESS_H_
