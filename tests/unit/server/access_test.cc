#include "server/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const TokenFile> Tokens() {
  const absl::StatusOr<TokenFile> tokens =
      TokenFile::Parse(absl::StrCat("alice:", Sha256Hex("secret-a"), "\noperator:", Sha256Hex("secret-o"),
                                    ":admin\ndashboard:", Sha256Hex("secret-d"), ":reader\n"),
                       "tokens");
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return std::make_shared<const TokenFile>(*tokens);
}

ShownIdentity FromNetwork() {
  ShownIdentity shown;
  shown.peer = "ipv4:10.0.0.7:4711";
  shown.client_id = "mallory";
  return shown;
}

Caller CallerOf(const Access& access, const ShownIdentity& shown) {
  const absl::StatusOr<Caller> caller = access.Admit(shown);
  EXPECT_TRUE(caller.ok()) << caller.status();
  return caller.value_or(Caller());
}

TEST(Access, WithoutTokensCallersAreWhoTheySay) {
  const Access access;
  ShownIdentity shown;
  shown.peer = "unix:";
  EXPECT_EQ(CallerOf(access, shown).name, "anonymous");
  shown.client_id = "alice\n@host";
  const Caller caller = CallerOf(access, shown);
  EXPECT_EQ(caller.name, "alice?@host");
  EXPECT_FALSE(caller.proven);
  EXPECT_FALSE(caller.admin);
  EXPECT_TRUE(caller.same_host);
  // A proxy's own authorization is not for this daemon.
  shown.authorization = "Basic abc";
  EXPECT_EQ(CallerOf(access, shown).name, "alice?@host");
}

TEST(Access, ATokenSaysWhoCalls) {
  const Access access({Tokens(), {}});
  ShownIdentity shown = FromNetwork();
  shown.authorization = "Bearer secret-a";
  Caller caller = CallerOf(access, shown);
  EXPECT_EQ(caller.name, "alice");
  EXPECT_TRUE(caller.proven);
  EXPECT_FALSE(caller.admin);
  EXPECT_FALSE(caller.same_host);
  shown.authorization = "bearer secret-o";
  caller = CallerOf(access, shown);
  EXPECT_EQ(caller.name, "operator");
  EXPECT_TRUE(caller.admin);
}

TEST(Access, AReaderIsOneUntilItIsAnAdmin) {
  ShownIdentity shown = FromNetwork();
  shown.authorization = "Bearer secret-d";
  EXPECT_TRUE(CallerOf(Access({Tokens(), {}}), shown).reader);
  const Caller admin = CallerOf(Access({Tokens(), {"dashboard"}}), shown);
  EXPECT_TRUE(admin.admin);
  EXPECT_FALSE(admin.reader);
  shown.authorization = "Bearer secret-a";
  EXPECT_FALSE(CallerOf(Access({Tokens(), {}}), shown).reader);
}

TEST(Access, WithTokensNoAndWrongOnesAreRefused) {
  const Access access({Tokens(), {}});
  ShownIdentity shown = FromNetwork();
  const absl::Status missing = access.Admit(shown).status();
  EXPECT_TRUE(absl::IsUnauthenticated(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("--token-file"));
  for (const char* wrong :
       {"Bearer secret", "Bearer secret-a2", "Bearer ", "secret-a", "Basic secret-a", ""}) {
    shown.authorization = wrong;
    const absl::Status refused = access.Admit(shown).status();
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << wrong << ": " << refused;
    EXPECT_EQ(refused.message().find("secret"), absl::string_view::npos) << refused;
  }
  // Also where another proof is there.
  shown.certificate = "bob";
  shown.authorization = "Bearer wrong";
  EXPECT_TRUE(absl::IsUnauthenticated(access.Admit(shown).status()));
}

TEST(Access, ACertificateStandsInForAToken) {
  const Access access({Tokens(), {}});
  ShownIdentity shown = FromNetwork();
  shown.certificate = "bob";
  EXPECT_EQ(CallerOf(access, shown).name, "bob");
  EXPECT_TRUE(CallerOf(access, shown).proven);
  shown.authorization = "Bearer secret-a";
  EXPECT_EQ(CallerOf(access, shown).name, "alice");
}

TEST(Access, CertificateNamesStayDistinct) {
  const Access access;
  ShownIdentity one = FromNetwork();
  ShownIdentity other = FromNetwork();
  one.certificate = "J\xc3\xa9";
  other.certificate = "J\xc3\xa8";
  EXPECT_NE(CallerOf(access, one).name, CallerOf(access, other).name);
  one.certificate = std::string(200, 'x');
  EXPECT_TRUE(absl::IsUnauthenticated(access.Admit(one).status()));
}

TEST(Access, TheDaemonsOwnUserNeedsNoTokenAndIsAnAdmin) {
  const Access access({Tokens(), {}});
  ShownIdentity shown;
  shown.peer = "unix:";
  shown.own_user = true;
  shown.client_id = "me@here";
  EXPECT_EQ(CallerOf(access, shown).name, "me@here");
  EXPECT_TRUE(CallerOf(access, shown).admin);
  shown.own_user = false;
  EXPECT_TRUE(absl::IsUnauthenticated(access.Admit(shown).status()));
}

TEST(Access, OnlyProvenNamesMakeAdmins) {
  const Access access({nullptr, {"mallory", "bob"}});
  EXPECT_FALSE(CallerOf(access, FromNetwork()).admin);
  ShownIdentity shown = FromNetwork();
  shown.certificate = "bob";
  EXPECT_TRUE(CallerOf(access, shown).admin);
}

TEST(Access, NewRulesHoldForTheNextCall) {
  Access access({Tokens(), {}});
  ShownIdentity shown = FromNetwork();
  shown.authorization = "Bearer secret-a";
  EXPECT_TRUE(access.Admit(shown).ok());
  absl::StatusOr<TokenFile> others = TokenFile::Parse(absl::StrCat("alice:", Sha256Hex("new")), "tokens");
  ASSERT_TRUE(others.ok());
  access.SetRules({std::make_shared<const TokenFile>(*std::move(others)), {}});
  EXPECT_TRUE(absl::IsUnauthenticated(access.Admit(shown).status()));
}

TEST(MayCancel, IsForTheOwnerAndAdmins) {
  Caller caller;
  caller.name = "bob";
  EXPECT_TRUE(MayCancel(caller, "j", "bob").ok());
  EXPECT_TRUE(MayCancel(caller, "j", kAnonymous).ok());
  const absl::Status denied = MayCancel(caller, "0123", "alice");
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(std::string(denied.message()), HasSubstr("job 0123 belongs to alice, and you are bob"));
  caller.admin = true;
  EXPECT_TRUE(MayCancel(caller, "j", "alice").ok());
}

TEST(MayWrite, IsNotForReaders) {
  Caller caller;
  caller.name = "dashboard";
  EXPECT_TRUE(MayWrite(caller, "tune").ok());
  caller.reader = true;
  const absl::Status denied = MayWrite(caller, "tune");
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_THAT(std::string(denied.message()),
              HasSubstr("tune is not for dashboard, whose token is for reading"));
  EXPECT_TRUE(absl::IsPermissionDenied(MayCancel(caller, "j", kAnonymous)));
}

TEST(MayAdminister, IsForAdminsAndWhereNobodyProvesANameForThisMachine) {
  Caller caller;
  caller.name = "bob";
  caller.same_host = true;
  EXPECT_TRUE(MayAdminister(caller, "cache delete").ok());
  caller.proven = true;
  EXPECT_TRUE(absl::IsPermissionDenied(MayAdminister(caller, "cache delete")));
  caller.admin = true;
  EXPECT_TRUE(MayAdminister(caller, "cache delete").ok());
  Caller remote;
  remote.name = "bob";
  EXPECT_TRUE(absl::IsPermissionDenied(MayAdminister(remote, "cache delete")));
}

TEST(IsLocalPeer, KnowsThisMachine) {
  for (const char* peer : {"unix:", "unix:/run/qgemm/qgemm.sock", "ipv4:127.0.0.1:4711", "ipv4:127.8.9.1:1",
                           "ipv6:[::1]:4711", "ipv6:%5B::1%5D:4711", "ipv6:[::ffff:127.0.0.1]:4711"}) {
    EXPECT_TRUE(IsLocalPeer(peer)) << peer;
  }
}

TEST(IsLocalPeer, TrustsNobodyElse) {
  for (const char* peer : {"", "ipv4:10.0.0.7:4711", "ipv4:12.7.0.0:1", "ipv4:128.0.0.1:1", "ipv6:[::2]:4711",
                           "ipv6:%5Bfe80::1%5D:4711", "ipv6:[::1:2]:4711", "ipv6:[::ffff:10.0.0.7]:1",
                           "127.0.0.1:4711", "dns:localhost", "inproc"}) {
    EXPECT_FALSE(IsLocalPeer(peer)) << peer;
  }
}

}  // namespace
}  // namespace qgemm
