#ifndef QGEMM_TESTS_FUZZ_IMPORT_INPUT_H_
#define QGEMM_TESTS_FUZZ_IMPORT_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace qgemm {

// Builds a layer of one of the formats from `input`, as a file might hold it: shapes mostly right, now and
// then one dimension, type, size or parameter off; contents from `input`. Imports it and aborts where an
// accepted layer breaks the contract of ImportedWeights. Returns whether it was accepted.
bool ImportArbitraryLayer(absl::Span<const uint8_t> input);

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_IMPORT_INPUT_H_
