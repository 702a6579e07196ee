// qgemm-time-simulated: speaks qgemm-time's frames on descriptor 3 without a GPU. simulated_profiler.h says
// how it can be made to misbehave.
#include <cstdio>
#include <memory>

#include "base/framed_stream.h"
#include "base/unique_fd.h"
#include "server/runner/frame_server.h"
#include "tests/fakes/simulated_profiler.h"

int main() {
  auto profiler = qgemm::SimulatedProfiler::FromEnvironment();
  if (!profiler.ok()) {
    std::fprintf(stderr, "qgemm-time-simulated: %s\n", profiler.status().ToString().c_str());
    return 2;
  }
  qgemm::FramedStream channel{qgemm::UniqueFd(3)};
  const qgemm::internal::RunnerHello hello = (*profiler)->Hello();
  if (!hello.error().empty()) {
    static_cast<void>(channel.Write(hello));
    return 1;
  }
  return qgemm::ServeFrames(channel, **profiler).ok() ? 0 : 3;
}
