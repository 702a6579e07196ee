#ifndef QGEMM_CLIENT_C_API_ANSWER_H_
#define QGEMM_CLIENT_C_API_ANSWER_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"

namespace qgemm {

// A status as qgemm/c_api.h gives it: qgemm_code has absl's numbers; the sentence is cut to the buffer.
inline int Answer(const absl::Status& status, char* error, size_t error_size) {
  if (!status.ok() && error != nullptr && error_size > 0) {
    const absl::string_view message = status.message();
    const size_t length = std::min(message.size(), error_size - 1);
    std::memcpy(error, message.data(), length);
    error[length] = '\0';
  }
  return static_cast<int>(status.code());
}

}  // namespace qgemm

#endif  // QGEMM_CLIENT_C_API_ANSWER_H_
