#include <cstddef>
#include <cstdint>

#include "tests/fuzz/import_input.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  qgemm::ImportArbitraryLayer(absl::MakeConstSpan(data, size));
  return 0;
}
