#include "tests/fakes/test_certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "base/openssl_handles.h"

namespace qgemm {
namespace {

std::string TextOf(BIO* bio) {
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio, &text);
  return std::string(text, static_cast<size_t>(size));
}

void AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, FreeWith<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  QGEMM_CHECK(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

// `issuer` null: signed by its own key.
TestCertificate Sign(const CertificateRequest& request, const TestCertificate* authority) {
  const Key key(EVP_EC_gen("P-256"));
  const Certificate certificate(X509_new());
  QGEMM_CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate.get(), 2);
  uint64_t serial = 0;
  QGEMM_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), request.valid_from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), request.valid_from_s + request.valid_for_s);
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(request.common_name.c_str()), -1, -1, 0);
  X509_set_pubkey(certificate.get(), key.get());
  if (authority == nullptr) {
    X509_set_issuer_name(certificate.get(), name);
    AddExtension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE");
    QGEMM_CHECK(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
  } else {
    const Bio cert_bio(BIO_new_mem_buf(authority->cert.data(), -1));
    const Bio key_bio(BIO_new_mem_buf(authority->key.data(), -1));
    const Certificate issuer(PEM_read_bio_X509(cert_bio.get(), nullptr, nullptr, nullptr));
    const Key issuer_key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr));
    QGEMM_CHECK(issuer != nullptr && issuer_key != nullptr);
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get()));
    if (!request.san.empty()) {
      AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name, request.san);
    }
    QGEMM_CHECK(X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) > 0);
  }
  const Bio cert_out(BIO_new(BIO_s_mem()));
  const Bio key_out(BIO_new(BIO_s_mem()));
  QGEMM_CHECK(PEM_write_bio_X509(cert_out.get(), certificate.get()) == 1);
  QGEMM_CHECK(PEM_write_bio_PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return {TextOf(cert_out.get()), TextOf(key_out.get())};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  const std::string fresh = path + ".new";
  std::ofstream(fresh) << bytes;
  QGEMM_CHECK(chmod(fresh.c_str(), 0600) == 0);
  std::filesystem::rename(fresh, path);
}

}  // namespace

void TestCertificate::WriteTo(const std::string& folder, const std::string& name) const {
  WriteFile(folder + "/" + name + ".pem", cert);
  WriteFile(folder + "/" + name + ".key", key);
}

TestCertificate MakeAuthority(const std::string& common_name) {
  CertificateRequest request;
  request.common_name = common_name;
  return Sign(request, nullptr);
}

TestCertificate MakeCertificate(const CertificateRequest& request, const TestCertificate& authority) {
  return Sign(request, &authority);
}

}  // namespace qgemm
