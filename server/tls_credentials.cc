#include "server/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/impl/codegen/grpc_library.h>
#include <grpcpp/impl/grpc_library.h>

#include <atomic>
#include <string>

#include "base/check.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

// gRPC must be running while it is used.
const grpc::internal::GrpcLibraryInitializer kGrpcInitializer;

class ReloadableTlsCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadableTlsCredentials(const TlsCertificates& certificates) : certificates_(certificates) {
    const bool ask_clients = !certificates.current().material->client_ca.empty();
    grpc_ssl_server_credentials_options* options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            ask_clients ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                        : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &ReloadableTlsCredentials::Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
    QGEMM_CHECK(credentials_ != nullptr);
  }
  ~ReloadableTlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>& /*unused*/) override {}

 private:
  // Called by gRPC before each handshake, one at a time per address.
  static grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& self = *static_cast<ReloadableTlsCredentials*>(user_data);
    const TlsCertificates::Current current = self.certificates_.current();
    if (self.generation_.exchange(current.generation) == current.generation) {
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    const TlsMaterial& material = *current.material;
    const grpc_ssl_pem_key_cert_pair pair{material.key.c_str(), material.cert.c_str()};
    // gRPC 1.51 asserts that there are roots, also where no client is asked for a certificate.
    const std::string& roots = material.client_ca.empty() ? material.cert : material.client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return *config != nullptr ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW
                              : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
  }

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  const TlsCertificates& certificates_;
  std::atomic<uint64_t> generation_{0};  // that gRPC has; TlsCertificates begins with 1
  grpc_server_credentials* credentials_ = nullptr;
};

}  // namespace

TlsCertificates::TlsCertificates(TlsMaterial material) { Replace(std::move(material)); }

void TlsCertificates::Replace(TlsMaterial material) {
  auto replacement = std::make_shared<const TlsMaterial>(std::move(material));
  MutexLock lock(mu_);
  current_.material = std::move(replacement);
  ++current_.generation;
}

TlsCertificates::Current TlsCertificates::current() const {
  MutexLock lock(mu_);
  return current_;
}

std::shared_ptr<grpc::ServerCredentials> NewTlsServerCredentials(const TlsCertificates& certificates) {
  return std::make_shared<ReloadableTlsCredentials>(certificates);
}

}  // namespace qgemm
