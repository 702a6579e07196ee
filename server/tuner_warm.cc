// Tuner::Warm: a format's kernels, compiled ahead.
#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bucket.h"
#include "kernels/search_space.h"
#include "server/proto_convert.h"
#include "server/tuner.h"

namespace qgemm {
namespace {

// Whoever tunes goes first.
Flow WarmFlow() { return {"warm", WorkClass::kBackground, 0}; }
constexpr int kMaxFailures = 16;
constexpr Duration kPoll = std::chrono::milliseconds(50);  // for a client that is gone

// The request's signature; its shape does not matter, but a problem needs one.
absl::StatusOr<KernelSignature> SignatureOf(v1::Problem problem) {
  problem.set_n(64);
  problem.set_k(1 << 16);
  QGEMM_ASSIGN_OR_RETURN(const Problem parsed, ProblemFromProto(problem));
  return parsed.signature;
}

absl::StatusOr<std::vector<KernelConfig>> ConfigsOf(const v1::WarmRequest& request,
                                                    const KernelSignature& signature,
                                                    const DeviceProfile& device) {
  if (request.m().empty()) return WholeConfigSpace(signature, device);
  std::set<KernelConfig> configs;
  for (const int64_t m : request.m()) {
    QGEMM_RETURN_IF_ERROR(ValidateRows(m));
    for (const KernelConfig& config : ConfigSpace(signature, BucketFor(m), device)) configs.insert(config);
  }
  return std::vector<KernelConfig>(configs.begin(), configs.end());
}

}  // namespace

absl::Status Tuner::Warm(const v1::WarmRequest& request,
                         const std::function<bool(const v1::WarmEvent&)>& send) {
  QGEMM_ASSIGN_OR_RETURN(const KernelSignature signature, SignatureOf(request.problem()));
  QGEMM_ASSIGN_OR_RETURN(const TuningTarget target, targets_.Resolve(request.target()));
  QGEMM_ASSIGN_OR_RETURN(const std::vector<KernelConfig> configs,
                         ConfigsOf(request, signature, target.profile));
  QGEMM_ASSIGN_OR_RETURN(const std::string toolchain, Toolchain());
  QGEMM_RETURN_IF_ERROR(compiler_.SupportsArch(target.profile.arch));

  const TimePoint start = clock_.Now();
  std::map<std::string, std::shared_ptr<Kernel>> waiting;  // by name
  std::map<std::string, std::shared_ptr<KernelProgress>> own;
  const auto ask = [&](const std::string& name, KernelSupply::Requested requested) {
    if (requested.created) own[name] = requested.kernel->progress();
    waiting[name] = std::move(requested.kernel);
  };
  // What verifies and times is needed by every tuning, too.
  ask("support kernels", supply_.RequestSupport(target.profile.arch, toolchain, WarmFlow()));
  for (const KernelConfig& config : configs) {
    ask(ConfigName(config), supply_.Request(config, signature, target.profile.arch, toolchain, WarmFlow()));
  }
  v1::WarmEvent event;
  event.set_arch(target.profile.arch);
  event.set_kernels(static_cast<int>(waiting.size()));
  TimePoint next_event = TimePoint::min();
  while (true) {
    for (auto kernel = waiting.begin(); kernel != waiting.end();) {
      if (!kernel->second->ready()) {
        ++kernel;
        continue;
      }
      const absl::Status& status = kernel->second->status();
      if (!status.ok() && kernel->second->is_system_failure()) return status;
      if (own.count(kernel->first) > 0 && own[kernel->first]->wanted_compile()) {
        event.set_compiled(event.compiled() + 1);
      }
      if (status.ok()) {
        event.set_ready(event.ready() + 1);
        event.set_bytes(event.bytes() + kernel->second->record().info().cubin_bytes());
        event.set_spilled(event.spilled() + (kernel->second->spills() ? 1 : 0));
      } else {
        event.set_failed(event.failed() + 1);
        if (event.failures_size() < kMaxFailures) {
          event.add_failures(absl::StrCat(kernel->first, ": ", std::string(status.message())));
        }
      }
      kernel = waiting.erase(kernel);
    }
    event.set_elapsed_s(std::chrono::duration<double>(clock_.Now() - start).count());
    event.set_done(waiting.empty());
    if (event.done() || clock_.Now() >= next_event) {
      next_event = clock_.Now() + options_.progress_interval;
      if (!send(event)) return absl::CancelledError("the client cancelled");
    }
    if (event.done()) return absl::OkStatus();
    if (board_.stopped()) return absl::UnavailableError("the daemon is stopping; try again later");
    board_.WaitUntil(clock_.Now() + kPoll, [&] {
      return std::any_of(waiting.begin(), waiting.end(),
                         [](const auto& kernel) { return kernel.second->ready(); });
    });
  }
}

}  // namespace qgemm
