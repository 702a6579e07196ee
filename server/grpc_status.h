#ifndef QGEMM_SERVER_GRPC_STATUS_H_
#define QGEMM_SERVER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace qgemm {

// The only place where the two status types meet. The codes have the same numbers and meaning; the message is
// cut at 4 KiB because gRPC carries it in a header, and control characters in it become \xNN.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace qgemm

#endif  // QGEMM_SERVER_GRPC_STATUS_H_
