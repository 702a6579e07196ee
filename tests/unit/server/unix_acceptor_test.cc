#include "server/unix_acceptor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <string>

namespace qgemm {
namespace {

class UnixAcceptorTest : public ::testing::Test {
 protected:
  UnixAcceptorTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemm-accept-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    path_ = folder_ + "/socket";
    address_.sun_family = AF_UNIX;
    std::strncpy(address_.sun_path, path_.c_str(), sizeof(address_.sun_path) - 1);
  }
  ~UnixAcceptorTest() override { std::filesystem::remove_all(folder_); }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0) fd.reset();
    return fd;
  }

  std::string folder_;
  std::string path_;
  sockaddr_un address_{};
};

TEST_F(UnixAcceptorTest, HandsOnConnectionsOfItsOwnUser) {
  auto acceptor = UnixAcceptor::Listen(path_);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
  std::promise<std::pair<UniqueFd, bool>> connected;
  const UniqueFd early = Connect();  // before Start: it waits
  (*acceptor)->Start([&](UniqueFd fd, bool own_user) { connected.set_value({std::move(fd), own_user}); });
  const auto [fd, own_user] = connected.get_future().get();
  EXPECT_TRUE(own_user);
  ASSERT_EQ(send(early.get(), "x", 1, MSG_NOSIGNAL), 1);
  char byte = 0;
  while (read(fd.get(), &byte, 1) != 1) {
  }
  EXPECT_EQ(byte, 'x');
  (*acceptor)->Stop();
  EXPECT_FALSE(Connect().valid());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixAcceptorTest, TellsOtherUsersApart) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as somebody else";
  auto acceptor = UnixAcceptor::Listen(path_);
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    const bool ok = setuid(12345) == 0 &&
                    connect(fd, reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) == 0;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  // It has ended; the socket remembers who connected.
  std::promise<bool> own;
  (*acceptor)->Start([&](UniqueFd /*fd*/, bool own_user) { own.set_value(own_user); });
  EXPECT_FALSE(own.get_future().get());
}

TEST_F(UnixAcceptorTest, SaysWhyItCannotListen) {
  const auto acceptor = UnixAcceptor::Listen(folder_ + "/missing/socket");
  EXPECT_TRUE(absl::IsUnavailable(acceptor.status())) << acceptor.status();
}

}  // namespace
}  // namespace qgemm
