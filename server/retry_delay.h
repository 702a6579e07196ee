#ifndef QGEMM_SERVER_RETRY_DELAY_H_
#define QGEMM_SERVER_RETRY_DELAY_H_

#include <optional>

#include "absl/status/status.h"
#include "base/clock.h"

namespace qgemm {

// An error that says when to try again. The RPCs send it as the trailing metadata grpc-retry-pushback-ms.
absl::Status WithRetryDelay(absl::Status status, Duration delay);
std::optional<Duration> RetryDelayOf(const absl::Status& status);

}  // namespace qgemm

#endif  // QGEMM_SERVER_RETRY_DELAY_H_
