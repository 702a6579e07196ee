// A compile worker without a compiler, for tests of the pool. What it does with a request is told by the
// request's name up to a blank; its source is that behaviour's argument. How it starts is told by its
// environment:
//   FAKE_WORKER_BROKEN=PATH     while the file exists it says that it cannot work
//   FAKE_WORKER_TOOLCHAIN=PATH  the toolchain it claims is the file's text
//   FAKE_WORKER_START=exit|hang|garbage|old  ends, says nothing, sends nonsense, or claims another protocol

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/framed_stream.h"
#include "qgemm/internal/worker.pb.h"

namespace qgemm {
namespace {

constexpr int kChannelFd = 3;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

[[noreturn]] void Hang() {
  while (true) pause();
}

void SendGarbage() {
  const char bytes[] = "\x02\x00\x00\x00\xff\xff";
  send(kChannelFd, bytes, 6, MSG_NOSIGNAL);
}

internal::WorkerHello Hello() {
  internal::WorkerHello hello;
  hello.set_protocol_version(Environment("FAKE_WORKER_START") == "old" ? 0 : 1);
  hello.set_toolchain("fake 1.0");
  if (const std::string path = Environment("FAKE_WORKER_TOOLCHAIN"); !path.empty()) {
    std::ifstream file(path);
    hello.set_toolchain(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
  }
  hello.add_archs("sm_80");
  hello.add_archs("sm_90a");
  const std::string broken = Environment("FAKE_WORKER_BROKEN");
  if (!broken.empty() && access(broken.c_str(), F_OK) == 0) hello.set_error("no compiler found");
  return hello;
}

// Memory that is kept and touched.
void Grow(size_t bytes) {
  static auto* const kept = new std::vector<std::unique_ptr<char[]>>;
  kept->push_back(std::make_unique<char[]>(bytes));
  std::memset(kept->back().get(), 1, bytes);
}

// Returns when somebody has opened the named pipe for writing and closed it.
void WaitForGate(const std::string& path) {
  const UniqueFd gate(open(path.c_str(), O_RDONLY));
  char byte;
  while (read(gate.get(), &byte, 1) > 0) {
  }
}

internal::CompileReply Compile(const internal::CompileRequest& request) {
  const std::string behaviour = request.name().substr(0, request.name().find(' '));
  internal::CompileReply reply;
  reply.set_id(request.id());
  reply.set_cubin(absl::StrCat("cubin of ", request.name(), " for ", request.arch()));
  reply.set_log(absl::StrCat(getpid()));
  if (request.want_ptx()) reply.set_ptx("ptx");
  reply.mutable_report()->set_registers(32);
  if (behaviour == "error") reply.set_error("kernel.cu(1): error: no good");
  if (behaviour == "failed") {
    reply.set_error("out of memory");
    reply.set_compiler_failed(true);
  }
  if (behaviour == "wrong-id") reply.set_id(request.id() + 1000);
  if (behaviour == "crash") raise(SIGSEGV);
  if (behaviour == "exit") _exit(3);
  if (behaviour == "hang") Hang();
  if (behaviour == "grow") Grow(std::stoul(request.source()));
  if (behaviour == "gate") WaitForGate(request.source());
  if (behaviour == "garbage") SendGarbage();
  if (behaviour == "crash-once" && access(request.source().c_str(), F_OK) != 0) {
    std::ofstream(request.source()) << "crashed";
    raise(SIGSEGV);
  }
  // As if killed by somebody else, until the file has as many bytes as the name says.
  const size_t deaths = behaviour == "killed-twice" ? 2 : behaviour == "killed-often" ? 100 : 0;
  std::error_code error;
  const auto died = std::filesystem::file_size(request.source(), error);
  if (deaths > 0 && (error ? 0 : died) < deaths) {
    std::ofstream(request.source(), std::ios::app) << "x";
    raise(SIGKILL);
  }
  return reply;
}

int Run() {
  const std::string start = Environment("FAKE_WORKER_START");
  if (start == "exit") return 7;
  if (start == "hang") Hang();
  if (start == "garbage") SendGarbage();
  // A crash is the test's wish here; no report of a sanitizer about it.
  signal(SIGSEGV, SIG_DFL);
  FramedStream channel{UniqueFd(kChannelFd)};
  const internal::WorkerHello hello = Hello();
  if (!channel.Write(hello).ok() || !hello.error().empty()) return 1;
  internal::CompileRequest request;
  while (channel.Read(&request).ok()) {
    if (!channel.Write(Compile(request)).ok()) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace qgemm

int main() { return qgemm::Run(); }
