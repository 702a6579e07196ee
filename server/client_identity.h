#ifndef QGEMM_SERVER_CLIENT_IDENTITY_H_
#define QGEMM_SERVER_CLIENT_IDENTITY_H_

#include <grpcpp/server_context.h>

#include "server/access.h"

namespace qgemm {

// What a call shows of its caller: the peer, its verified certificate, and the metadata `authorization` and
// `client_id`.
ShownIdentity ShownBy(const grpc::ServerContextBase& context);

// What every RPC begins with: who calls, or Unauthenticated.
[[nodiscard]] absl::StatusOr<Caller> Admit(const Access& access, const grpc::ServerContextBase& context);
// The same for what readers may not do (MayWrite): also PermissionDenied. `what`: "tune".
[[nodiscard]] absl::StatusOr<Caller> AdmitWriter(const Access& access, const grpc::ServerContextBase& context,
                                                 absl::string_view what);
// The same for what admins alone may do (MayAdminister): also PermissionDenied. `what`: "cache delete".
[[nodiscard]] absl::StatusOr<Caller> AdmitAdmin(const Access& access, const grpc::ServerContextBase& context,
                                                absl::string_view what);

}  // namespace qgemm

#endif  // QGEMM_SERVER_CLIENT_IDENTITY_H_
