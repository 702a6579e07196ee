#include "server/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/digest.h"

namespace qgemm {
namespace {

using ::testing::HasSubstr;

TEST(TokenFile, FindsHoldersByTheirTokens) {
  const absl::StatusOr<TokenFile> tokens =
      TokenFile::Parse(absl::StrCat("# people\n\nalice:", Sha256Hex("one"), "   # until June\r\n",
                                    "  alice:", Sha256Hex("two"), "\nop:", Sha256Hex("three"),
                                    ":admin\nview:", Sha256Hex("five"), ":reader"),
                       "tokens");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->size(), 4u);
  EXPECT_EQ(tokens->Find("one")->name, "alice");
  EXPECT_EQ(tokens->Find("two")->name, "alice");
  EXPECT_FALSE(tokens->Find("two")->admin);
  EXPECT_EQ(tokens->Find("three")->name, "op");
  EXPECT_TRUE(tokens->Find("three")->admin);
  EXPECT_FALSE(tokens->Find("three")->reader);
  EXPECT_TRUE(tokens->Find("five")->reader);
  EXPECT_FALSE(tokens->Find("five")->admin);
  EXPECT_FALSE(tokens->Find("four").has_value());
  EXPECT_FALSE(tokens->Find("").has_value());
  EXPECT_FALSE(tokens->Find(Sha256Hex("one")).has_value());
}

TEST(TokenFile, NamesTheLineThatIsWrongButNotItsText) {
  const std::string good = absl::StrCat("a:", Sha256Hex("x"), "\n");
  for (const std::string& bad :
       {std::string("alice:plain-secret"), std::string("alice"), absl::StrCat(":", Sha256Hex("y")),
        absl::StrCat("a b:", Sha256Hex("y")), absl::StrCat("alice:", Sha256Hex("y"), ":root"),
        absl::StrCat("alice:", Sha256Hex("y"), ":admin:more"), absl::StrCat("alice:", Sha256Hex("y"), "0"),
        absl::StrCat("alice:", std::string(64, 'g'))}) {
    const absl::StatusOr<TokenFile> tokens = TokenFile::Parse(good + bad, "/etc/qgemm/tokens");
    EXPECT_TRUE(absl::IsInvalidArgument(tokens.status())) << bad;
    EXPECT_THAT(std::string(tokens.status().message()), HasSubstr("/etc/qgemm/tokens line 2"));
    EXPECT_THAT(std::string(tokens.status().message()), ::testing::Not(HasSubstr("secret")));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(TokenFile::Parse("# nobody\n", "tokens").status()));
}

TEST(TokenFile, RefusesOneTokenOfTwo) {
  const absl::Status twice =
      TokenFile::Parse(absl::StrCat("a:", Sha256Hex("x"), "\nb:", Sha256Hex("x"), ":admin"), "tokens")
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
  EXPECT_THAT(std::string(twice.message()), HasSubstr("tokens line 2 gives b the token of a"));
}

TEST(TokenFile, RefusesAFileThatOthersCanReadOrChange) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/tokens-", getpid());
  std::ofstream(path) << "a:" << Sha256Hex("x") << "\n";
  for (const mode_t mode : {0600, 0640, 0400, 0440}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(TokenFile::Load(path).ok()) << std::oct << mode;
  }
  for (const mode_t mode : {0644, 0660, 0606, 0604}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const absl::Status refused = TokenFile::Load(path).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << std::oct << mode;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("chmod"));
  }
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsInvalidArgument(TokenFile::Load(path).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(TokenFile::Load(::testing::TempDir()).status()));
}

}  // namespace
}  // namespace qgemm
