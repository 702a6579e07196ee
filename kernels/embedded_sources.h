#ifndef QGEMM_KERNELS_EMBEDDED_SOURCES_H_
#define QGEMM_KERNELS_EMBEDDED_SOURCES_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace qgemm {

// The bytes of kernels/device/<name> as they were when the program was built, valid for its whole life; empty
// when there is no such file. Names are paths below kernels/device, such as "mma.cuh".
absl::string_view EmbeddedSource(absl::string_view name);

// All of them, in byte order.
std::vector<absl::string_view> EmbeddedSourceNames();

}  // namespace qgemm

#endif  // QGEMM_KERNELS_EMBEDDED_SOURCES_H_
