#ifndef QGEMM_TESTS_FUZZ_REQUESTS_INPUT_H_
#define QGEMM_TESTS_FUZZ_REQUESTS_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace qgemm {

// Sends a request of the public API, made of `input`, to a tuner over a simulated GPU with a few tuned picks:
// arbitrary messages, and nearly right ones with a field or two that are off. Aborts where a refusal has no
// sentence or a code that blames the daemon for its client's request, where a request of another meaning is
// taken than was written, or where a launch spec that is taken has no launch. Returns whether it was taken.
bool SendArbitraryRequest(absl::Span<const uint8_t> input);

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_REQUESTS_INPUT_H_
