// The real qgemmd and the real qgemmctl over one store: what `qgemmctl cache` does, with a daemon and without
// one.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "cache/rocksdb_store.h"
#include "tests/system/daemon_process.h"

namespace qgemm {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CacheCommands : public ::testing::Test {
 protected:
  CacheCommands() {
    std::string name = (fs::temp_directory_path() / "qgemm-cache-test-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~CacheCommands() override {
    daemon_.reset();
    fs::remove_all(folder_);
  }

  std::string Data(const std::string& name) const { return folder_ + "/" + name; }

  // `picks` picks with a kernel each, made without a daemon.
  void FillStore(const std::string& data, int picks) {
    auto store = RocksDbStore::Open(data);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = 0; i < picks; ++i) {
      internal::KernelRecord kernel;
      kernel.set_kernel_key(Sha256(absl::StrCat("kernel ", i)));
      kernel.set_cubin(absl::StrCat("cubin ", i));
      kernel.mutable_info()->set_sha256(Sha256Hex(kernel.cubin()));
      kernel.mutable_info()->set_toolchain("nvrtc 13.0");
      kernel.mutable_info()->set_arch("sm_90a");
      ASSERT_TRUE((*store)->PutKernel(kernel).ok());
      internal::PickRecord pick;
      pick.set_pick_key(Sha256(absl::StrCat("pick ", i)));
      pick.set_kernel_key(kernel.kernel_key());
      pick.mutable_pick()->set_target(i % 2 == 0 ? "h200" : "a100");
      pick.mutable_pick()->set_m_bucket(16);
      pick.mutable_pick()->set_source(v1::PICK_SOURCE_MODEL);
      pick.mutable_pick()->mutable_problem()->set_n(256);
      pick.mutable_pick()->mutable_problem()->set_k(1024);
      *pick.mutable_pick()->mutable_kernel() = kernel.info();
      ASSERT_TRUE((*store)->PutPick(pick, {}).ok());
    }
  }

  void Start(const std::string& data, const std::vector<std::string>& device = {"--device", "none"},
             const std::string& compiler = QGEMM_COMPILE,
             const std::vector<std::pair<std::string, std::string>>& env = {}) {
    daemon_.reset();
    std::vector<std::string> words = {"--listen",         "unix:" + folder_ + "/qgemm.sock",
                                      "--data-dir",       data,
                                      "--compile-binary", compiler,
                                      "--lock-dir",       folder_};
    words.insert(words.end(), device.begin(), device.end());
    daemon_ = std::make_unique<DaemonProcess>(QGEMMD, words, env);
    ASSERT_TRUE(daemon_->AwaitLine("ready: listening on").has_value()) << daemon_->Output();
  }

  void Stop() {
    daemon_->Signal(SIGTERM);
    ASSERT_EQ(daemon_->AwaitExit().value_or(-1), 0);
    daemon_.reset();
  }

  struct Outcome {
    int code = -1;
    std::string text;
    json output;  // when it is JSON
  };

  Outcome Ctl(std::vector<std::string> words) {
    words.insert(words.end(), {"--output", "json", "--server", "unix:" + folder_ + "/qgemm.sock"});
    DaemonProcess process(QGEMMCTL, words);
    Outcome outcome;
    outcome.code = process.AwaitExit().value_or(-1);
    outcome.text = process.Output();
    // An error's sentence stands above its JSON.
    const size_t begin = outcome.text.find('{');
    if (begin != std::string::npos) outcome.output = json::parse(outcome.text.substr(begin), nullptr, false);
    return outcome;
  }

  std::string folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(CacheCommands, StatsListPinDeleteVerify) {
  FillStore(Data("a"), 10);
  Start(Data("a"));
  Outcome stats = Ctl({"cache", "stats"});
  ASSERT_EQ(stats.code, 0) << stats.text;
  EXPECT_EQ(stats.output["picks"], 10);
  EXPECT_EQ(stats.output["limit_bytes"], int64_t{20} << 30);
  const Outcome list = Ctl({"cache", "list", "--target", "a100"});
  ASSERT_EQ(list.code, 0) << list.text;
  ASSERT_EQ(list.output["results"].size(), 5);
  const std::string key = list.output["results"][0]["key"];
  EXPECT_EQ(Ctl({"cache", "pin", "--key", key}).output["picks"], 1);
  const Outcome deleted = Ctl({"cache", "delete", "--target", "a100"});
  ASSERT_EQ(deleted.code, 0) << deleted.text;
  EXPECT_EQ(deleted.output["picks"], 4);
  EXPECT_EQ(deleted.output["kernels"], 4);
  EXPECT_EQ(deleted.output["kept"], 1);
  EXPECT_EQ(Ctl({"cache", "unpin", "--all"}).code, 0);
  EXPECT_EQ(Ctl({"cache", "delete", "--key", key}).output["picks"], 1);
  const Outcome verified = Ctl({"cache", "verify"});
  ASSERT_EQ(verified.code, 0) << verified.text;
  EXPECT_EQ(verified.output["picks"], 5);
  EXPECT_EQ(verified.output["corrupt"], 0);
  const Outcome empty = Ctl({"cache", "delete"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.text, HasSubstr("selection is empty"));
}

TEST_F(CacheCommands, ExportedHereIsImportedThere) {
  FillStore(Data("a"), 10);
  FillStore(Data("b"), 2);
  Start(Data("a"));
  const std::string pack = Data("pack");
  const Outcome exported = Ctl({"cache", "export", "--target", "h200", "-o", pack});
  ASSERT_EQ(exported.code, 0) << exported.text;
  EXPECT_EQ(exported.output["bytes"], fs::file_size(pack));
  EXPECT_EQ(Ctl({"cache", "export", "--target", "l40s", "-o", Data("none")}).code, 6);
  EXPECT_FALSE(fs::exists(Data("none")));
  Start(Data("b"));
  Outcome imported = Ctl({"cache", "import", pack});
  ASSERT_EQ(imported.code, 0) << imported.text;
  EXPECT_EQ(imported.output["added"], 8);
  EXPECT_EQ(imported.output["already_there"], 2);
  EXPECT_EQ(imported.output["toolchain"], "nvrtc 13.0");
  EXPECT_EQ(Ctl({"cache", "stats"}).output["adopted_toolchain"], "nvrtc 13.0");
  // A pack that was cut short changes nothing.
  fs::resize_file(pack, fs::file_size(pack) - 10);
  imported = Ctl({"cache", "import", pack});
  EXPECT_EQ(imported.code, 2);
  EXPECT_THAT(imported.text, HasSubstr("offset"));
  EXPECT_EQ(Ctl({"cache", "import", Data("missing")}).code, 2);
  for (const auto& entry : fs::directory_iterator(Data("b"))) {
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("import"))) << "left behind";
  }
}

// Kernels compiled ahead where there is no GPU serve a machine that has one and no NVRTC. Hundreds of them: a
// worker that compiles nothing makes them, and a GPU that runs nothing times them.
TEST_F(CacheCommands, PackOfWarmedKernelsTunesWithoutNvrtc) {
  const std::vector<std::string> format = {"--format", "int4", "--group-size", "128",
                                           "--act",    "bf16", "--m",          "1,64"};
  const auto ctl = [&](std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), format.begin(), format.end());
    words.insert(words.end(), more.begin(), more.end());
    return Ctl(words);
  };
  Start(Data("a"), {"--device", "none"}, FAKE_COMPILE_WORKER);
  const Outcome warmed = ctl({"warm"}, {"--target", "h200"});
  ASSERT_EQ(warmed.code, 0) << warmed.text;
  const std::string pack = Data("pack");
  ASSERT_EQ(Ctl({"cache", "export", "--all", "-o", pack}).code, 0);

  Start(Data("b"), {"--time-binary", QGEMM_TIME_SIMULATED}, QGEMM_COMPILE,
        {{"QGEMM_NVRTC_PATH", Data("no.so")}});
  const std::vector<std::string> shape = {"--shape", "256x512", "--effort", "exhaustive"};
  EXPECT_EQ(ctl({"tune"}, shape).code, 3) << "nothing can be compiled here";
  const Outcome imported = Ctl({"cache", "import", pack});
  ASSERT_EQ(imported.code, 0) << imported.text;
  const Outcome tuned = ctl({"tune"}, shape);
  ASSERT_EQ(tuned.code, 0) << tuned.text;
  EXPECT_EQ(tuned.output["stats"]["compiles"], 0);
  EXPECT_GT(tuned.output["stats"]["timings"], 0);
  ASSERT_EQ(tuned.output["results"].size(), 2);
  for (const json& result : tuned.output["results"]) {
    EXPECT_EQ(result["source"], "MEASURED");
    EXPECT_EQ(result["rejected"], 0);
  }
}

TEST_F(CacheCommands, BackupIsRestoredAfterTheStoreIsLost) {
  FillStore(Data("a"), 10);
  Start(Data("a"));
  const Outcome copied = Ctl({"cache", "backup", Data("backup")});
  ASSERT_EQ(copied.code, 0) << copied.text;
  EXPECT_GT(copied.output["bytes"], 0);
  EXPECT_EQ(Ctl({"cache", "backup", Data("backup")}).code, 1);
  daemon_->Signal(SIGKILL);
  daemon_->AwaitExit();
  fs::remove_all(Data("a"));
  fs::copy(Data("backup"), Data("a"));
  Start(Data("a"));
  EXPECT_EQ(Ctl({"cache", "verify"}).output["picks"], 10);
}

TEST_F(CacheCommands, ReadsWorkWithoutADaemon) {
  FillStore(Data("a"), 10);
  const auto offline = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"--data-dir", Data("a")});
    return Ctl(words);
  };
  EXPECT_EQ(offline({"cache", "stats"}).output["picks"], 10);
  EXPECT_EQ(offline({"cache", "list", "--target", "h200"}).output["results"].size(), 5);
  EXPECT_EQ(offline({"cache", "verify"}).output["kernels"], 10);
  ASSERT_EQ(offline({"cache", "export", "--all", "-o", Data("pack")}).code, 0);
  EXPECT_GT(fs::file_size(Data("pack")), 1000);
  EXPECT_EQ(Ctl({"cache", "stats", "--data-dir", Data("nothing")}).code, 6);
  EXPECT_FALSE(fs::exists(Data("nothing")));
  EXPECT_EQ(Ctl({"cache", "stats"}).code, 3);
  // Beside a running daemon, too.
  Start(Data("a"));
  EXPECT_EQ(offline({"cache", "stats"}).output["picks"], 10);
}

TEST_F(CacheCommands, DeletedDataDirectoryIsNoticedAndTheDaemonServesOn) {
  FillStore(Data("a"), 3);
  Start(Data("a"));
  fs::remove_all(Data("a"));
  ASSERT_TRUE(daemon_->AwaitLine("its files were deleted").has_value()) << daemon_->Output();
  const Outcome stats = Ctl({"cache", "stats"});
  ASSERT_EQ(stats.code, 0) << stats.text;
  EXPECT_EQ(stats.output["picks"], 0);
  EXPECT_EQ(stats.output["write_error"], "");
  Stop();
}

}  // namespace
}  // namespace qgemm
