#include "server/client_identity.h"

#include <grpc/grpc_security_constants.h>

#include <vector>

#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

std::optional<std::string> Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

// gRPC verified the certificate: without a root to check it by no client is asked for one.
std::optional<std::string> CertificateName(const grpc::AuthContext& auth) {
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SUBJECT_PROPERTY_NAME}) {
    const std::vector<grpc::string_ref> values = auth.FindPropertyValues(property);
    if (!values.empty() && !values[0].empty()) return std::string(values[0].data(), values[0].size());
  }
  return std::nullopt;
}

// Credentials of kind "local" are those of such connections alone (server/daemon.cc).
bool IsOwnUser(const grpc::AuthContext& auth) {
  const std::vector<grpc::string_ref> kinds =
      auth.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return !kinds.empty() && kinds[0] == "local";
}

}  // namespace

ShownIdentity ShownBy(const grpc::ServerContextBase& context) {
  ShownIdentity shown;
  shown.peer = context.peer();
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr) {
    shown.certificate = CertificateName(*auth);
    shown.own_user = IsOwnUser(*auth);
  }
  shown.authorization = Metadata(context, "authorization");
  shown.client_id = Metadata(context, "client_id").value_or("");
  return shown;
}

absl::StatusOr<Caller> Admit(const Access& access, const grpc::ServerContextBase& context) {
  return access.Admit(ShownBy(context));
}

absl::StatusOr<Caller> AdmitWriter(const Access& access, const grpc::ServerContextBase& context,
                                   absl::string_view what) {
  QGEMM_ASSIGN_OR_RETURN(Caller caller, Admit(access, context));
  const absl::Status allowed = MayWrite(caller, what);
  if (!allowed.ok()) spdlog::info("refused to {}: {}", context.peer(), std::string(allowed.message()));
  QGEMM_RETURN_IF_ERROR(allowed);
  return caller;
}

absl::StatusOr<Caller> AdmitAdmin(const Access& access, const grpc::ServerContextBase& context,
                                  absl::string_view what) {
  QGEMM_ASSIGN_OR_RETURN(Caller caller, Admit(access, context));
  const absl::Status allowed = MayAdminister(caller, what);
  if (!allowed.ok()) spdlog::info("refused to {}: {}", context.peer(), std::string(allowed.message()));
  QGEMM_RETURN_IF_ERROR(allowed);
  return caller;
}

}  // namespace qgemm
