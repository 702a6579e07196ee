#include "server/retry_delay.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {
constexpr absl::string_view kPayload = "qgemm/retry-delay-ms";
}  // namespace

absl::Status WithRetryDelay(absl::Status status, Duration delay) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(delay).count();
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(ms)));
  return status;
}

std::optional<Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

}  // namespace qgemm
