#ifndef QGEMM_SERVER_KERNEL_SUPPLY_H_
#define QGEMM_SERVER_KERNEL_SUPPLY_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/executor.h"
#include "base/mutex.h"
#include "cache/cache_store.h"
#include "kernels/kernel_config.h"
#include "kernels/problem.h"
#include "server/compiler.h"

namespace qgemm {

class KernelSupply;

// How far a kernel is; outlives its handle, for progress and statistics.
struct KernelProgress {
  enum Phase { kLoading, kCompiling, kStored, kCompiled, kFailed };
  std::atomic<Phase> phase{kLoading};
  std::atomic<double> compile_ms{0};

  bool wanted_compile() const {
    const Phase now = phase.load();
    return now == kCompiling || now == kCompiled || now == kFailed;
  }
  bool decided() const {
    const Phase now = phase.load();
    return now == kStored || now == kCompiled || now == kFailed;
  }
};

// One kernel that somebody waits for or uses. Shared by all who asked for the same key; when the last of them
// lets go, a compile that is still queued is withdrawn. Thread-safe.
class Kernel {
 public:
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const std::string& key() const { return key_; }
  // Once true, everything below is constant.
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  // OK; or why there is no kernel.
  const absl::Status& status() const { return status_; }
  // The failure is not the kernel's own: no worker, or the store cannot be read or written.
  bool is_system_failure() const { return system_failure_; }
  // Without the PTX. Only when status() is OK.
  const internal::KernelRecord& record() const { return record_; }
  bool spills() const {
    return record_.info().spill_store_bytes() > 0 || record_.info().spill_load_bytes() > 0;
  }
  // There is a kernel, and one that may be picked.
  bool usable() const { return status_.ok() && !spills(); }
  const std::shared_ptr<KernelProgress>& progress() const { return progress_; }
  // Somebody else waits for it: its compile, if it waits, stands in that flow, too.
  void AlsoFor(const Flow& flow);

 private:
  friend class KernelSupply;
  Kernel(KernelSupply& supply, std::string key);

  KernelSupply& supply_;
  const std::string key_;
  const KernelHold hold_;  // neither evicted nor deleted while it is in use
  const std::shared_ptr<KernelProgress> progress_ = std::make_shared<KernelProgress>();

  // Written once, before ready_.
  absl::Status status_;
  bool system_failure_ = false;
  internal::KernelRecord record_;
  std::atomic<bool> ready_{false};

  Mutex mu_;
  std::unique_ptr<CompileTicket> ticket_ QGEMM_GUARDED_BY(mu_);
};

// Turns (config, signature, arch, toolchain) into a stored kernel: from the store, or compiled once however
// many ask, and stored before anybody sees it. Thread-safe. Outlives its kernels.
class KernelSupply {
 public:
  // Borrowed: store, compiler, clock. `on_change` is called on some thread, without locks held, whenever a
  // kernel became ready.
  KernelSupply(CacheStore& store, Compiler& compiler, Clock& clock, std::function<void()> on_change);
  ~KernelSupply() = default;

  struct Requested {
    std::shared_ptr<Kernel> kernel;
    bool created = false;  // nobody else was asking for it
  };
  // Reads the store on the caller's thread; compiles in the background, in the turn of `flow`; a compile that
  // others asked for and that waits stands in this flow, too. Kernels
  // with `overrides` have keys of their own, by what is in them, and their sources' digest behind the
  // config's name.
  Requested Request(const KernelConfig& config, const KernelSignature& signature, absl::string_view arch,
                    absl::string_view toolchain, const Flow& flow, const SourceOverrides& overrides = {});
  // Compiles the kernel again although it is stored, because `unusable`, which was stored, is none; what
  // comes takes its place in the store. Whoever asks, also with the same `unusable`, shares one compile.
  Requested Rebuild(const Kernel& unusable, const KernelConfig& config, const KernelSignature& signature,
                    absl::string_view arch, absl::string_view toolchain, const Flow& flow);
  // The support kernels of verification and timing.
  // `unusable`: as of Rebuild; null: none.
  Requested RequestSupport(absl::string_view arch, absl::string_view toolchain, const Flow& flow,
                           const Kernel* unusable = nullptr);

  // The key under which a kernel is stored today.
  std::string CurrentKey(const KernelConfig& config, const KernelSignature& signature, absl::string_view arch,
                         absl::string_view toolchain, const SourceOverrides& overrides = {});

 private:
  friend class Kernel;
  // What goes into a record beside the compiler's answer.
  struct Wanted {
    std::string key;
    std::string config;
    std::string entry;
    std::string arch;
    std::string toolchain;
    std::string layout_id;
  };

  // `unusable`: what is not to be answered with, from the store neither; null: nothing.
  Requested RequestByKey(const Wanted& wanted, const std::function<KernelSource()>& render, const Flow& flow,
                         const Kernel* unusable = nullptr);
  void StoreAndPublish(const std::weak_ptr<Kernel>& waiting, const Wanted& wanted,
                       absl::StatusOr<internal::CompileReply> reply);
  void Publish(Kernel& kernel, KernelProgress::Phase phase, absl::Status status, bool system_failure,
               internal::KernelRecord record);
  void Forget(const std::string& key);

  CacheStore& store_;
  Compiler& compiler_;
  Clock& clock_;
  const std::function<void()> on_change_;

  Mutex mu_;
  std::unordered_map<std::string, std::weak_ptr<Kernel>> in_use_ QGEMM_GUARDED_BY(mu_);
  // Sources that the toolchain refused: asking again would give the same answer.
  std::unordered_map<std::string, absl::Status> refused_ QGEMM_GUARDED_BY(mu_);
  // Keys by what they were made from: rendering a source only for its options is the slow part of a key.
  std::unordered_map<std::string, std::string> keys_ QGEMM_GUARDED_BY(mu_);

  // Compiler callbacks must not block, and a durable write does. Last member: its work uses all of the above.
  ThreadPoolExecutor writer_{"kernel-store", 1};
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_KERNEL_SUPPLY_H_
