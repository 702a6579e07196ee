#ifndef QGEMM_KERNELS_CUDA_DYNAMIC_LIBRARY_H_
#define QGEMM_KERNELS_CUDA_DYNAMIC_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace qgemm {

// A shared library opened at run time. It stays loaded for the life of the process: CUDA's libraries start
// threads and register exit handlers, so unloading them is not safe.
class DynamicLibrary {
 public:
  // Opens the first of `candidates` (file names or paths) that the loader accepts. NotFound names all of them
  // and the loader's last error; `what` names the library in messages.
  [[nodiscard]] static absl::StatusOr<DynamicLibrary> Open(const std::string& what,
                                                           const std::vector<std::string>& candidates);

  // Sets `*function` to the symbol. NotFound when the library has none of that name.
  template <typename Function>
  [[nodiscard]] absl::Status Resolve(const char* symbol, Function** function) const {
    void* address = nullptr;
    absl::Status status = FindSymbol(symbol, &address);
    *function = reinterpret_cast<Function*>(address);
    return status;
  }

 private:
  DynamicLibrary(std::string what, void* handle) : what_(std::move(what)), handle_(handle) {}
  absl::Status FindSymbol(const char* symbol, void** address) const;

  std::string what_;
  void* handle_;
};

}  // namespace qgemm

#endif  // QGEMM_KERNELS_CUDA_DYNAMIC_LIBRARY_H_
