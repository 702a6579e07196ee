#ifndef QGEMM_SERVER_DRIVER_WATCH_H_
#define QGEMM_SERVER_DRIVER_WATCH_H_

#include <optional>
#include <string>

namespace qgemm {

// Notices that another GPU driver was installed while nothing of this daemon used the GPU: the kernel's file
// for the loaded module's version says so, without a GPU process. Used by one thread.
class DriverWatch {
 public:
  static constexpr char kModuleVersionFile[] = "/sys/module/nvidia/version";

  // `reported`: the GPU process's word for the driver in use. Where the file does not say the same now, it is
  // of no use and is never looked at again.
  explicit DriverWatch(std::string reported, std::string file = kModuleVersionFile);

  // The version when it is another one than last time. Without the module (between two drivers) nullopt.
  std::optional<std::string> Changed();

 private:
  std::string Read() const;

  const std::string file_;
  std::string known_;
  bool useful_ = false;
};

}  // namespace qgemm

#endif  // QGEMM_SERVER_DRIVER_WATCH_H_
