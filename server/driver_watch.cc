#include "server/driver_watch.h"

#include <fstream>
#include <utility>

namespace qgemm {

DriverWatch::DriverWatch(std::string reported, std::string file)
    : file_(std::move(file)), known_(std::move(reported)) {
  useful_ = !known_.empty() && Read() == known_;
}

std::string DriverWatch::Read() const {
  std::ifstream file(file_);
  std::string version;
  std::getline(file, version);
  return version;
}

std::optional<std::string> DriverWatch::Changed() {
  if (!useful_) return std::nullopt;
  std::string now = Read();
  if (now.empty() || now == known_) return std::nullopt;
  known_ = std::move(now);
  return known_;
}

}  // namespace qgemm
