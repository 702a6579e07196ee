#include "server/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.h"
#include "tests/fakes/test_certificates.h"

namespace qgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  TlsFilesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemm-tls-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    authority_ = MakeAuthority("test ca");
    authority_.WriteTo(folder_, "ca");
    Make({"server"}).WriteTo(folder_, "server");
    paths_ = {folder_ + "/server.pem", folder_ + "/server.key", folder_ + "/ca.pem"};
  }
  ~TlsFilesTest() override { std::filesystem::remove_all(folder_); }

  TestCertificate Make(const CertificateRequest& request) { return MakeCertificate(request, authority_); }
  absl::StatusOr<TlsMaterial> Load() { return LoadTlsMaterial(paths_, now_); }
  std::string ErrorOf() {
    const absl::Status status = Load().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  std::string folder_;
  TestCertificate authority_;
  TlsPaths paths_;
  int64_t now_ = RealClock().WallUnixMs();
};

TEST_F(TlsFilesTest, ReadsAndDescribesTheServersCertificate) {
  const absl::StatusOr<TlsMaterial> material = Load();
  ASSERT_TRUE(material.ok()) << material.status();
  EXPECT_EQ(material->subject, "CN=server");
  EXPECT_EQ(material->client_ca, authority_.cert);
  EXPECT_GT(material->expires_unix_ms, now_ + int64_t{29} * 24 * 3600 * 1000);
  EXPECT_THAT(DescribeTls(*material), AllOf(HasSubstr("CN=server, valid until 20"), HasSubstr(" UTC")));
  // A chain: what follows the first certificate is not the server's.
  std::ofstream(paths_.cert, std::ios::app) << authority_.cert;
  EXPECT_EQ(Load()->subject, "CN=server");
  paths_.client_ca.clear();
  EXPECT_EQ(Load()->client_ca, "");
}

TEST_F(TlsFilesTest, RefusesACertificateOutsideItsTime) {
  Make({"late", -7200, 3600}).WriteTo(folder_, "server");
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr("tls_cert"), HasSubstr(paths_.cert), HasSubstr("expired on 20")));
  Make({"early", 3600}).WriteTo(folder_, "server");
  EXPECT_THAT(ErrorOf(), HasSubstr("valid only from 20"));
}

TEST_F(TlsFilesTest, RefusesTheKeyOfAnotherCertificate) {
  Make({"other"}).WriteTo(folder_, "other");
  paths_.key = folder_ + "/other.key";
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr("tls_key"), HasSubstr("is not the key of"), HasSubstr(paths_.cert)));
}

TEST_F(TlsFilesTest, RefusesWhatIsNoPem) {
  std::ofstream(paths_.cert) << "hello";
  EXPECT_THAT(ErrorOf(), HasSubstr("holds no PEM certificate"));
  // The writer of a chain was interrupted.
  std::ofstream(paths_.cert) << authority_.cert << authority_.cert.substr(0, authority_.cert.size() / 2);
  EXPECT_THAT(ErrorOf(), HasSubstr("damaged after certificate 1"));
  Make({"server"}).WriteTo(folder_, "server");
  std::ofstream(paths_.client_ca) << "";
  EXPECT_THAT(ErrorOf(), HasSubstr("tls_client_ca"));
  std::ofstream(paths_.key) << "hello";
  EXPECT_THAT(ErrorOf(), HasSubstr("holds no PEM private key"));
}

TEST_F(TlsFilesTest, RefusesAKeyThatOthersCanRead) {
  ASSERT_EQ(chmod(paths_.key.c_str(), 0644), 0);
  const absl::Status refused = Load().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("tls_key"), HasSubstr("0644")));
}

TEST_F(TlsFilesTest, NamesAMissingFile) {
  paths_.cert = folder_ + "/missing.pem";
  EXPECT_THAT(ErrorOf(), AllOf(HasSubstr(paths_.cert), HasSubstr("No such file")));
}

}  // namespace
}  // namespace qgemm
