#ifndef QGEMM_CLIENT_CLIENT_SECURITY_H_
#define QGEMM_CLIENT_CLIENT_SECURITY_H_

#include <grpcpp/security/credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/qgemm/client.h"

namespace qgemm {

// Fills in what the environment says of token and certificates where `options` say nothing, and reads the
// token's file. InvalidArgument: the file cannot be read or holds no token.
[[nodiscard]] absl::Status ResolveSecurity(ClientOptions& options);

// Whether the connection of resolved options is encrypted: over TCP, to another machine always, to this one
// when a tls_ option is set.
bool UsesTls(const ClientOptions& options);

// For the channel. InvalidArgument: a file cannot be read, or a certificate has no key.
[[nodiscard]] absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const ClientOptions& options);

// What gRPC's `error` of a connection says about TLS, as the end of a sentence: ": its certificate is not
// signed by ca.pem"; empty when it says nothing.
std::string TlsHint(const ClientOptions& options, absl::string_view error);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_CLIENT_SECURITY_H_
