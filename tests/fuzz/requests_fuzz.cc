#include <cstddef>
#include <cstdint>

#include "tests/fuzz/quiet.h"
#include "tests/fuzz/requests_input.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  qgemm::SilenceLogs();
  return 0;
}

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qgemm::SendArbitraryRequest(absl::MakeConstSpan(data, size));
  return 0;
}
