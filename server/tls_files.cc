#include "server/tls_files.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/openssl_handles.h"
#include "base/status_macros.h"
#include "server/secret_file.h"

namespace qgemm {
namespace {

Bio BioOf(const std::string& bytes) {
  return Bio(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

absl::Status Wrong(absl::string_view key, const std::string& path, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", path, " ", what));
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(absl::string_view key, const std::string& path,
                                                          const std::string& pem) {
  std::vector<Certificate> certificates;
  const Bio bio = BioOf(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  // The end of the text is an error to OpenSSL, too.
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty()) return Wrong(key, path, "holds no PEM certificate");
  if (!ended) return Wrong(key, path, absl::StrCat("is damaged after certificate ", certificates.size()));
  return certificates;
}

int NoPassPhrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*unused*/) { return -1; }

int64_t UnixMs(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return int64_t{timegm(&parts)} * 1000;
}

std::string FormatTime(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsPaths& paths, int64_t now_unix_ms) {
  TlsMaterial material;
  QGEMM_ASSIGN_OR_RETURN(material.cert,
                         ReadConfiguredFile("tls_cert", paths.cert, FileAccess::kAnybodyMayRead));
  QGEMM_ASSIGN_OR_RETURN(material.key, ReadConfiguredFile("tls_key", paths.key, FileAccess::kSecret));
  QGEMM_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                         ReadCertificates("tls_cert", paths.cert, material.cert));
  const Bio key_bio = BioOf(material.key);
  const Key key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, NoPassPhrase, nullptr));
  if (key == nullptr) {
    return Wrong("tls_key", paths.key, "holds no PEM private key, or one that needs a pass phrase");
  }
  X509* const own = chain.front().get();
  if (X509_check_private_key(own, key.get()) != 1) {
    return Wrong("tls_key", paths.key, absl::StrCat("is not the key of the certificate in ", paths.cert));
  }
  material.subject = SubjectOf(own);
  material.expires_unix_ms = UnixMs(X509_get0_notAfter(own));
  const int64_t begins_unix_ms = UnixMs(X509_get0_notBefore(own));
  if (now_unix_ms > material.expires_unix_ms) {
    return Wrong("tls_cert", paths.cert,
                 absl::StrCat("holds a certificate that expired on ", FormatTime(material.expires_unix_ms)));
  }
  if (now_unix_ms < begins_unix_ms) {
    return Wrong("tls_cert", paths.cert,
                 absl::StrCat("holds a certificate that is valid only from ", FormatTime(begins_unix_ms)));
  }
  if (!paths.client_ca.empty()) {
    QGEMM_ASSIGN_OR_RETURN(material.client_ca,
                           ReadConfiguredFile("tls_client_ca", paths.client_ca, FileAccess::kAnybodyMayRead));
    QGEMM_RETURN_IF_ERROR(ReadCertificates("tls_client_ca", paths.client_ca, material.client_ca).status());
  }
  return material;
}

std::string DescribeTls(const TlsMaterial& material) {
  return absl::StrCat(material.subject, ", valid until ", FormatTime(material.expires_unix_ms));
}

}  // namespace qgemm
