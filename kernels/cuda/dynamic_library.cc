#include "kernels/cuda/dynamic_library.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace qgemm {

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::string& what,
                                                    const std::vector<std::string>& candidates) {
  std::string last_error = "no file name to try";
  for (const std::string& candidate : candidates) {
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) return DynamicLibrary(what, handle);
    const char* error = dlerror();
    last_error = error != nullptr ? error : "unknown error";
  }
  return absl::NotFoundError(
      absl::StrCat(what, " cannot be opened (tried ", absl::StrJoin(candidates, ", "), "): ", last_error));
}

absl::Status DynamicLibrary::FindSymbol(const char* symbol, void** address) const {
  *address = dlsym(handle_, symbol);
  if (*address != nullptr) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(what_, " is too old: it has no function ", symbol));
}

}  // namespace qgemm
