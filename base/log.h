#ifndef QGEMM_BASE_LOG_H_
#define QGEMM_BASE_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// The log of a process goes to stderr through spdlog (spdlog::info(...) and so on). One line per change of
// state, with key, duration and outcome; an error once, where it is handled. Tokens, keys and request
// metadata that may hold them are never logged, at any level.
struct LogOptions {
  std::string format = "text";  // text, or json: one object per line
  std::string level = "info";   // trace, debug, info, warn, error, off
  std::string program;          // printed on every line
};

// Sets up spdlog's default logger. InvalidArgument when format or level is not one of the above; then
// nothing changes. Not thread-safe: call it once, at the start.
absl::Status InitLog(const LogOptions& options);

// One log line as JSON, without the line break: {"time": RFC 3339 in UTC, "level", "program", "message"}.
std::string JsonLogLine(int64_t unix_ms, absl::string_view level, absl::string_view program,
                        absl::string_view message);

}  // namespace qgemm

#endif  // QGEMM_BASE_LOG_H_
