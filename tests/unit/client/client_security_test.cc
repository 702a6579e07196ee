#include "client/client_security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace qgemm {
namespace {

using ::testing::HasSubstr;

// The environment without the variables that matter here.
class ClientSecurityTest : public ::testing::Test {
 protected:
  ClientSecurityTest() : file_(::testing::TempDir() + "/client-security-" + std::to_string(getpid())) {
    for (const char* name :
         {"QGEMM_TOKEN", "QGEMM_TOKEN_FILE", "QGEMM_TLS_CA", "QGEMM_TLS_CERT", "QGEMM_TLS_KEY"}) {
      unsetenv(name);
    }
  }
  ~ClientSecurityTest() override { std::filesystem::remove(file_); }

  ClientOptions Options(const std::string& server) {
    ClientOptions options;
    options.server = server;
    return options;
  }

  const std::string file_;
};

TEST_F(ClientSecurityTest, OptionsWinOverTheEnvironment) {
  setenv("QGEMM_TOKEN", "from-env", 1);
  setenv("QGEMM_TLS_CA", "env-ca.pem", 1);
  setenv("QGEMM_TLS_CERT", "env.pem", 1);
  setenv("QGEMM_TLS_KEY", "env.key", 1);
  ClientOptions options;
  ASSERT_TRUE(ResolveSecurity(options).ok());
  EXPECT_EQ(options.token, "from-env");
  EXPECT_EQ(options.tls_ca, "env-ca.pem");
  EXPECT_EQ(options.tls_cert, "env.pem");
  EXPECT_EQ(options.tls_key, "env.key");
  std::ofstream(file_) << "  from-file\n";
  options = ClientOptions();
  options.token_file = file_;
  options.tls_ca = "own-ca.pem";
  options.tls_cert = "own.pem";
  options.tls_key = "own.key";
  ASSERT_TRUE(ResolveSecurity(options).ok());
  EXPECT_EQ(options.token, "from-file");
  EXPECT_EQ(options.tls_ca, "own-ca.pem");
  EXPECT_EQ(options.tls_cert, "own.pem");
  EXPECT_EQ(options.tls_key, "own.key");
}

TEST_F(ClientSecurityTest, ReadsTheTokenOfAFileThatTheEnvironmentNames) {
  std::ofstream(file_) << "secret\n";
  setenv("QGEMM_TOKEN_FILE", file_.c_str(), 1);
  ClientOptions options;
  ASSERT_TRUE(ResolveSecurity(options).ok());
  EXPECT_EQ(options.token, "secret");
  for (const std::string& text : {std::string(), std::string(" \n"), std::string("two words"),
                                  std::string("t\xc3\xb6ken"), std::string(5000, 'x')}) {
    std::ofstream(file_) << text;
    options = ClientOptions();
    const absl::Status refused = ResolveSecurity(options);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << text << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(file_));
  }
  std::filesystem::remove(file_);
  EXPECT_TRUE(absl::IsInvalidArgument(ResolveSecurity(options)));
}

TEST_F(ClientSecurityTest, SpeaksTlsToOtherMachinesAndWhereItIsAskedTo) {
  for (const char* server :
       {"unix:/run/qgemm/qgemm.sock", "127.0.0.1:7461", "localhost:7461", "[::1]:7461"}) {
    EXPECT_FALSE(UsesTls(Options(server))) << server;
  }
  for (const char* server : {"10.0.0.7:7461", "qgemm.example.org:7461", "[2001:db8::1]:7461"}) {
    EXPECT_TRUE(UsesTls(Options(server))) << server;
  }
  ClientOptions options = Options("127.0.0.1:7461");
  options.tls_ca = "ca.pem";
  EXPECT_TRUE(UsesTls(options));
  options.server = "unix:/run/qgemm/qgemm.sock";
  EXPECT_FALSE(UsesTls(options));
}

TEST_F(ClientSecurityTest, NamesTheFileThatCannotBeRead) {
  ClientOptions options = Options("10.0.0.7:7461");
  options.tls_ca = file_;
  const absl::Status missing = MakeChannelCredentials(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("tls_ca: " + file_));
  options = Options("10.0.0.7:7461");
  options.tls_cert = file_;
  EXPECT_THAT(std::string(MakeChannelCredentials(options).status().message()), HasSubstr("needed together"));
}

TEST_F(ClientSecurityTest, NamesTheFileThatIsOfAnotherKind) {
  std::ofstream(file_) << "-----BEGIN PRIVATE KEY-----\n";
  ClientOptions options = Options("10.0.0.7:7461");
  options.tls_ca = file_;
  const absl::Status key = MakeChannelCredentials(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(key)) << key;
  EXPECT_THAT(std::string(key.message()), HasSubstr("tls_ca: " + file_ + " holds no PEM certificate"));
  options.tls_ca = ::testing::TempDir();
  EXPECT_THAT(std::string(MakeChannelCredentials(options).status().message()), HasSubstr("is a folder"));
  std::ofstream(file_) << "-----BEGIN CERTIFICATE-----\n";
  options.tls_ca.clear();
  options.tls_cert = options.tls_key = file_;
  EXPECT_THAT(std::string(MakeChannelCredentials(options).status().message()),
              HasSubstr("tls_key: " + file_ + " holds no PEM private key"));
}

TEST_F(ClientSecurityTest, SaysWhatAFailedHandshakeMeans) {
  ClientOptions options = Options("10.0.0.7:7461");
  EXPECT_EQ(TlsHint(options, "connect: Connection refused (111)"), "");
  EXPECT_THAT(TlsHint(options, "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed"),
              HasSubstr("the system's roots: --tls-ca"));
  EXPECT_THAT(TlsHint(options, "Socket closed"), HasSubstr("--tls-cert and --tls-key"));
  EXPECT_THAT(TlsHint(options, "error:0A00010B:SSL routines::wrong version number"), HasSubstr("no TLS"));
  EXPECT_THAT(TlsHint(options, "Peer name 10.0.0.7 is not in peer certificate"), HasSubstr("another host"));
  options.tls_ca = "ca.pem";
  options.tls_cert = "alice.pem";
  EXPECT_THAT(TlsHint(options, "certificate verify failed"), HasSubstr("not signed by ca.pem"));
  options.tls_key = "alice.key";
  EXPECT_THAT(TlsHint(options, "empty address list: "), HasSubstr("alice.key is not the key"));
  EXPECT_THAT(TlsHint(options, "Socket closed"), HasSubstr("refuse the client certificate in alice.pem"));
  EXPECT_THAT(TlsHint(Options("127.0.0.1:7461"), "Socket closed"), HasSubstr("--tls-ca"));
  EXPECT_EQ(TlsHint(Options("unix:/run/qgemm/qgemm.sock"), "Socket closed"), "");
}

}  // namespace
}  // namespace qgemm
