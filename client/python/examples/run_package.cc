// Runs a decoding step that export_llama.py made an AOTInductor package of, without Python: PyTorch's C++
// libraries, the operator qgemm::linear on top of libqgemm.so, and a bundle of kernels and packed weights. On
// a GPU the operator launches the bundle's kernels; a package for the CPU dequantizes and multiplies in fp32.
//
//   run_package LIBQGEMM BUNDLE PACKAGE STATE COUNT LOGITS
//
// The package is code alone. STATE (export_llama.py writes it) says where each of its constants lies: the
// packed weights in the bundle's weights.safetensors, the others in STATE itself; and the cache, the position
// and the token to go on from. Prints COUNT tokens, one a line, and leaves in LOGITS what each was chosen by,
// as fp32 [COUNT, vocabulary].
//
// Build: with PyTorch's headers, and -I for the folder that holds qgemm/c_api.h; see
// llama_export/without_python.py.

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <qgemm/c_api.h>
#include <qgemm/packing_c_api.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

[[noreturn]] void Fail(const std::string& sentence) {
  std::fprintf(stderr, "run_package: %s\n", sentence.c_str());
  std::exit(1);
}

// The functions of libqgemm.so that the operator takes.
struct Library {
  explicit Library(const char* path) : handle(dlopen(path, RTLD_NOW)) {
    if (handle == nullptr) Fail(dlerror());
    Resolve(version, "qgemm_c_api_version");
    if (version() != QGEMM_C_API_VERSION) Fail("libqgemm.so is of another version than this program");
    Resolve(open, "qgemm_runtime_open");
    Resolve(layer_count, "qgemm_runtime_layer_count");
    Resolve(layer_info, "qgemm_runtime_layer_info");
    Resolve(allocate_workspace, "qgemm_runtime_allocate_workspace");
    Resolve(launch, "qgemm_runtime_launch");
    Resolve(dequantize_packed, "qgemm_dequantize_packed");
  }

  template <typename Function>
  void Resolve(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) Fail(std::string("libqgemm.so has no ") + name);
  }

  void* handle;
  decltype(&qgemm_c_api_version) version;
  decltype(&qgemm_runtime_open) open;
  decltype(&qgemm_runtime_layer_count) layer_count;
  decltype(&qgemm_runtime_layer_info) layer_info;
  decltype(&qgemm_runtime_allocate_workspace) allocate_workspace;
  decltype(&qgemm_runtime_launch) launch;
  decltype(&qgemm_dequantize_packed) dequantize_packed;
};

// A layer of a bundle's method that stands for its problem: which layer's weights are launched says the
// caller.
struct Entry {
  qgemm_runtime* runtime = nullptr;
  int layer = 0;
};

// All problems of a bundle, each by the largest M that its method serves.
class Kernels {
 public:
  Kernels(const Library& library, const std::string& bundle) : library_(library) {
    for (const auto& file : std::filesystem::directory_iterator(bundle + "/methods")) {
      AddMethod(bundle, file.path().stem().string());
    }
  }

  void Launch(const std::string& problem, qgemm_launch launch) {
    const Entry entry = Find(problem, launch.m);
    launch.workspace = Workspace(entry.runtime, launch.m, launch.stream);
    Check(library_.launch(entry.runtime, entry.layer, &launch, error_, sizeof(error_)));
  }

 private:
  static constexpr int64_t kAnyM = INT64_MAX;
  static constexpr int64_t kLastBucket = 4096;  // serves every M above, too

  void Check(int code) {
    if (code != QGEMM_OK) Fail(error_);
  }

  void AddMethod(const std::string& bundle, const std::string& method) {
    qgemm_runtime* runtime = nullptr;
    Check(library_.open(bundle.c_str(), method.c_str(), 0, &runtime, error_, sizeof(error_)));
    for (int layer = 0; layer < library_.layer_count(runtime); ++layer) {
      qgemm_layer_info info;
      Check(library_.layer_info(runtime, layer, &info, error_, sizeof(error_)));
      const bool any = info.static_m == 0 || info.static_m == kLastBucket;
      entries_[info.problem].emplace(any ? kAnyM : info.static_m, Entry{runtime, layer});
    }
  }

  Entry Find(const std::string& problem, int64_t m) const {
    const auto by_m = entries_.find(problem);
    if (by_m == entries_.end()) Fail("the bundle has no kernel for " + problem);
    const auto entry = by_m->second.lower_bound(m);
    if (entry == by_m->second.end())
      Fail("the bundle has no kernel for M = " + std::to_string(m) + " of " + problem);
    return entry->second;
  }

  // One per runtime and stream, made at its first use and again when M grows.
  qgemm_workspace Workspace(qgemm_runtime* runtime, int64_t m, void* stream) {
    auto& [capacity, workspace] = workspaces_[{runtime, stream}];
    if (capacity < m) {
      Check(library_.allocate_workspace(runtime, m, &workspace, error_, sizeof(error_)));
      capacity = m;
    }
    return workspace;
  }

  const Library& library_;
  std::map<std::string, std::map<int64_t, Entry>> entries_;
  std::map<std::pair<qgemm_runtime*, void*>, std::pair<int64_t, qgemm_workspace>> workspaces_;
  char error_[512] = "";
};

// Set by main before anything runs; the kernels on a GPU alone.
const Library* library = nullptr;
Kernels* kernels = nullptr;

uint64_t Address(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? reinterpret_cast<uint64_t>(tensor->data_ptr()) : 0;
}

qgemm_plane PlaneOf(const std::optional<at::Tensor>& tensor) {
  if (!tensor.has_value()) return {nullptr, 0};
  return {tensor->data_ptr(), static_cast<int64_t>(tensor->nbytes())};
}

at::Tensor Activated(const at::Tensor& v, c10::string_view activation) {
  if (activation == "silu") return at::silu(v);
  if (activation == "gelu_tanh") return at::gelu(v, "tanh");
  if (activation == "relu") return at::relu(v);
  return v;
}

// What X is worth as bytes, by row and block of 32 along K, each by its largest magnitude.
at::Tensor AsInt8(const at::Tensor& x) {
  constexpr int64_t kBlock = 32;
  const int64_t k = x.size(-1);
  const at::Tensor padded = at::constant_pad_nd(x.to(at::kFloat), {0, (kBlock - k % kBlock) % kBlock});
  const at::Tensor blocks = padded.unflatten(-1, {-1, kBlock});
  const at::Tensor most = blocks.abs().amax(-1, /*keepdim=*/true);
  const at::Tensor inverse = at::where(most > 1e-30, at::full_like(most, 127) / most, at::zeros_like(most));
  const at::Tensor worth = most / 127 * at::round(blocks * inverse);
  return worth.flatten(-2).narrow(-1, 0, k);
}

at::Tensor LinearOnCpu(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& scales,
                       const std::optional<at::Tensor>& zeros, const std::optional<at::Tensor>& steps,
                       const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                       int64_t n, c10::string_view format, c10::string_view activation, bool gated,
                       c10::string_view act_quantization) {
  const int64_t k = x.size(-1);
  const at::Tensor w = at::empty({n, k}, at::dtype(at::kFloat));
  char error[512] = "";
  const int code =
      library->dequantize_packed(std::string(format).c_str(), n, k, PlaneOf(weights), PlaneOf(scales),
                                 PlaneOf(zeros), PlaneOf(steps), w.data_ptr<float>(), error, sizeof(error));
  if (code != QGEMM_OK) Fail(error);
  at::Tensor y = at::matmul(act_quantization == "int8" ? AsInt8(x) : x.to(at::kFloat), w.t());
  if (bias.has_value()) y = y + bias->to(at::kFloat);
  using at::indexing::Slice;
  y = gated ? Activated(y.index({"...", Slice(0, c10::nullopt, 2)}), activation) *
                  y.index({"...", Slice(1, c10::nullopt, 2)})
            : Activated(y, activation);
  if (residual.has_value()) y = y + residual->to(at::kFloat);
  return y.to(x.scalar_type());
}

at::Tensor LinearOnCuda(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& scales,
                        const std::optional<at::Tensor>& zeros, const std::optional<at::Tensor>& steps,
                        const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& residual,
                        int64_t n, c10::string_view format, c10::string_view activation, bool gated,
                        c10::string_view act_quantization) {
  const int64_t k = x.size(-1);
  const int64_t columns = gated ? n / 2 : n;
  const at::Tensor rows = x.reshape({-1, k}).contiguous();
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = columns;
  const at::Tensor y = at::empty(shape, x.options());

  const std::string type = x.scalar_type() == at::kBFloat16 ? "bf16" : "fp16";
  std::string problem = std::to_string(n) + "x" + std::to_string(k) + " " + std::string(format) + " act " +
                        type + (act_quantization == "int8" ? " as int8" : "") + " out " + type;
  if (bias.has_value()) problem += " bias";
  if (activation != "none") problem += " " + std::string(activation);
  if (gated) problem += " gated";
  if (residual.has_value()) problem += " residual";

  qgemm_launch launch = {};
  launch.m = rows.size(0);
  launch.x = Address(rows);
  launch.ldx = k;
  launch.y = Address(y);
  launch.ldy = columns;
  launch.residual = Address(residual);
  launch.ldr = residual.has_value() ? columns : 0;
  launch.weights = Address(weights);
  launch.scales = Address(scales);
  launch.zeros = Address(zeros);
  launch.steps = Address(steps);
  launch.bias = Address(bias);
  launch.stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(x.device()).native_handle();
  kernels->Launch(problem, launch);
  return y;
}

// STATE: 64-bit numbers, names and bytes, one after the other.
class State {
 public:
  State(const char* path, const std::string& weights_path)
      : path_(path), file_(path, std::ios::binary), weights_(weights_path, std::ios::binary) {
    if (!file_) Fail("cannot read " + path_);
  }

  int64_t Number() {
    int64_t value = 0;
    Read(file_, &value, sizeof(value), path_);
    return value;
  }
  std::vector<int64_t> Dimensions() {
    std::vector<int64_t> dimensions(Number());
    for (int64_t& dimension : dimensions) dimension = Number();
    return dimensions;
  }
  std::string Name() {
    std::string name(Number(), ' ');
    Read(file_, name.data(), name.size(), path_);
    return name;
  }
  // Data begin at the place that has been read up to.
  void EndOfHeader() { data_ = file_.tellg(); }

  // A tensor of a file, on the device. `source`: 1 the bundle's weights, 0 this file's data.
  at::Tensor Tensor(const std::vector<int64_t>& dimensions, int64_t scalar_type, int64_t source,
                    int64_t offset, const at::Device& device) {
    at::Tensor tensor = at::empty(dimensions, at::dtype(static_cast<at::ScalarType>(scalar_type)));
    std::ifstream& file = source == 1 ? weights_ : file_;
    file.seekg(source == 1 ? offset : data_ + offset);
    Read(file, tensor.data_ptr(), tensor.nbytes(), source == 1 ? "the bundle's weights" : path_);
    return tensor.to(device);
  }

 private:
  static void Read(std::ifstream& file, void* to, size_t bytes, const std::string& name) {
    file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (!file) Fail(name + " ends too early");
  }

  const std::string path_;
  std::ifstream file_;
  std::ifstream weights_;
  int64_t data_ = 0;
};

// Where a constant of the package lies.
struct Constant {
  std::string name;
  int64_t scalar_type = 0;
  int64_t source = 0;
  int64_t offset = 0;
  std::vector<int64_t> dimensions;
};

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(qgemm, library) {
  library.def(
      "linear(Tensor x, Tensor weights, Tensor scales, Tensor? zeros, Tensor? steps, Tensor? bias, Tensor? "
      "residual, "
      "int n, str format, str activation=\"none\", bool gated=False, str act_quantization=\"none\") -> "
      "Tensor");
}
TORCH_LIBRARY_IMPL(qgemm, CPU, library) { library.impl("linear", LinearOnCpu); }
TORCH_LIBRARY_IMPL(qgemm, CUDA, library) { library.impl("linear", LinearOnCuda); }

int main(int argc, char** argv) {
  if (argc != 7) Fail("usage: run_package LIBQGEMM BUNDLE PACKAGE STATE COUNT LOGITS");
  const Library loaded(argv[1]);
  library = &loaded;
  std::fprintf(stderr, "loading %s\n", argv[3]);  // a crash says where it was
  torch::inductor::AOTIModelPackageLoader package(argv[3]);
  const bool on_gpu = package.get_metadata()["AOTI_DEVICE_KEY"] == "cuda";
  const at::Device device = on_gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  std::optional<Kernels> bundle_kernels;
  if (on_gpu) {
    at::empty({1}, at::device(device));  // makes the CUDA context that the kernels are loaded into
    kernels = &bundle_kernels.emplace(loaded, argv[2]);
  }

  State state(argv[4], std::string(argv[2]) + "/weights.safetensors");
  at::Tensor position = at::full({1}, state.Number(), at::device(device).dtype(at::kLong));
  at::Tensor token = at::full({1, 1}, state.Number(), at::device(device).dtype(at::kLong));
  const std::vector<int64_t> cache_dimensions = state.Dimensions();
  std::vector<Constant> constants(state.Number());
  for (Constant& constant : constants) {
    constant.name = state.Name();
    constant.scalar_type = state.Number();
    constant.source = state.Number();
    constant.offset = state.Number();
    constant.dimensions = state.Dimensions();
  }
  state.EndOfHeader();
  const at::Tensor cache =
      state.Tensor(cache_dimensions, static_cast<int64_t>(at::kBFloat16), /*source=*/0, /*offset=*/0, device);

  std::unordered_map<std::string, at::Tensor> tensors;
  const std::vector<std::string> needed = package.get_constant_fqns();
  for (const Constant& constant : constants) {
    if (std::find(needed.begin(), needed.end(), constant.name) == needed.end()) continue;
    const int64_t offset =
        constant.offset + (constant.source == 0 ? static_cast<int64_t>(cache.nbytes()) : 0);
    tensors[constant.name] =
        state.Tensor(constant.dimensions, constant.scalar_type, constant.source, offset, device);
  }
  std::fprintf(stderr, "%zu of the package's %zu constants\n", tensors.size(), needed.size());
  package.load_constants(tensors, /*use_inactive=*/false, /*check_full_update=*/true, /*user_managed=*/true);

  std::fprintf(stderr, "weights given\n");

  const int count = std::atoi(argv[5]);
  std::vector<at::Tensor> all_logits;
  double started = Seconds();
  for (int i = 0; i < count; ++i) {
    const at::Tensor logits = package.run({token, position, cache})[0];
    all_logits.push_back(logits.clone());
    token = logits.argmax(-1, /*keepdim=*/true);
    position = position + 1;
    std::printf("%lld\n", static_cast<long long>(token.item<int64_t>()));
    if (i == 0) started = Seconds();  // the first run loads kernels
  }
  if (count > 1) std::fprintf(stderr, "%.1f tokens/s\n", (count - 1) / (Seconds() - started));
  std::ofstream file(argv[6], std::ios::binary);
  if (count > 0) {
    const at::Tensor kept = at::cat(all_logits).to(at::Device(at::kCPU), at::kFloat).contiguous();
    file.write(static_cast<const char*>(kept.data_ptr()), static_cast<std::streamsize>(kept.nbytes()));
  }
  file.close();
  if (!file) Fail(std::string("cannot write ") + argv[6]);
  return 0;
}
