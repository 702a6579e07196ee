#ifndef QGEMM_KERNELS_IMPORT_PACKABLE_WEIGHTS_H_
#define QGEMM_KERNELS_IMPORT_PACKABLE_WEIGHTS_H_

#include "absl/status/statusor.h"
#include "kernels/import/canonical_weights.h"
#include "kernels/packing.h"

namespace qgemm {

// The form that Pack() takes. Codes, scales and integer zeros stay as they are, and so do two-level scales,
// whose offsets become (-dmin) * code. Kernels know float offsets as w = q * s + b: those of another origin
// (torchao) become b - origin * s, rounded to nearest in the scale's type, an error of at most half a step of
// the result. A group as long as the row that no format has is channel-wise.
//
// The permutation is not part of it: whoever packs act-order weights gathers the activations. InvalidArgument
// where no weight format has this form: a group size of its own, or a last group that is shorter than the
// others.
[[nodiscard]] absl::StatusOr<CanonicalWeights> PackableWeights(const ImportedWeights& weights);

}  // namespace qgemm

#endif  // QGEMM_KERNELS_IMPORT_PACKABLE_WEIGHTS_H_
