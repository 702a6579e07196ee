#ifndef QGEMM_BASE_UNIQUE_FD_H_
#define QGEMM_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace qgemm {

// Owns a file descriptor and closes it. -1 = none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    // EINTR is no reason to try again: on Linux the descriptor is gone either way.
    if (old >= 0) close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace qgemm

#endif  // QGEMM_BASE_UNIQUE_FD_H_
