#ifndef QGEMM_BASE_CEIL_DIV_H_
#define QGEMM_BASE_CEIL_DIV_H_

#include <cstdint>

namespace qgemm {

// a / b, rounded up; for a >= 0 and b > 0, without overflow.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace qgemm

#endif  // QGEMM_BASE_CEIL_DIV_H_
