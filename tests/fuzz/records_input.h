#ifndef QGEMM_TESTS_FUZZ_RECORDS_INPUT_H_
#define QGEMM_TESTS_FUZZ_RECORDS_INPUT_H_

#include <cstdint>

#include "absl/types/span.h"

namespace qgemm {

// Fills a store's tables from `input`: good records, arbitrary bytes, and arbitrary messages in good
// envelopes (what a faulty or a newer daemon might have left), then reads, lists, verifies, exports, deletes
// and reads the journal; or makes a pack of arbitrary entries and imports it. Aborts where an answer is an
// error other than a miss, a corrupt record outlives a Verify, a pack that was refused left something behind,
// or an exported pack cannot be imported. Returns the number of records that were found good.
int ReadArbitraryRecords(absl::Span<const uint8_t> input);

}  // namespace qgemm

#endif  // QGEMM_TESTS_FUZZ_RECORDS_INPUT_H_
