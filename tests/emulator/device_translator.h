#ifndef QGEMM_TESTS_EMULATOR_DEVICE_TRANSLATOR_H_
#define QGEMM_TESTS_EMULATOR_DEVICE_TRANSLATOR_H_

#include <string>

#include "absl/strings/string_view.h"

namespace qgemm {

// CUDA C++ of a kernel -> C++ for the host, to be compiled with device_prelude.h in front: every asm
// statement becomes a call that hands its text and operands to the machine, shared variables become addresses
// in the CTA's shared memory. Ends with `extern "C" void simt_run(const unsigned char* parameters)`, which
// one thread of the grid calls, and `simt_static_count`, how many static shared variables there are.
std::string TranslateDeviceSource(absl::string_view source, absl::string_view entry);

}  // namespace qgemm

#endif  // QGEMM_TESTS_EMULATOR_DEVICE_TRANSLATOR_H_
