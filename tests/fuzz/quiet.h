#ifndef QGEMM_TESTS_FUZZ_QUIET_H_
#define QGEMM_TESTS_FUZZ_QUIET_H_

#include "google/protobuf/stubs/logging.h"
#include "spdlog/spdlog.h"

namespace qgemm {

// Most inputs are worth a line in a log, of ours or of protobuf's; thousands of them are not.
inline void SilenceLogs() {
  spdlog::set_level(spdlog::level::off);
  google::protobuf::SetLogHandler(nullptr);
}

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_QUIET_H_
