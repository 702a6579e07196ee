#include "base/log.h"

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace qgemm {
namespace {

void AppendJsonString(absl::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\t':
        out->append("\\t");
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppendFormat(out, "\\u%04x", static_cast<int>(static_cast<unsigned char>(c)));
        } else {
          out->push_back(c);
        }
    }
  }
  out->push_back('"');
}

class JsonFormatter : public spdlog::formatter {
 public:
  explicit JsonFormatter(std::string program) : program_(std::move(program)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& dest) override {
    const int64_t unix_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(message.time.time_since_epoch()).count();
    const auto level = spdlog::level::to_string_view(message.level);
    std::string line = JsonLogLine(unix_ms, absl::string_view(level.data(), level.size()), program_,
                                   absl::string_view(message.payload.data(), message.payload.size()));
    line.push_back('\n');
    dest.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>(program_);
  }

 private:
  const std::string program_;
};

bool ParseLevel(absl::string_view name, spdlog::level::level_enum* level) {
  static constexpr std::pair<const char*, spdlog::level::level_enum> kLevels[] = {
      {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
      {"warn", spdlog::level::warn},   {"error", spdlog::level::err},   {"off", spdlog::level::off},
  };
  for (const auto& [known, value] : kLevels) {
    if (name == known) {
      *level = value;
      return true;
    }
  }
  return false;
}

}  // namespace

std::string JsonLogLine(int64_t unix_ms, absl::string_view level, absl::string_view program,
                        absl::string_view message) {
  std::string line = "{\"time\":";
  AppendJsonString(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone()), &line);
  line.append(",\"level\":");
  AppendJsonString(level, &line);
  line.append(",\"program\":");
  AppendJsonString(program, &line);
  line.append(",\"message\":");
  AppendJsonString(message, &line);
  line.push_back('}');
  return line;
}

absl::Status InitLog(const LogOptions& options) {
  spdlog::level::level_enum level;
  if (!ParseLevel(options.level, &level)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "log level '", options.level, "' is not known: use trace, debug, info, warn, error or off"));
  }
  if (options.format != "text" && options.format != "json") {
    return absl::InvalidArgumentError(
        absl::StrCat("log format '", options.format, "' is not known: use text or json"));
  }
  auto logger =
      std::make_shared<spdlog::logger>(options.program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(level);
  logger->flush_on(spdlog::level::warn);
  if (options.format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>(options.program));
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %n: %v");
  }
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace qgemm
