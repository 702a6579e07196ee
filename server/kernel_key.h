#ifndef QGEMM_SERVER_KERNEL_KEY_H_
#define QGEMM_SERVER_KERNEL_KEY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

// The only place where keys of stored records are made. A key is the SHA-256 (32 raw bytes) of canonical
// bytes: a tag with a version, then every field of the input below with its name and length, so that no two
// inputs share their bytes. Whatever changes a record's meaning must be a field here: a wrong key hands out
// someone else's kernel. All functions are pure.

// Version of how candidates are verified and timed: a new one makes every stored timing unknown.
inline constexpr int kTimerVersion = 4;

// Everything a cubin depends on. The shape is not among it.
struct KernelKeyInput {
  std::string source_digest;  // of the device sources
  std::string config;         // ConfigName
  std::string signature;      // SignatureName
  std::string layout_id;
  int launch_abi_version = 0;
  std::string arch;                  // "sm_90a"
  std::vector<std::string> options;  // NVRTC options, in order
  std::string toolchain;             // "nvrtc 13.0"
};
std::string KernelKey(const KernelKeyInput& input);

// Everything a candidate's timing is valid for; never an ordinal, a host name or a driver version.
struct TimingKeyInput {
  std::string problem;  // ProblemName
  int m_bucket = 0;
  v1::DeviceClass device;
  int timer_version = kTimerVersion;
  std::string kernel_key;
  int split_k = 1;
  Reduction reduction = Reduction::kNone;
};
std::string TimingKey(const TimingKeyInput& input);

// Where it is remembered that a kernel does not compile, or took the GPU process down: among the timings, for
// every problem. A new source or toolchain makes another kernel key, and so a new try.
std::string QuarantineKey(absl::string_view kernel_key);

// Where a pick is stored. Each effort has its own key: whoever asks looks from the highest effort down to its
// own, so that a higher effort's pick answers a lower effort's request and never the other way round, and so
// that a quick tuning does not overwrite a thorough one.
struct PickKeyInput {
  std::string problem;  // ProblemName
  int m_bucket = 0;
  v1::PickSource source = v1::PICK_SOURCE_MEASURED;
  v1::DeviceClass device;  // MEASURED only
  std::string target;      // MODEL only: the device profile's name
  std::string arch;
  v1::Effort effort = v1::EFFORT_BALANCED;
};
std::string PickKey(const PickKeyInput& input);

}  // namespace qgemm

#endif  // QGEMM_SERVER_KERNEL_KEY_H_
