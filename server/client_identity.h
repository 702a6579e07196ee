#ifndef QGEMM_SERVER_CLIENT_IDENTITY_H_
#define QGEMM_SERVER_CLIENT_IDENTITY_H_

#include <grpcpp/server_context.h>

#include <string>

namespace qgemm {

// Who calls, for queues and quotas: the name that the connection proved (a TLS certificate's), else the
// call's metadata `client_id`, else "anonymous". At most 128 printable characters.
std::string ClientIdentity(const grpc::ServerContext& context);

}  // namespace qgemm

#endif  // QGEMM_SERVER_CLIENT_IDENTITY_H_
