#include "kernels/access_memo.h"

#include <cstring>
#include <optional>
#include <utility>

namespace qgemm {
namespace {

// Unambiguous: a fixed number of bytes per argument behind the kernel's name, whose length comes last. None
// for a call that has no key.
std::optional<std::string> KeyOf(absl::string_view kernel, absl::Span<const CallArgument> arguments) {
  constexpr size_t kArgumentBytes = 1 + sizeof(int32_t) + sizeof(uint64_t);
  std::string key(kernel.size() + arguments.size() * kArgumentBytes + sizeof(uint64_t), '\0');
  char* at = key.data();
  const auto append = [&at](const void* bytes, size_t size) {
    std::memcpy(at, bytes, size);
    at += size;
  };
  append(kernel.data(), kernel.size());
  for (const CallArgument& argument : arguments) {
    if (argument.kind == CallArgument::Kind::kOpaque) return std::nullopt;
    uint64_t value = argument.value;
    if (argument.kind == CallArgument::Kind::kPointer) value = value % 16 == 0;
    if (argument.kind == CallArgument::Kind::kSymbolic) value = 0;
    append(&argument.kind, 1);
    append(&argument.dtype, sizeof(argument.dtype));
    append(&value, sizeof(value));
  }
  const uint64_t length = kernel.size();
  append(&length, sizeof(length));
  return key;
}

}  // namespace

std::shared_ptr<const AccessReport> AccessMemo::Analyze(absl::FunctionRef<AccessReport()> analyze) {
  auto report = std::make_shared<const AccessReport>(analyze());
  MutexLock lock(mu_);
  ++counts_.analyses;
  if (report->failed()) ++counts_.failures;
  return report;
}

std::shared_ptr<const AccessReport> AccessMemo::Get(absl::string_view kernel,
                                                    absl::Span<const CallArgument> arguments,
                                                    absl::FunctionRef<AccessReport()> analyze) {
  const std::optional<std::string> key = KeyOf(kernel, arguments);
  if (!key.has_value()) return Analyze(analyze);
  std::shared_ptr<Mutex> analysis;
  {
    MutexLock lock(mu_);
    const Signature& signature = signatures_[*key];
    if (signature.report != nullptr) {
      ++counts_.repeats;
      return signature.report;
    }
    analysis = signature.analysis;
  }
  MutexLock alone(*analysis);
  {
    MutexLock lock(mu_);
    if (const Signature& signature = signatures_[*key]; signature.report != nullptr) {  // made meanwhile
      ++counts_.repeats;
      return signature.report;
    }
  }
  std::shared_ptr<const AccessReport> report = Analyze(analyze);
  if (!report->failed()) {
    MutexLock lock(mu_);
    signatures_[*key].report = report;
  }
  return report;
}

AccessMemo::Counts AccessMemo::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace qgemm
