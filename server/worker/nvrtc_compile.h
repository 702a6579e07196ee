#ifndef QGEMM_SERVER_WORKER_NVRTC_COMPILE_H_
#define QGEMM_SERVER_WORKER_NVRTC_COMPILE_H_

#include "kernels/cuda/nvrtc.h"
#include "qgemm/internal/worker.pb.h"

namespace qgemm {

// Compiles one kernel in this process. The reply holds the compiler's error where there is one; what the
// compiler does to the process (memory, crashes) is the caller's risk. Thread-safe.
internal::CompileReply CompileWithNvrtc(const Nvrtc& nvrtc, const internal::CompileRequest& request);

}  // namespace qgemm

#endif  // QGEMM_SERVER_WORKER_NVRTC_COMPILE_H_
