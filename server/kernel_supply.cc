#include "server/kernel_supply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/host_name.h"
#include "kernels/access_report.h"
#include "kernels/kernel_source.h"
#include "kernels/launch_spec.h"
#include "kernels/packing.h"
#include "server/kernel_key.h"
#include "spdlog/spdlog.h"

namespace qgemm {
namespace {

constexpr size_t kShownDigestDigits = 8;

v1::AccessReport AccessOf(const std::string& ptx, const std::string& entry) {
  const AccessReport report = AnalyzeAccess(ptx, entry);
  v1::AccessReport proto;
  for (const ParameterAccess& access : report.parameters) {
    v1::AccessReport::Parameter& parameter = *proto.add_parameters();
    parameter.set_index(access.index);
    parameter.set_read(access.read);
    parameter.set_written(access.written);
    parameter.set_alignment(access.alignment);
  }
  proto.set_failure(report.failure);
  return proto;
}

}  // namespace

Kernel::Kernel(KernelSupply& supply, std::string key)
    : supply_(supply), key_(std::move(key)), hold_(supply.store_.Hold(key_)) {}

Kernel::~Kernel() {
  supply_.Forget(key_);
  std::unique_ptr<CompileTicket> ticket;
  {
    MutexLock lock(mu_);
    ticket = std::move(ticket_);
  }
  if (ticket != nullptr && !ready()) ticket->Cancel();
}

void Kernel::AlsoFor(const Flow& flow) {
  MutexLock lock(mu_);
  if (ticket_ != nullptr && !ready()) ticket_->AlsoFor(flow);
}

KernelSupply::KernelSupply(CacheStore& store, Compiler& compiler, Clock& clock,
                           std::function<void()> on_change)
    : store_(store), compiler_(compiler), clock_(clock), on_change_(std::move(on_change)) {}

std::string KernelSupply::CurrentKey(const KernelConfig& config, const KernelSignature& signature,
                                     absl::string_view arch, absl::string_view toolchain,
                                     const SourceOverrides& overrides) {
  const std::string config_name = ConfigName(config);
  const std::string signature_name = SignatureName(signature);
  const std::string made_from = absl::StrCat(config_name, "\n", signature_name, "\n", arch, "\n", toolchain);
  // A developer's sources come once each: they are not worth remembering.
  if (overrides.empty()) {
    MutexLock lock(mu_);
    const auto found = keys_.find(made_from);
    if (found != keys_.end()) return found->second;
  }
  KernelKeyInput input;
  input.source_digest = DeviceSourceDigest(config.family, overrides);
  input.config = config_name;
  input.signature = signature_name;
  input.layout_id = std::string(kLayoutId);
  input.launch_abi_version = kLaunchAbiVersion;
  input.arch = std::string(arch);
  input.options = RenderKernelSource(config, signature).options;
  input.toolchain = std::string(toolchain);
  std::string key = KernelKey(input);
  if (!overrides.empty()) return key;
  MutexLock lock(mu_);
  keys_.emplace(made_from, key);
  return key;
}

KernelSupply::Requested KernelSupply::Request(const KernelConfig& config, const KernelSignature& signature,
                                              absl::string_view arch, absl::string_view toolchain,
                                              const Flow& flow, const SourceOverrides& overrides) {
  Wanted wanted;
  wanted.key = CurrentKey(config, signature, arch, toolchain, overrides);
  wanted.config = ConfigName(config);
  if (!overrides.empty()) {
    const std::string digest = DeviceSourceDigest(config.family, overrides);
    if (digest != DeviceSourceDigest(config.family)) {
      absl::StrAppend(&wanted.config, "+", digest.substr(0, kShownDigestDigits));
    }
  }
  wanted.arch = std::string(arch);
  wanted.toolchain = std::string(toolchain);
  wanted.layout_id = std::string(kLayoutId);
  return RequestByKey(
      wanted, [&] { return RenderKernelSource(config, signature, overrides); }, flow);
}

KernelSupply::Requested KernelSupply::Rebuild(const Kernel& unusable, const KernelConfig& config,
                                              const KernelSignature& signature, absl::string_view arch,
                                              absl::string_view toolchain, const Flow& flow) {
  Wanted wanted;
  wanted.key = unusable.key();
  wanted.config = ConfigName(config);
  wanted.arch = std::string(arch);
  wanted.toolchain = std::string(toolchain);
  wanted.layout_id = std::string(kLayoutId);
  return RequestByKey(
      wanted, [&] { return RenderKernelSource(config, signature); }, flow, &unusable);
}

KernelSupply::Requested KernelSupply::RequestSupport(absl::string_view arch, absl::string_view toolchain,
                                                     const Flow& flow, const Kernel* unusable) {
  KernelSource source = SupportKernelSource();
  KernelKeyInput input;
  input.source_digest = SupportSourceDigest();
  input.config = "support";
  input.layout_id = std::string(kLayoutId);
  input.launch_abi_version = kLaunchAbiVersion;
  input.arch = std::string(arch);
  input.options = source.options;
  input.toolchain = std::string(toolchain);
  Wanted wanted;
  wanted.key = KernelKey(input);
  wanted.config = "support";
  wanted.arch = std::string(arch);
  wanted.toolchain = std::string(toolchain);
  wanted.layout_id = std::string(kLayoutId);
  return RequestByKey(
      wanted, [&] { return std::move(source); }, flow, unusable);
}

KernelSupply::Requested KernelSupply::RequestByKey(const Wanted& wanted,
                                                   const std::function<KernelSource()>& render,
                                                   const Flow& flow, const Kernel* unusable) {
  std::shared_ptr<Kernel> kernel;
  std::shared_ptr<Kernel> existing;  // outlives the lock: destroying the last reference takes it
  absl::Status refused;
  bool joined = false;
  {
    MutexLock lock(mu_);
    std::weak_ptr<Kernel>& entry = in_use_[wanted.key];
    existing = entry.lock();
    // A failure that is not the source's own is not handed on to those who ask later.
    if (existing != nullptr && existing.get() != unusable &&
        (!existing->ready() || existing->status().ok())) {
      joined = true;
    }
    if (!joined) {
      kernel = std::shared_ptr<Kernel>(new Kernel(*this, wanted.key));
      entry = kernel;
      const auto found = refused_.find(wanted.key);
      if (found != refused_.end()) refused = found->second;
    }
  }
  if (joined) {
    existing->AlsoFor(flow);
    return {std::move(existing), false};
  }
  if (!refused.ok()) {
    Publish(*kernel, KernelProgress::kStored, refused, false, {});
    return {kernel, true};
  }
  absl::StatusOr<internal::KernelRecord> stored = store_.GetKernel(wanted.key);
  // It may have been replaced since it was found to be unusable.
  if (unusable != nullptr && stored.ok() && stored->info().sha256() == unusable->record().info().sha256()) {
    stored = absl::NotFoundError("it is not to be used");
  }
  if (stored.ok()) {
    Publish(*kernel, KernelProgress::kStored, absl::OkStatus(), false, *std::move(stored));
    return {kernel, true};
  }
  if (!absl::IsNotFound(stored.status())) {
    Publish(*kernel, KernelProgress::kFailed, stored.status(), true, {});
    return {kernel, true};
  }
  kernel->progress_->phase = KernelProgress::kCompiling;
  CompileTask task;
  task.source = render();
  task.arch = wanted.arch;
  task.flow = flow;
  Wanted with_entry = wanted;
  with_entry.entry = task.source.entry;
  std::unique_ptr<CompileTicket> ticket =
      compiler_.Compile(std::move(task), [this, with_entry, waiting = std::weak_ptr<Kernel>(kernel)](
                                             absl::StatusOr<internal::CompileReply> reply) {
        writer_.Schedule([this, with_entry, waiting, reply = std::move(reply)]() mutable {
          StoreAndPublish(waiting, with_entry, std::move(reply));
        });
      });
  MutexLock lock(kernel->mu_);
  kernel->ticket_ = std::move(ticket);
  return {kernel, true};
}

void KernelSupply::StoreAndPublish(const std::weak_ptr<Kernel>& waiting, const Wanted& wanted,
                                   absl::StatusOr<internal::CompileReply> reply) {
  internal::KernelRecord record;
  absl::Status status = reply.status();
  bool system_failure = absl::IsUnavailable(status);
  if (reply.ok()) {
    record.set_kernel_key(wanted.key);
    v1::KernelInfo& info = *record.mutable_info();
    info.set_sha256(Sha256Hex(reply->cubin()));
    info.set_config(wanted.config);
    info.set_entry(wanted.entry);
    info.set_arch(wanted.arch);
    info.set_cubin_bytes(static_cast<int64_t>(reply->cubin().size()));
    info.set_registers(reply->report().registers());
    info.set_static_smem_bytes(reply->report().static_smem_bytes());
    info.set_spill_store_bytes(reply->report().spill_store_bytes());
    info.set_spill_load_bytes(reply->report().spill_load_bytes());
    info.set_stack_bytes(reply->report().stack_bytes());
    info.set_toolchain(wanted.toolchain);
    info.set_abi_version(kLaunchAbiVersion);
    info.set_layout_id(wanted.layout_id);
    info.set_compile_ms(reply->compile_ms());
    info.set_created_unix_ms(clock_.WallUnixMs());
    info.set_producer(HostName());
    if (!reply->ptx().empty()) *info.mutable_access() = AccessOf(reply->ptx(), wanted.entry);
    record.set_cubin(std::move(*reply->mutable_cubin()));
    record.set_ptx(std::move(*reply->mutable_ptx()));
    if (info.spill_store_bytes() > 0 || info.spill_load_bytes() > 0) {
      spdlog::info("kernel {} {} spills {} bytes per thread: it is never picked", wanted.config, wanted.arch,
                   info.spill_store_bytes());
    }
    // Stored also when nobody waits any more (the work is done), and when it spills (to know that without
    // compiling it again).
    status = store_.PutKernel(record);
    system_failure = !status.ok();
    record.clear_ptx();
    if (!status.ok()) {
      spdlog::error("kernel {} {} was not stored: {}", wanted.config, wanted.arch, status.ToString());
    }
  } else {
    spdlog::warn("kernel {} {} was not compiled: {}", wanted.config, wanted.arch, status.ToString());
    if (absl::IsInvalidArgument(status)) {
      MutexLock lock(mu_);
      refused_.emplace(wanted.key, status);
    }
  }
  const std::shared_ptr<Kernel> kernel = waiting.lock();
  if (kernel == nullptr) return;
  if (reply.ok()) kernel->progress_->compile_ms = reply->compile_ms();
  Publish(*kernel, status.ok() ? KernelProgress::kCompiled : KernelProgress::kFailed, status, system_failure,
          std::move(record));
}

void KernelSupply::Publish(Kernel& kernel, KernelProgress::Phase phase, absl::Status status,
                           bool system_failure, internal::KernelRecord record) {
  kernel.status_ = std::move(status);
  kernel.system_failure_ = system_failure;
  record.clear_ptx();
  kernel.record_ = std::move(record);
  kernel.progress_->phase = phase;
  kernel.ready_.store(true, std::memory_order_release);
  on_change_();
}

void KernelSupply::Forget(const std::string& key) {
  MutexLock lock(mu_);
  const auto found = in_use_.find(key);
  // Somebody may have asked again since the last user let go; then the entry is theirs.
  if (found != in_use_.end() && found->second.expired()) in_use_.erase(found);
}

}  // namespace qgemm
