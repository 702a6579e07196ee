#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace qgemm {

const std::string& HostName() {
  static const std::string* const name = [] {
    std::array<char, 256> text{};
    const bool found = gethostname(text.data(), text.size() - 1) == 0 && text[0] != '\0';
    return new std::string(found ? text.data() : "unknown-host");
  }();
  return *name;
}

}  // namespace qgemm
