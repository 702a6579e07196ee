#ifndef QGEMM_TESTS_FAKES_TEST_CERTIFICATES_H_
#define QGEMM_TESTS_FAKES_TEST_CERTIFICATES_H_

#include <cstdint>
#include <memory>
#include <string>

namespace qgemm {

// Certificates for tests, each with a fresh P-256 key.
struct TestCertificate {
  std::string cert;  // PEM
  std::string key;   // PEM

  // Writes NAME.pem and NAME.key (mode 0600) into `folder`, each in one step.
  void WriteTo(const std::string& folder, const std::string& name) const;
};

struct CertificateRequest {
  std::string common_name;
  // Seconds from now.
  int64_t valid_from_s = -3600;
  int64_t valid_for_s = int64_t{30} * 24 * 3600;
  std::string san = "DNS:localhost,IP:127.0.0.1";
};

// An authority that signs its own certificate.
TestCertificate MakeAuthority(const std::string& common_name);
// A certificate that `authority` signed.
TestCertificate MakeCertificate(const CertificateRequest& request, const TestCertificate& authority);

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_TEST_CERTIFICATES_H_
