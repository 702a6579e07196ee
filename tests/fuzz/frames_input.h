#ifndef QGEMM_TESTS_FUZZ_FRAMES_INPUT_H_
#define QGEMM_TESTS_FUZZ_FRAMES_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace qgemm {

// Sends `input` as the frames of a child process, whole or cut off, in two parts, with right and with wrong
// lengths: to the daemon's reader of either child's messages, or as requests to the GPU process. Aborts where
// an error is not one that FramedStream names, a message that was read is not what another reader gets when
// it is sent again, or a request has no answer of its own. Returns the number of messages that were taken.
int ReadArbitraryFrames(absl::Span<const uint8_t> input);

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_FRAMES_INPUT_H_
