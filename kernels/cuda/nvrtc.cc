#include "kernels/cuda/nvrtc.h"

#include <dlfcn.h>
#include <glob.h>
#include <malloc.h>
#include <nvrtc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "kernels/cuda/dynamic_library.h"

namespace qgemm {

struct Nvrtc::Api {
  decltype(::nvrtcVersion)* Version;
  decltype(::nvrtcGetErrorString)* GetErrorString;
  decltype(::nvrtcGetNumSupportedArchs)* GetNumSupportedArchs;
  decltype(::nvrtcGetSupportedArchs)* GetSupportedArchs;
  decltype(::nvrtcCreateProgram)* CreateProgram;
  decltype(::nvrtcDestroyProgram)* DestroyProgram;
  decltype(::nvrtcCompileProgram)* CompileProgram;
  decltype(::nvrtcGetProgramLogSize)* GetProgramLogSize;
  decltype(::nvrtcGetProgramLog)* GetProgramLog;
  decltype(::nvrtcGetCUBINSize)* GetCUBINSize;
  decltype(::nvrtcGetCUBIN)* GetCUBIN;
  decltype(::nvrtcGetPTXSize)* GetPTXSize;
  decltype(::nvrtcGetPTX)* GetPTX;
};

namespace {

constexpr const char* kFileNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::vector<std::string> Glob(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

std::vector<std::string> LibraryCandidates() {
  std::vector<std::string> candidates;
  const auto add_folder = [&candidates](const std::string& folder) {
    for (const char* name : kFileNames) candidates.push_back(folder + name);
  };
  if (const std::string chosen = Environment("QGEMM_NVRTC_PATH"); !chosen.empty()) {
    if (absl::StrContains(chosen, ".so")) return {chosen};
    add_folder(chosen + "/");
    return candidates;
  }
  add_folder("");  // the loader's path
  if (const std::string home = Environment("CUDA_HOME"); !home.empty()) {
    add_folder(home + "/lib64/");
    add_folder(home + "/lib/");
  }
  char program[4096];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length > 0 && length < static_cast<ssize_t>(sizeof(program))) {
    std::string folder(program, length);
    folder.erase(folder.rfind('/'));
    add_folder(folder + "/../lib/");
  }
  add_folder("/usr/local/cuda/lib64/");
  // NVIDIA's pip packages: of CUDA 13, then of CUDA 12.
  std::vector<std::string> python_folders;
  if (const std::string venv = Environment("VIRTUAL_ENV"); !venv.empty()) {
    python_folders.push_back(venv + "/lib/python3*/site-packages");
  }
  if (const std::string home = Environment("HOME"); !home.empty()) {
    python_folders.push_back(home + "/.local/lib/python3*/site-packages");
  }
  python_folders.push_back("/usr/local/lib/python3*/*-packages");
  for (const std::string& python_folder : python_folders) {
    for (const char* package : {"/nvidia/cu13/lib/", "/nvidia/cuda_nvrtc/lib/"}) {
      for (const std::string& folder : Glob(python_folder + package)) add_folder(folder);
    }
  }
  return candidates;
}

// NVRTC opens its built-ins by bare name when it compiles. In a folder that the loader does not search
// (pip's) they are found only if they are loaded already.
void LoadBuiltins(const void* nvrtc_function) {
  Dl_info info;
  if (dladdr(nvrtc_function, &info) == 0 || info.dli_fname == nullptr) return;
  const std::string library = info.dli_fname;
  const std::string folder = library.substr(0, library.rfind('/') + 1);
  for (const std::string& path : Glob(folder + "libnvrtc-builtins.so.*")) {
    dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

// The first integer in `line` that follows `before` or, with an empty `before`, precedes `after`.
bool NumberBefore(absl::string_view line, absl::string_view after, int* value) {
  const size_t end = line.find(after);
  if (end == absl::string_view::npos) return false;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return absl::SimpleAtoi(line.substr(begin, end - begin), value);
}

std::string FirstErrorLine(absl::string_view log) {
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(line, "error")) return std::string(line);
  }
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    if (!line.empty()) return std::string(line);
  }
  return "the compiler gave no message";
}

}  // namespace

bool SerialisesWgmma(absl::string_view log) { return absl::StrContains(log, "C751"); }

absl::StatusOr<KernelResources> ParseResources(absl::string_view log, absl::string_view entry) {
  const std::string compiling = absl::StrCat("Compiling entry function '", entry, "'");
  bool inside = false;
  bool found = false;
  KernelResources resources;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(line, "Compiling entry function")) {
      inside = absl::StrContains(line, compiling);
      continue;
    }
    if (!inside) continue;
    NumberBefore(line, " bytes stack frame", &resources.stack_bytes);
    NumberBefore(line, " bytes spill stores", &resources.spill_store_bytes);
    NumberBefore(line, " bytes spill loads", &resources.spill_load_bytes);
    NumberBefore(line, " bytes smem", &resources.static_smem_bytes);
    if (NumberBefore(line, " registers", &resources.registers)) found = true;
  }
  if (!found) {
    return absl::NotFoundError(absl::StrCat("the compiler's log has no resource report for '", entry, "'"));
  }
  return resources;
}

// A compile takes and frees tens of MiB in pieces of all sizes. By default they go back to the system each
// time and are faulted in again, 2,300 pages a kernel: 4 ms of system time of some 150. The process gets no
// larger than it was at its peak.
void KeepCompilersMemory() {
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc takes
}

absl::StatusOr<const Nvrtc*> Nvrtc::Load() {
  static const auto* const loaded = new absl::StatusOr<const Nvrtc*>(LoadOnce());
  return *loaded;
}

absl::StatusOr<const Nvrtc*> Nvrtc::LoadOnce() {
  QGEMM_ASSIGN_OR_RETURN(const DynamicLibrary library, DynamicLibrary::Open("NVRTC", LibraryCandidates()));
  auto* const api = new Api;
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcVersion", &api->Version));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetErrorString", &api->GetErrorString));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetNumSupportedArchs", &api->GetNumSupportedArchs));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetSupportedArchs", &api->GetSupportedArchs));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcCreateProgram", &api->CreateProgram));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcDestroyProgram", &api->DestroyProgram));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcCompileProgram", &api->CompileProgram));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetProgramLogSize", &api->GetProgramLogSize));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetProgramLog", &api->GetProgramLog));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetCUBINSize", &api->GetCUBINSize));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetCUBIN", &api->GetCUBIN));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetPTXSize", &api->GetPTXSize));
  QGEMM_RETURN_IF_ERROR(library.Resolve("nvrtcGetPTX", &api->GetPTX));

  LoadBuiltins(reinterpret_cast<const void*>(api->Version));
  auto* const nvrtc = new Nvrtc(api);
  int major = 0, minor = 0, count = 0;
  if (api->Version(&major, &minor) != NVRTC_SUCCESS || api->GetNumSupportedArchs(&count) != NVRTC_SUCCESS) {
    return absl::InternalError("NVRTC does not tell its version");
  }
  nvrtc->toolchain_ = absl::StrCat("nvrtc ", major, ".", minor);
  nvrtc->has_disk_cache_ = major >= 13;
  std::vector<int> numbers(count);
  if (api->GetSupportedArchs(numbers.data()) != NVRTC_SUCCESS) {
    return absl::InternalError("NVRTC does not tell its architectures");
  }
  std::sort(numbers.begin(), numbers.end());
  for (int number : numbers) {
    nvrtc->archs_.push_back(absl::StrCat("sm_", number));
    // The list has base architectures only; those from Hopper on have a variant with arch-specific
    // instructions.
    if (number >= 90) nvrtc->archs_.push_back(absl::StrCat("sm_", number, "a"));
  }
  return nvrtc;
}

absl::StatusOr<NvrtcOutput> Nvrtc::Compile(const KernelSource& source, absl::string_view arch, bool want_ptx,
                                           std::string* log) const {
  if (std::find(archs_.begin(), archs_.end(), arch) == archs_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("arch '", arch, "' is not known to ", toolchain_));
  }
  const auto internal_error = [&](const char* call, nvrtcResult result) {
    return absl::InternalError(
        absl::StrCat(call, " failed for ", source.name, ": ", api_->GetErrorString(result)));
  };
  nvrtcProgram program = nullptr;
  nvrtcResult result = api_->CreateProgram(&program, source.text.c_str(), "kernel.cu", 0, nullptr, nullptr);
  if (result != NVRTC_SUCCESS) return internal_error("nvrtcCreateProgram", result);
  struct Guard {
    const Api* api;
    nvrtcProgram program;
    ~Guard() { api->DestroyProgram(&program); }
  } guard{api_, program};

  std::vector<std::string> options = source.options;
  options.push_back(absl::StrCat("--gpu-architecture=", arch));
  options.push_back("--ptxas-options=-v");
  // NVRTC's own cache in the user's home would answer without the resource report, and past every limit of
  // ours.
  if (has_disk_cache_) options.push_back("--no-cache");
  std::vector<const char*> option_pointers;
  option_pointers.reserve(options.size());
  for (const std::string& option : options) option_pointers.push_back(option.c_str());
  result = api_->CompileProgram(program, static_cast<int>(option_pointers.size()), option_pointers.data());

  NvrtcOutput output;
  size_t size = 0;
  if (api_->GetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 1) {
    output.log.resize(size);
    api_->GetProgramLog(program, output.log.data());
    output.log.resize(size - 1);  // the terminating zero
  }
  if (log != nullptr) *log = output.log;
  if (result == NVRTC_ERROR_COMPILATION || result == NVRTC_ERROR_INVALID_OPTION) {
    return absl::InvalidArgumentError(output.log.empty() ? std::string(api_->GetErrorString(result))
                                                         : FirstErrorLine(output.log));
  }
  if (result != NVRTC_SUCCESS) return internal_error("nvrtcCompileProgram", result);

  if ((result = api_->GetCUBINSize(program, &size)) != NVRTC_SUCCESS) {
    return internal_error("nvrtcGetCUBINSize", result);
  }
  output.cubin.resize(size);
  if ((result = api_->GetCUBIN(program, output.cubin.data())) != NVRTC_SUCCESS) {
    return internal_error("nvrtcGetCUBIN", result);
  }
  if (want_ptx) {
    if ((result = api_->GetPTXSize(program, &size)) != NVRTC_SUCCESS) {
      return internal_error("nvrtcGetPTXSize", result);
    }
    output.ptx.resize(size);
    if ((result = api_->GetPTX(program, output.ptx.data())) != NVRTC_SUCCESS) {
      return internal_error("nvrtcGetPTX", result);
    }
    if (!output.ptx.empty() && output.ptx.back() == '\0') output.ptx.pop_back();
  }
  // A source with several entries (the support kernels) has no single report.
  if (!source.entry.empty()) {
    QGEMM_ASSIGN_OR_RETURN(output.resources, ParseResources(output.log, source.entry));
  }
  return output;
}

}  // namespace qgemm
