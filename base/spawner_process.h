#ifndef QGEMM_BASE_SPAWNER_PROCESS_H_
#define QGEMM_BASE_SPAWNER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/subprocess.h"
#include "base/unique_fd.h"

// The two sides' protocol (one packet each way per Spawn) and the spawner's own main loop. For subprocess.cc.
namespace qgemm::internal {

// The answer to a request. With error == 0, three descriptors travel along: the channel, the pidfd and the
// read end of the exit pipe, on which the spawner writes the int that waitpid() gave when the child has
// ended.
struct SpawnReply {
  int32_t pid = 0;
  int32_t error = 0;   // an errno
  char step[28] = {};  // what failed, as text
};
inline constexpr int kNumReplyFds = 3;

std::string EncodeSpawnRequest(const SpawnOptions& options);
// False when `packet` is no request.
bool DecodeSpawnRequest(absl::string_view packet, SpawnOptions* options);

// Serves requests from `socket` (SOCK_SEQPACKET) until it is closed or `daemon_pid`, the parent, has died;
// then kills every child's group and ends the process.
[[noreturn]] void RunSpawnerProcess(UniqueFd socket, pid_t daemon_pid);

}  // namespace qgemm::internal

#endif  // QGEMM_BASE_SPAWNER_PROCESS_H_
