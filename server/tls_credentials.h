#ifndef QGEMM_SERVER_TLS_CREDENTIALS_H_
#define QGEMM_SERVER_TLS_CREDENTIALS_H_

#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/mutex.h"
#include "server/tls_files.h"

namespace qgemm {

// The certificates that new connections are made with. Thread-safe.
class TlsCertificates {
 public:
  struct Current {
    std::shared_ptr<const TlsMaterial> material;
    uint64_t generation = 0;
  };

  explicit TlsCertificates(TlsMaterial material);

  // For the connections that are made from now on; those that stand go on.
  void Replace(TlsMaterial material);
  Current current() const;

 private:
  mutable Mutex mu_;
  Current current_ QGEMM_GUARDED_BY(mu_);
};

// Credentials for one listening address: TLS 1.2 or newer, with what `certificates` holds when a client
// connects. With a client_ca at the time of this call, every client has to show a certificate that it signed.
// `certificates` is borrowed. Both must outlive the server: gRPC itself keeps no reference to what is
// returned.
//
// gRPC's own FileWatcherCertificateProvider polls files and hands on whatever is in them; here a certificate
// is checked first, and the old one stays when it is bad.
std::shared_ptr<grpc::ServerCredentials> NewTlsServerCredentials(const TlsCertificates& certificates);

}  // namespace qgemm

#endif  // QGEMM_SERVER_TLS_CREDENTIALS_H_
