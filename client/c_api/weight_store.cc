#include "client/weight_store/weight_store.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/bundle/safetensors.h"
#include "client/c_api/answer.h"
#include "client/qgemm/weight_store_c_api.h"
#include "kernels/cuda/gpu_fingerprint.h"
#include "kernels/packing.h"

struct qgemm_weight_store {  // NOLINT(readability-identifier-naming): the C interface's name
  qgemm_weight_store(qgemm::SafetensorsWriter file, int ordinal, bool skip_repeats)
      : writer(std::move(file)), store(writer, skip_repeats), device_ordinal(ordinal) {}

  qgemm::SafetensorsWriter writer;
  qgemm::WeightStore store;
  const int device_ordinal;
  std::unique_ptr<qgemm::GpuFingerprint> gpu;  // made for the first entry on the device
  std::string bytes;                           // of the entry being written
};

namespace qgemm {
namespace {

absl::Status Null() {
  return absl::InvalidArgumentError("the store, the entry or a pointer of theirs is NULL");
}

absl::Status Open(const char* path, int device_ordinal, bool skip_repeats, qgemm_weight_store** out) {
  if (path == nullptr || out == nullptr) return Null();
  *out = nullptr;
  QGEMM_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path));
  *out = new qgemm_weight_store(std::move(writer), device_ordinal, skip_repeats);
  return absl::OkStatus();
}

absl::StatusOr<WeightStore::Outcome> Add(qgemm_weight_store& store, const qgemm_weight_entry& from) {
  using Kind = WeightEntry::Kind;
  constexpr Kind kKinds[] = {Kind::kWeight, Kind::kCpuTensor, Kind::kLibraryConstant, Kind::kState};
  WeightEntry entry;
  entry.key = from.key;
  if (from.kind < QGEMM_WEIGHT || from.kind > QGEMM_STATE) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", entry.key, ": kind ", from.kind, " is not allowed: use 0 to 3"));
  }
  entry.kind = kKinds[from.kind];
  entry.dtype = from.dtype;
  entry.shape.assign(from.shape, from.shape + from.rank);
  int64_t size = SafetensorsElementBytes(entry.dtype);
  for (const int64_t extent : entry.shape) size *= extent;
  if (size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("weight ", entry.key, " of dtype ", entry.dtype,
                                                   " is empty or its dtype is not one of safetensors"));
  }
  if (from.on_device == 0) {
    // A weight that is in the host's memory is a CPU tensor, whatever its kind says of the model.
    if (entry.kind == Kind::kWeight) entry.kind = Kind::kCpuTensor;
    entry.read = [&]() -> absl::StatusOr<absl::string_view> {
      return absl::string_view(reinterpret_cast<const char*>(from.address), size);
    };
    return store.store.Add(entry);
  }
  if (store.device_ordinal < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("weight ", entry.key, " is on a device, and the store was opened without one"));
  }
  if (store.gpu == nullptr) {
    QGEMM_ASSIGN_OR_RETURN(store.gpu, GpuFingerprint::Create(store.device_ordinal));
  }
  // Another alignment is read each time.
  if (from.address % 16 == 0) {
    entry.fingerprint = [&]() -> absl::StatusOr<std::string> {
      QGEMM_ASSIGN_OR_RETURN(const Fingerprint fingerprint, store.gpu->Of(from.address, size));
      return FingerprintText(fingerprint);
    };
  }
  entry.read = [&]() -> absl::StatusOr<absl::string_view> {
    store.bytes.resize(size);
    QGEMM_RETURN_IF_ERROR(store.gpu->Read(from.address, absl::MakeSpan(store.bytes.data(), size)));
    return absl::string_view(store.bytes);
  };
  return store.store.Add(entry);
}

}  // namespace
}  // namespace qgemm

int qgemm_weight_store_open(const char* path, int device_ordinal, int skip_repeats, qgemm_weight_store** out,
                            char* error, size_t error_size) {
  return qgemm::Answer(qgemm::Open(path, device_ordinal, skip_repeats != 0, out), error, error_size);
}

int qgemm_weight_store_add(qgemm_weight_store* store, const qgemm_weight_entry* entry, int* skipped,
                           char* error, size_t error_size) {
  if (store == nullptr || entry == nullptr || entry->key == nullptr || entry->dtype == nullptr ||
      entry->address == 0 || (entry->shape == nullptr && entry->rank > 0)) {
    return qgemm::Answer(qgemm::Null(), error, error_size);
  }
  const auto outcome = qgemm::Add(*store, *entry);
  if (outcome.ok() && skipped != nullptr) {
    *skipped = *outcome == qgemm::WeightStore::Outcome::kSkipped ? 1 : 0;
  }
  return qgemm::Answer(outcome.status(), error, error_size);
}

int qgemm_weight_store_get_counts(const qgemm_weight_store* store, qgemm_weight_counts* out) {
  if (store == nullptr || out == nullptr) return qgemm::Answer(qgemm::Null(), nullptr, 0);
  const qgemm::WeightStore::Counts& counts = store->store.counts();
  *out = {counts.written, counts.skipped, counts.fingerprints, counts.bytes_written, counts.bytes_skipped};
  return 0;
}

int qgemm_weight_store_finish(qgemm_weight_store* store, char* error, size_t error_size) {
  return qgemm::Answer(
      store != nullptr ? store->writer.Finish({{"layout_id", std::string(qgemm::kLayoutId)}}) : qgemm::Null(),
      error, error_size);
}

void qgemm_weight_store_close(qgemm_weight_store* store) { delete store; }
