#include "server/unix_acceptor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fd_io.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr mode_t kSocketMode = 0660;
constexpr int kBacklog = 512;
// Before the next try when there are no descriptors left.
constexpr int kNoDescriptorPauseMs = 100;

bool IsOwnUser(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Listen(const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  // Nobody can connect before listen(): the mode is right by then.
  if (!fd.valid() || !stop.valid() ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), kSocketMode) != 0 || listen(fd.get(), kBacklog) != 0) {
    const absl::Status why = ErrnoStatus(errno, absl::StrCat("cannot listen on unix:", path));
    return absl::UnavailableError(why.message());
  }
  return std::unique_ptr<UnixAcceptor>(new UnixAcceptor(path, std::move(fd), std::move(stop)));
}

void UnixAcceptor::Start(Connected connected) {
  thread_ = std::thread([this, connected = std::move(connected)] { Loop(connected); });
}

void UnixAcceptor::Loop(const Connected& connected) {
  pollfd waits[] = {{stop_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
  while (true) {
    if (poll(waits, 2, -1) < 0 && errno != EINTR) return;
    if (waits[0].revents != 0) return;
    if (waits[1].revents == 0) continue;
    UniqueFd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.valid()) {
      const bool own_user = IsOwnUser(connection.get());
      connected(std::move(connection), own_user);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      spdlog::warn("a connection to {} waits: {}", path_, std::strerror(errno));
      if (poll(waits, 1, kNoDescriptorPauseMs) > 0) return;
    }
  }
}

void UnixAcceptor::Stop() {
  if (!socket_.valid()) return;
  if (thread_.joinable()) {
    const uint64_t one = 1;
    static_cast<void>(!write(stop_.get(), &one, sizeof(one)));
    thread_.join();
  }
  unlink(path_.c_str());
  socket_.reset();
}

}  // namespace qgemm
