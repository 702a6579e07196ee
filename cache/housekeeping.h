#ifndef QGEMM_CACHE_HOUSEKEEPING_H_
#define QGEMM_CACHE_HOUSEKEEPING_H_

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/eviction.h"
#include "cache/rocksdb_store.h"

namespace qgemm {

struct HousekeepingOptions {
  RetentionPolicy retention;
  // How soon a full disk that has room again, or a deleted directory, is noticed.
  Duration look_interval = std::chrono::seconds(1);
  Duration flush_interval = std::chrono::minutes(5);
  Duration expiry_interval = std::chrono::hours(1);
};

// What a store needs from time to time without being asked: reads are written down, the size limit and the
// retention are kept, writes come back after a full disk, a deleted directory is begun anew. Thread-safe.
class Housekeeping {
 public:
  // Borrowed: store, clock.
  Housekeeping(RocksDbStore& store, Clock& clock, const HousekeepingOptions& options);
  // Ends the thread and writes down the last reads.
  ~Housekeeping();
  Housekeeping(const Housekeeping&) = delete;
  Housekeeping& operator=(const Housekeeping&) = delete;

  // Starts the thread that calls RunDue() once per `look_interval`.
  void Start();

  // Does what is due by the clock. Not at once on two threads.
  void RunDue();

 private:
  void Loop();

  RocksDbStore& store_;
  Clock& clock_;
  const HousekeepingOptions options_;

  // Used by RunDue() alone.
  TimePoint next_flush_;
  TimePoint next_expiry_;
  bool complained_ = false;

  Mutex mu_;
  CondVar stop_cv_;
  bool stopping_ QGEMM_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace qgemm

#endif  // QGEMM_CACHE_HOUSEKEEPING_H_
