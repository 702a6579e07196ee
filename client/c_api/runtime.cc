#include "client/qgemm/runtime.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/c_api/answer.h"
#include "client/qgemm/c_api.h"

struct qgemm_runtime {  // NOLINT(readability-identifier-naming): the C interface's name
  std::unique_ptr<qgemm::Runtime> runtime;
};

namespace qgemm {
namespace {

absl::Status CheckLayer(const qgemm_runtime* runtime, int layer) {
  if (runtime == nullptr) return absl::InvalidArgumentError("the runtime is NULL");
  const int count = runtime->runtime->layer_count();
  if (layer >= 0 && layer < count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer, " is outside of 0 to ", count - 1));
}

qgemm_workspace ToC(const WorkspaceMemory& workspace) {
  return {workspace.address, workspace.bytes, workspace.ticket_bytes};
}

absl::Status Open(const char* bundle, const char* method, int device_ordinal, qgemm_runtime** out) {
  if (bundle == nullptr || method == nullptr || out == nullptr) {
    return absl::InvalidArgumentError("bundle, method or out is NULL");
  }
  *out = nullptr;
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::Load(bundle, method, device_ordinal);
  if (!runtime.ok()) return runtime.status();
  *out = new qgemm_runtime{*std::move(runtime)};
  return absl::OkStatus();
}

absl::Status Launch(qgemm_runtime* runtime, int layer, const qgemm_launch* launch) {
  if (absl::Status valid = CheckLayer(runtime, layer); !valid.ok()) return valid;
  if (launch == nullptr) return absl::InvalidArgumentError("the launch is NULL");
  LayerLaunch call;
  call.m = launch->m;
  call.x = launch->x;
  call.ldx = launch->ldx;
  call.y = launch->y;
  call.ldy = launch->ldy;
  call.residual = launch->residual;
  call.ldr = launch->ldr;
  call.weights = launch->weights;
  call.scales = launch->scales;
  call.zeros = launch->zeros;
  call.steps = launch->steps;
  call.bias = launch->bias;
  call.workspace = {launch->workspace.address, launch->workspace.bytes, launch->workspace.ticket_bytes};
  call.stream = launch->stream;
  call.programmatic = launch->programmatic != 0;
  return runtime->runtime->Launch(layer, call);
}

absl::Status Null() { return absl::InvalidArgumentError("the runtime or a pointer to write to is NULL"); }

}  // namespace
}  // namespace qgemm

int qgemm_c_api_version(void) { return QGEMM_C_API_VERSION; }

int qgemm_runtime_open(const char* bundle, const char* method, int device_ordinal, qgemm_runtime** out,
                       char* error, size_t error_size) {
  return qgemm::Answer(qgemm::Open(bundle, method, device_ordinal, out), error, error_size);
}

void qgemm_runtime_close(qgemm_runtime* runtime) { delete runtime; }

int qgemm_runtime_upload_weights(qgemm_runtime* runtime, char* error, size_t error_size) {
  return qgemm::Answer(runtime != nullptr ? runtime->runtime->UploadWeights() : qgemm::Null(), error,
                       error_size);
}

int qgemm_runtime_layer_count(const qgemm_runtime* runtime) {
  return runtime != nullptr ? runtime->runtime->layer_count() : 0;
}

int qgemm_runtime_find_layer(const qgemm_runtime* runtime, const char* name) {
  return runtime != nullptr && name != nullptr ? runtime->runtime->FindLayer(name) : -1;
}

int qgemm_runtime_layer_info(const qgemm_runtime* runtime, int layer, qgemm_layer_info* out, char* error,
                             size_t error_size) {
  absl::Status status = out != nullptr ? qgemm::CheckLayer(runtime, layer) : qgemm::Null();
  if (status.ok()) {
    const qgemm::LayerInfo& info = runtime->runtime->layer(layer);
    *out = {info.name.c_str(), info.problem.c_str(),    info.n, info.k, info.y_columns,
            info.static_m,     info.has_weights ? 1 : 0};
  }
  return qgemm::Answer(status, error, error_size);
}

int qgemm_runtime_select(const qgemm_runtime* runtime, int layer, int64_t m, int* m_bucket, char* error,
                         size_t error_size) {
  absl::Status status = m_bucket != nullptr ? qgemm::CheckLayer(runtime, layer) : qgemm::Null();
  if (status.ok()) {
    const auto selected = runtime->runtime->Select(layer, m);
    if (selected.ok()) *m_bucket = selected->m_bucket;
    status = selected.status();
  }
  return qgemm::Answer(status, error, error_size);
}

int qgemm_runtime_workspace_size(const qgemm_runtime* runtime, int64_t max_m, qgemm_workspace* out,
                                 char* error, size_t error_size) {
  if (runtime == nullptr || out == nullptr) return qgemm::Answer(qgemm::Null(), error, error_size);
  *out = qgemm::ToC(runtime->runtime->WorkspaceFor(max_m));
  return QGEMM_OK;
}

int qgemm_runtime_allocate_workspace(qgemm_runtime* runtime, int64_t max_m, qgemm_workspace* out, char* error,
                                     size_t error_size) {
  if (runtime == nullptr || out == nullptr) return qgemm::Answer(qgemm::Null(), error, error_size);
  const auto workspace = runtime->runtime->AllocateWorkspace(max_m);
  if (workspace.ok()) *out = qgemm::ToC(*workspace);
  return qgemm::Answer(workspace.status(), error, error_size);
}

int qgemm_runtime_allocate_graph_workspace(qgemm_runtime* runtime, int64_t max_m, void* stream,
                                           qgemm_workspace* out, char* error, size_t error_size) {
  if (runtime == nullptr || out == nullptr) return qgemm::Answer(qgemm::Null(), error, error_size);
  const auto workspace = runtime->runtime->AllocateWorkspaceForGraph(max_m, stream);
  if (workspace.ok()) *out = qgemm::ToC(*workspace);
  return qgemm::Answer(workspace.status(), error, error_size);
}

void qgemm_runtime_free_workspace(qgemm_runtime* runtime, const qgemm_workspace* workspace) {
  if (runtime == nullptr || workspace == nullptr) return;
  runtime->runtime->FreeWorkspace({workspace->address, workspace->bytes, workspace->ticket_bytes});
}

int qgemm_runtime_launch(qgemm_runtime* runtime, int layer, const qgemm_launch* launch, char* error,
                         size_t error_size) {
  return qgemm::Answer(qgemm::Launch(runtime, layer, launch), error, error_size);
}

int qgemm_runtime_allocate(qgemm_runtime* runtime, int64_t bytes, uint64_t* out, char* error,
                           size_t error_size) {
  if (runtime == nullptr || out == nullptr) return qgemm::Answer(qgemm::Null(), error, error_size);
  const auto address = runtime->runtime->AllocateMemory(bytes);
  if (address.ok()) *out = *address;
  return qgemm::Answer(address.status(), error, error_size);
}

int qgemm_runtime_copy_in(qgemm_runtime* runtime, uint64_t address, const void* bytes, int64_t count,
                          char* error, size_t error_size) {
  return qgemm::Answer(runtime != nullptr ? runtime->runtime->CopyIn(address, bytes, count) : qgemm::Null(),
                       error, error_size);
}

int qgemm_runtime_copy_out(qgemm_runtime* runtime, void* bytes, uint64_t address, int64_t count, char* error,
                           size_t error_size) {
  return qgemm::Answer(runtime != nullptr ? runtime->runtime->CopyOut(bytes, address, count) : qgemm::Null(),
                       error, error_size);
}
