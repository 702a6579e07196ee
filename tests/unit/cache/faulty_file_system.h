#ifndef QGEMM_TESTS_UNIT_CACHE_FAULTY_FILE_SYSTEM_H_
#define QGEMM_TESTS_UNIT_CACHE_FAULTY_FILE_SYSTEM_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace qgemm {

// The real file system with a disk that can be full or broken. As on a real one, the last write that finds
// too little space writes what fits and fails. Thread-safe.
class FaultyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  FaultyFileSystem() : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FaultyFileSystem"; }

  void SetFreeBytes(int64_t bytes) { free_bytes_ = bytes; }
  void SetUnlimited() { free_bytes_ = std::numeric_limits<int64_t>::max() / 2; }
  // fsync answers EIO.
  void SetBrokenSync(bool broken) { broken_sync_ = broken; }
  // How often a database was opened on it: each opening takes the lock file once, and nothing else does.
  int64_t openings() const { return openings_; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override {
    if (free_bytes_ <= 0) return rocksdb::IOStatus::NoSpace("No space left on device: ", name);
    std::unique_ptr<rocksdb::FSWritableFile> file;
    rocksdb::IOStatus status = rocksdb::FileSystemWrapper::NewWritableFile(name, options, &file, debug);
    if (status.ok()) *result = std::make_unique<File>(std::move(file), *this);
    return status;
  }

  rocksdb::IOStatus LockFile(const std::string& name, const rocksdb::IOOptions& options,
                             rocksdb::FileLock** lock, rocksdb::IODebugContext* debug) override {
    ++openings_;
    return rocksdb::FileSystemWrapper::LockFile(name, options, lock, debug);
  }

 private:
  class File : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(std::unique_ptr<rocksdb::FSWritableFile>&& file, FaultyFileSystem& disk)
        : rocksdb::FSWritableFileOwnerWrapper(std::move(file)), disk_(disk) {}

    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
      const auto wanted = static_cast<int64_t>(data.size());
      const int64_t before = disk_.free_bytes_.fetch_sub(wanted);
      if (before >= wanted) return target()->Append(data, options, debug);
      disk_.free_bytes_ = 0;
      const rocksdb::Slice fits(data.data(), static_cast<size_t>(before > 0 ? before : 0));
      if (!fits.empty()) target()->Append(fits, options, debug).PermitUncheckedError();
      return rocksdb::IOStatus::NoSpace("No space left on device");
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo&, rocksdb::IODebugContext* debug) override {
      return Append(data, options, debug);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
      if (disk_.broken_sync_) return rocksdb::IOStatus::IOError("Input/output error");
      return target()->Sync(options, debug);
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
      if (disk_.broken_sync_) return rocksdb::IOStatus::IOError("Input/output error");
      return target()->Fsync(options, debug);
    }

   private:
    FaultyFileSystem& disk_;
  };

  std::atomic<int64_t> free_bytes_{std::numeric_limits<int64_t>::max() / 2};
  std::atomic<bool> broken_sync_{false};
  std::atomic<int64_t> openings_{0};
};

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CACHE_FAULTY_FILE_SYSTEM_H_
