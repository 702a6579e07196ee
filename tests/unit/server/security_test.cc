#include "server/security.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/digest.h"
#include "tests/fakes/test_certificates.h"

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemm-security-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    MakeCertificate({"first"}, authority_).WriteTo(folder_, "server");
    WriteTokens("alice", "one");
    config_.listen = {"0.0.0.0:7461"};
    config_.tls_cert = folder_ + "/server.pem";
    config_.tls_key = folder_ + "/server.key";
    config_.tokens_file = folder_ + "/tokens";
  }
  ~SecurityTest() override { std::filesystem::remove_all(folder_); }

  void WriteTokens(const std::string& name, const std::string& token) {
    std::ofstream(folder_ + "/tokens") << name << ":" << Sha256Hex(token) << "\n";
    chmod((folder_ + "/tokens").c_str(), 0600);
  }
  std::unique_ptr<Security> Load() {
    absl::StatusOr<std::unique_ptr<Security>> security = Security::Load(config_, RealClock());
    EXPECT_TRUE(security.ok()) << security.status();
    return *std::move(security);
  }

  std::string folder_;
  TestCertificate authority_ = MakeAuthority("test ca");
  Config config_;
};

TEST_F(SecurityTest, ReloadTakesWhatIsGoodAndKeepsTheRest) {
  const std::unique_ptr<Security> security = Load();
  EXPECT_THAT(security->Describe(), HasSubstr("CN=first"));
  EXPECT_THAT(security->Describe(), HasSubstr("1 tokens"));
  const uint64_t first = security->tls()->current().generation;

  MakeCertificate({"second"}, authority_).WriteTo(folder_, "server");
  WriteTokens("bob", "two");
  EXPECT_THAT(security->Reload({"bob"}), IsEmpty());
  EXPECT_THAT(security->Describe(), HasSubstr("CN=second"));
  EXPECT_GT(security->tls()->current().generation, first);
  EXPECT_TRUE(security->rules().tokens->Find("two").has_value());
  EXPECT_THAT(security->rules().admins, ElementsAre("bob"));

  // A certificate without its key: the tokens are taken all the same.
  MakeCertificate({"third"}, authority_).WriteTo(folder_, "third");
  std::filesystem::rename(folder_ + "/third.pem", folder_ + "/server.pem");
  WriteTokens("carol", "three");
  const std::vector<absl::Status> refused = security->Reload({});
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(std::string(refused[0].message()), HasSubstr("is not the key of"));
  EXPECT_THAT(security->Describe(), HasSubstr("CN=second"));
  EXPECT_TRUE(security->rules().tokens->Find("three").has_value());

  std::filesystem::remove(folder_ + "/tokens");
  EXPECT_EQ(security->Reload({}).size(), 2u);
  EXPECT_TRUE(security->rules().tokens->Find("three").has_value());
}

TEST_F(SecurityTest, WarnsOfAnOpenPortAndOfACertificateThatEndsSoon) {
  EXPECT_THAT(Load()->Warnings(), IsEmpty());
  config_.tokens_file.clear();
  EXPECT_THAT(Load()->Warnings(), ElementsAre(HasSubstr("everybody who reaches the port")));
  config_.listen = {"127.0.0.1:7461"};
  config_.admin = {"alice"};
  EXPECT_THAT(Load()->Warnings(), ElementsAre(HasSubstr("admin makes nobody an admin")));
  config_.admin.clear();
  EXPECT_THAT(Load()->Warnings(), IsEmpty());
  MakeCertificate({"first", -3600, int64_t{3} * 24 * 3600}, authority_).WriteTo(folder_, "server");
  EXPECT_THAT(Load()->Warnings(), ElementsAre(HasSubstr("expires in 2 days")));
}

TEST_F(SecurityTest, NothingConfiguredIsNothingAskedFor) {
  config_ = Config();
  const std::unique_ptr<Security> security = Load();
  EXPECT_EQ(security->tls(), nullptr);
  EXPECT_EQ(security->rules().tokens, nullptr);
  EXPECT_EQ(security->Describe(), "");
}

}  // namespace
}  // namespace qgemm
