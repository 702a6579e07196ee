#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace qgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    std::string name = (std::filesystem::temp_directory_path() / "qgemm-config-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    file_ = folder_ + "/qgemmd.toml";
  }
  ~ConfigTest() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<Config> Load(const std::string& text) {
    std::ofstream(file_) << text;
    return LoadConfigFile(file_, Config());
  }
  std::string ErrorOf(const std::string& text) {
    const auto config = Load(text);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(file_));
    return std::string(config.status().message());
  }

  std::string folder_;
  std::string file_;
};

TEST_F(ConfigTest, DefaultsFollowTheEnvironment) {
  const auto user = ResolveConfig(Config(), {{"HOME", "/home/alice"}, {"XDG_RUNTIME_DIR", "/run/user/1000"}});
  ASSERT_TRUE(user.ok()) << user.status();
  EXPECT_THAT(user->listen, ElementsAre("unix:/run/user/1000/qgemm.sock"));
  EXPECT_EQ(user->data_dir, "/home/alice/.local/state/qgemm");
  const auto service = ResolveConfig(Config(), {});
  ASSERT_TRUE(service.ok()) << service.status();
  EXPECT_THAT(service->listen, ElementsAre("unix:/run/qgemm/qgemm.sock"));
  EXPECT_EQ(service->data_dir, "/var/lib/qgemm");
}

TEST_F(ConfigTest, FileSetsEveryKey) {
  const auto config = Load(R"(
    listen = ["unix:/tmp/a.sock", "127.0.0.1:7461"]
    tls_cert = "/tls/server.pem"
    tls_key = "/tls/server.key"
    tls_client_ca = "/tls/ca.pem"
    tokens_file = "/tokens"
    admin = ["operator", "ci"]
    data_dir = "/data"
    device = "none"
    target = "a100"
    arch = "sm_80"
    workers = 7
    cache_limit = "5GiB"
    cache_max_idle_days = 30
    timing_max_age_days = 90
    log_format = "json"
    log_level = "debug"
    compile_binary = "/bin/compile"
    time_binary = "/bin/time"
    gpu_memory_limit = "4GiB"
    sample_log = "/tmp/samples"
    lock_dir = "/locks"
  )");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->listen, ElementsAre("unix:/tmp/a.sock", "127.0.0.1:7461"));
  EXPECT_EQ(config->tls_cert, "/tls/server.pem");
  EXPECT_EQ(config->tls_key, "/tls/server.key");
  EXPECT_EQ(config->tls_client_ca, "/tls/ca.pem");
  EXPECT_EQ(config->tokens_file, "/tokens");
  EXPECT_THAT(config->admin, ElementsAre("operator", "ci"));
  EXPECT_EQ(config->data_dir, "/data");
  EXPECT_EQ(config->device, "none");
  EXPECT_EQ(config->target, "a100");
  EXPECT_EQ(config->arch, "sm_80");
  EXPECT_EQ(config->workers, 7);
  EXPECT_EQ(config->cache_limit, "5GiB");
  EXPECT_EQ(config->cache_max_idle_days, 30);
  EXPECT_EQ(config->timing_max_age_days, 90);
  EXPECT_EQ(config->log_format, "json");
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->compile_binary, "/bin/compile");
  EXPECT_EQ(config->time_binary, "/bin/time");
  EXPECT_EQ(config->gpu_memory_limit, "4GiB");
  EXPECT_EQ(config->sample_log, "/tmp/samples");
  EXPECT_EQ(config->lock_dir, "/locks");
}

TEST_F(ConfigTest, SizesAreNumbersWithUnits) {
  EXPECT_EQ(ParseByteSize("0").value(), 0);
  EXPECT_EQ(ParseByteSize("123").value(), 123);
  EXPECT_EQ(ParseByteSize("20GiB").value(), int64_t{20} << 30);
  EXPECT_EQ(ParseByteSize("1.5 MB").value(), 1'500'000);
  for (const char* bad : {"", "GiB", "-1", "5 apples", "1e3", "99999999TiB"}) {
    EXPECT_EQ(ParseByteSize(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  Config config;
  for (const char* bad : {"1MiB", "much"}) {
    config.cache_limit = bad;
    const auto resolved = ResolveConfig(config, {});
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(resolved.status().message()), HasSubstr(bad));
  }
}

TEST_F(ConfigTest, PrintedConfigLoadsAsItself) {
  Config config;
  config.listen = {"unix:/tmp/a.sock"};
  config.data_dir = "/data";
  config.workers = 3;
  const auto again = Load(PrintConfig(config));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintConfig(*again), PrintConfig(config));
}

TEST_F(ConfigTest, NamesWhatIsWrongInTheFile) {
  EXPECT_THAT(ErrorOf("data_dri = \"/x\""), HasSubstr("unknown key data_dri"));
  EXPECT_THAT(ErrorOf("workers = \"many\""), HasSubstr("workers"));
  EXPECT_THAT(ErrorOf("workers = -1"), HasSubstr("-1"));
  EXPECT_THAT(ErrorOf("listen = [1]"), HasSubstr("listen"));
  EXPECT_THAT(ErrorOf("data_dir = 5"), HasSubstr("data_dir"));
  EXPECT_THAT(ErrorOf("\nlisten ="), HasSubstr("line 2"));
  EXPECT_EQ(LoadConfigFile(folder_ + "/missing", Config()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadConfigFile("", Config()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(LoadConfigFile(folder_, Config()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConfigTest, RefusesValuesOutOfRange) {
  const auto error_of = [](void (*change)(Config&)) {
    Config config;
    change(config);
    return ResolveConfig(config, {}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.device = "0"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.target = "h900"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.arch = "sm_70"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.workers = -1; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.listen = {"0.0.0.0:1"}; })));
}

TEST_F(ConfigTest, OtherMachinesReachItOverTlsOnly) {
  for (const char* address : {"0.0.0.0:7461", "[::]:7461", "10.0.0.1:7461", "example.org:7461"}) {
    Config config;
    config.listen = {"127.0.0.1:7460", address};
    const absl::StatusOr<Config> open = ResolveConfig(config, {});
    EXPECT_TRUE(absl::IsInvalidArgument(open.status())) << address;
    EXPECT_THAT(std::string(open.status().message()), HasSubstr(address));
    EXPECT_THAT(std::string(open.status().message()), HasSubstr("--tls-cert"));
    config.tls_cert = "server.pem";
    config.tls_key = "server.key";
    EXPECT_TRUE(ResolveConfig(config, {}).ok()) << address;
  }
}

TEST_F(ConfigTest, TlsNeedsCertificateAndKey) {
  const auto error_of = [](void (*change)(Config&)) {
    Config config;
    change(config);
    return ResolveConfig(config, {}).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.tls_cert = "a"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.tls_key = "a"; })));
  EXPECT_TRUE(absl::IsInvalidArgument(error_of([](Config& config) { config.tls_client_ca = "a"; })));
}

TEST_F(ConfigTest, AnEmptyFileNameIsRefused) {
  for (const char* key : {"tls_cert", "tls_key", "tls_client_ca", "tokens_file", "sample_log"}) {
    EXPECT_THAT(ErrorOf(std::string(key) + " = \"\""), HasSubstr(std::string(key) + " is empty; allowed: a file"));
  }
}

TEST(Config, NumbersAreReadCheckedAndPrinted) {
  const std::string path = ::testing::TempDir() + "/numbers.toml";
  std::ofstream(path) << "drain_seconds = 7\nqueue_per_client = 12\n";
  const absl::StatusOr<Config> config = LoadConfigFile(path, Config());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->drain_seconds, 7);
  EXPECT_EQ(config->queue_per_client, 12);
  EXPECT_EQ(config->queue_total, Config().queue_total);
  EXPECT_THAT(PrintConfig(*config), ::testing::HasSubstr("drain_seconds = 7\n"));
  Config bad;
  bad.queue_per_client = 0;
  const absl::StatusOr<Config> refused = ResolveConfig(bad, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("queue_per_client is 0"));
}

TEST(Config, ReloadingTakesLimitsAndNamesWhatNeedsARestart) {
  Config running;
  running.target = "a100";
  Config changed = running;
  changed.queue_total = 5;
  changed.log_level = "debug";
  changed.admin = {"operator"};
  EXPECT_TRUE(ApplyReloadable(changed, running).empty());
  EXPECT_THAT(running.admin, ElementsAre("operator"));
  EXPECT_EQ(running.queue_total, 5);
  EXPECT_EQ(running.log_level, "debug");
  changed.target = "h100";
  changed.workers = 3;
  EXPECT_THAT(ApplyReloadable(changed, running), ::testing::UnorderedElementsAre("workers", "target"));
  EXPECT_EQ(running.target, "a100");
}

}  // namespace
}  // namespace qgemm
