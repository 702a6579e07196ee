// Every store file, damaged one byte at a time: only a miss, a rebuild, or the store moved aside with a
// sentence; never a wrong byte, never a store that cannot be opened. QGEMM_FULL_SWEEP=1 flips every 97th
// byte; without it the same bytes are sampled.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/rocksdb_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"
#include "tests/unit/cache/child_process.h"
#include "tests/unit/cache/store_test_support.h"

namespace qgemm {
namespace {

namespace fs = std::filesystem;

constexpr int kKernels = 6;
constexpr int kPicks = 12;
constexpr uintmax_t kStride = 97;
constexpr int kSampledFlips = 40;

// Part of it in tables and blob files, part in the log.
void MakeStore(const std::string& directory) {
  for (const int half : {0, 1}) {
    auto store = RocksDbStore::Open(directory);
    ASSERT_TRUE(store.ok()) << store.status();
    for (int i = half * kKernels / 2; i < (half + 1) * kKernels / 2; ++i) {
      ASSERT_TRUE((*store)->PutKernel(Kernel(absl::StrCat("k", i), Noise(6'000, i))).ok());
    }
    for (int i = half * kPicks / 2; i < (half + 1) * kPicks / 2; ++i) {
      ASSERT_TRUE((*store)
                      ->PutPick(PickOf(absl::StrCat("p", i), absl::StrCat("k", i % kKernels)),
                                {TimingOf(absl::StrCat("t", i), i)})
                      .ok());
    }
  }
}

// Opens the store and reads all of it. 0: what is there is right, and what is missing can be written again;
// else what is wrong. (A flipped byte of the log costs what was written after it: RocksDB drops it.)
int CheckStore(const std::string& directory) {
  auto store = RocksDbStore::Open(directory);
  if (!store.ok()) return 1;
  for (int i = 0; i < kKernels; ++i) {
    const auto kernel = (*store)->GetKernel(Key(absl::StrCat("k", i)));
    if (!kernel.ok() && !absl::IsNotFound(kernel.status())) return 2;
    if (kernel.ok() && kernel->cubin() != Noise(6'000, i)) return 3;
  }
  for (int i = 0; i < kPicks; ++i) {
    const auto pick = (*store)->GetPick(Key(absl::StrCat("p", i)));
    if (!pick.ok() && !absl::IsNotFound(pick.status())) return 4;
    if (pick.ok() && pick->pick().config() != absl::StrCat("k", i % kKernels)) return 5;
    const auto timings = (*store)->GetTimings({Key(absl::StrCat("t", i))});
    if (!timings.ok()) return 6;
    if ((*timings)[0].has_value() && (*timings)[0]->timing().median_us() != i) return 7;
  }
  if (!(*store)->Stats().ok() || !(*store)->Verify().ok()) return 8;
  // Rebuilt what was lost.
  for (int i = 0; i < kKernels; ++i) {
    if (!(*store)->PutKernel(Kernel(absl::StrCat("k", i), Noise(6'000, i))).ok()) return 9;
  }
  return 0;
}

// How a child ends that checks the store: RocksDB's asserts may abort it, and what the daemon's supervisor
// does then is to start it again.
int CheckInChild(const std::string& directory) {
  ChildProcess child([&](const ChildProcess::Say&) {
    spdlog::set_level(spdlog::level::off);
    alarm(120);  // a store that hangs is told from a slow disk by this, and by its flip
    return CheckStore(directory);
  });
  const int status = child.Wait();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

struct Flip {
  fs::path file;  // relative
  uintmax_t at = 0;
};

TEST(Corruption, EveryFlippedByteIsAMissARebuildOrAStoreMovedAside) {
  TemporaryDirectory temporary;
  // In a child as well: threads of a store that was open here would be missing in the children.
  ASSERT_EQ(ChildProcess([&](const ChildProcess::Say&) {
              MakeStore(temporary.store());
              return 0;
            }).Wait(),
            0);
  std::vector<Flip> flips;
  for (const auto& entry : fs::directory_iterator(temporary.store())) {
    const fs::path name = entry.path().filename();
    for (uintmax_t at = 0; at < entry.file_size(); at += kStride) flips.push_back({name, at});
  }
  std::sort(flips.begin(), flips.end(),
            [](const Flip& a, const Flip& b) { return std::tie(a.file, a.at) < std::tie(b.file, b.at); });
  ASSERT_GT(flips.size(), kSampledFlips);
  const char* full = std::getenv("QGEMM_FULL_SWEEP");
  const size_t step = full != nullptr ? 1 : flips.size() / kSampledFlips;
  int checked = 0;
  for (size_t i = 0; i < flips.size(); i += step) {
    const std::string copy = absl::StrCat(temporary.path(), "/copy");
    fs::copy(temporary.store(), copy);
    {
      std::fstream file(fs::path(copy) / flips[i].file, std::ios::in | std::ios::out | std::ios::binary);
      char byte = 0;
      file.seekg(static_cast<std::streamoff>(flips[i].at));
      file.get(byte);
      file.seekp(static_cast<std::streamoff>(flips[i].at));
      file.put(static_cast<char>(byte ^ (1 << (i % 8))));
    }
    const int result = CheckInChild(copy);
    EXPECT_EQ(result, 0) << flips[i].file << " at " << flips[i].at << ", bit " << i % 8;
    // The next start finds a store that works, whatever the first did.
    if (result == 0) {
      EXPECT_EQ(CheckInChild(copy), 0) << flips[i].file << " at " << flips[i].at << ", the second time";
    }
    for (const auto& entry : fs::directory_iterator(temporary.path())) {
      if (entry.path() != temporary.store()) fs::remove_all(entry.path());
    }
    ++checked;
  }
  RecordProperty("flips", checked);
}

}  // namespace
}  // namespace qgemm
