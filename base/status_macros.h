#ifndef QGEMM_BASE_STATUS_MACROS_H_
#define QGEMM_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Evaluates an absl::Status expression and returns it from the enclosing function unless it is OK.
#define QGEMM_RETURN_IF_ERROR(expr)                    \
  do {                                                 \
    ::absl::Status qgemm_status_macro_value = (expr);  \
    if (!qgemm_status_macro_value.ok()) {              \
      return qgemm_status_macro_value;                 \
    }                                                  \
  } while (false)

// Evaluates an absl::StatusOr expression; assigns its value to `lhs` (a declaration or an lvalue) or returns
// its status from the enclosing function.
#define QGEMM_ASSIGN_OR_RETURN(lhs, expr) \
  QGEMM_ASSIGN_OR_RETURN_IMPL_(QGEMM_STATUS_CONCAT_(qgemm_statusor_, __LINE__), lhs, expr)

#define QGEMM_STATUS_CONCAT_INNER_(a, b) a##b
#define QGEMM_STATUS_CONCAT_(a, b) QGEMM_STATUS_CONCAT_INNER_(a, b)
#define QGEMM_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) {                                   \
    return std::move(tmp).status();                  \
  }                                                  \
  lhs = *std::move(tmp)

#endif  // QGEMM_BASE_STATUS_MACROS_H_
