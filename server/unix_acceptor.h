#ifndef QGEMM_SERVER_UNIX_ACCEPTOR_H_
#define QGEMM_SERVER_UNIX_ACCEPTOR_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace qgemm {

// A listening unix socket that knows who connects: gRPC's own does not tell the user of a peer. Members of
// the file's group may connect (mode 0660, from before the first connection). Owned and used by one thread.
class UnixAcceptor {
 public:
  // Gets a connection (CLOEXEC, non-blocking) and whether its other end was opened by a process of this
  // process's user or of root. Called on a thread of the acceptor.
  using Connected = std::function<void(UniqueFd connection, bool own_user)>;

  // Binds and listens; `path` must be free. Connections queue up until Start().
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<UnixAcceptor>> Listen(const std::string& path);
  ~UnixAcceptor() { Stop(); }
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

  void Start(Connected connected);
  // No call of `connected` after it has returned; the socket's file is gone.
  void Stop();

 private:
  UnixAcceptor(std::string path, UniqueFd socket, UniqueFd stop)
      : path_(std::move(path)), socket_(std::move(socket)), stop_(std::move(stop)) {}
  void Loop(const Connected& connected);

  const std::string path_;
  UniqueFd socket_;
  const UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_UNIX_ACCEPTOR_H_
