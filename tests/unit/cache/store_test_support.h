#ifndef QGEMM_TESTS_UNIT_CACHE_STORE_TEST_SUPPORT_H_
#define QGEMM_TESTS_UNIT_CACHE_STORE_TEST_SUPPORT_H_

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "cache/record_store.h"

namespace qgemm {

// The raw table beneath a store's records.
class RecordStoreTestPeer {
 public:
  static absl::StatusOr<std::string> Read(RecordStore& store, RecordFamily family, absl::string_view key) {
    return store.Read(family, key);
  }
  static absl::Status Write(RecordStore& store, RecordFamily family, std::string key, std::string value) {
    return store.Write({{family, std::move(key), std::move(value)}});
  }
  static absl::Status Delete(RecordStore& store, RecordFamily family, std::string key) {
    return store.Write({{family, std::move(key), std::nullopt}});
  }
  static absl::Status RemoveIfStill(RecordStore& store, RecordFamily family, absl::string_view key,
                                    const absl::StatusOr<std::string>& seen) {
    return store.RemoveIfStill(family, key, seen, {});
  }
  // Makes it what schema version 1 would have left: no dates.
  static absl::Status MakeVersion1(RecordStore& store) {
    std::vector<RecordStore::Mutation> mutations;
    const absl::StatusOr<RecordStore::Page> page =
        store.ReadPage(RecordFamily::kIndex, "used/", "used0", 1 << 20);
    if (!page.ok()) return page.status();
    for (const auto& [key, value] : *page) {
      mutations.push_back({RecordFamily::kIndex, key, std::nullopt});
    }
    mutations.push_back({RecordFamily::kMeta, "schema_version", "1"});
    return store.Write(mutations);
  }
  static int64_t Count(RecordStore& store, RecordFamily family) { return store.Count(family).value_or(-1); }
};

// An empty directory that is removed, with all beside it that begins with its name, at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qgemm-store-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  // A store's directory inside, so that what is moved beside it is removed too.
  std::string store() const { return path_ + "/store"; }

 private:
  std::string path_;
};

// A 32-byte key made from `name`.
inline std::string Key(absl::string_view name) { return Sha256(name); }

// `bytes` bytes that zstd cannot shrink, different for each seed.
inline std::string Noise(size_t bytes, uint64_t seed) {
  std::string noise;
  noise.reserve(bytes + 8);
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  while (noise.size() < bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    noise.append(reinterpret_cast<const char*>(&state), sizeof(state));
  }
  noise.resize(bytes);
  return noise;
}

inline internal::KernelRecord Kernel(absl::string_view name, std::string cubin) {
  internal::KernelRecord record;
  record.set_kernel_key(Key(name));
  record.set_cubin(std::move(cubin));
  record.set_ptx(absl::StrCat(".version 9.0 // ", name));
  record.mutable_info()->set_sha256(Sha256Hex(record.cubin()));
  record.mutable_info()->set_cubin_bytes(static_cast<int64_t>(record.cubin().size()));
  record.mutable_info()->set_config(std::string(name));
  record.mutable_info()->set_registers(96);
  return record;
}

inline internal::TimingRecord TimingOf(absl::string_view name, double median_us) {
  internal::TimingRecord record;
  record.set_timing_key(Key(name));
  record.set_candidate(std::string(name));
  record.mutable_timing()->set_median_us(median_us);
  return record;
}

inline internal::PickRecord PickOf(absl::string_view name, absl::string_view kernel) {
  internal::PickRecord record;
  record.set_pick_key(Key(name));
  record.set_kernel_key(Key(kernel));
  record.mutable_pick()->set_config(std::string(kernel));
  record.mutable_pick()->set_m_bucket(16);
  return record;
}

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CACHE_STORE_TEST_SUPPORT_H_
