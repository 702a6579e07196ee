#ifndef QGEMM_BASE_OPENSSL_HANDLES_H_
#define QGEMM_BASE_OPENSSL_HANDLES_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace qgemm {

// Deletes an OpenSSL object with the function that is meant for it.
template <auto Function>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    Function(object);
  }
};
using Bio = std::unique_ptr<BIO, FreeWith<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreeWith<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreeWith<EVP_PKEY_free>>;

}  // namespace qgemm

#endif  // QGEMM_BASE_OPENSSL_HANDLES_H_
