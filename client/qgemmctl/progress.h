#ifndef QGEMM_CLIENT_QGEMMCTL_PROGRESS_H_
#define QGEMM_CLIENT_QGEMMCTL_PROGRESS_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "qgemm/v1/tuner.pb.h"

namespace qgemm {

// "[#####.....] 12/44 kernels compiled, 3/60 candidates done, 1/8 results, 12 s", at most `width` columns
// wide.
std::string ProgressLine(const v1::TuneProgress& progress, int width);

// One line that is redrawn in place, at most ten times a second. Not thread-safe.
class ProgressBar {
 public:
  // `write` puts text on the terminal; an empty function: there is none, nothing is drawn.
  ProgressBar(std::function<void(absl::string_view)> write, int width, Clock& clock)
      : write_(std::move(write)), width_(width), clock_(clock) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Show(const v1::TuneProgress& progress);
  // Removes the line, so that other text can stand there.
  void Clear();

 private:
  const std::function<void(absl::string_view)> write_;
  const int width_;
  Clock& clock_;
  bool drawn_ = false;
  TimePoint next_draw_ = TimePoint::min();
};

// Standard error where it is a terminal that can redraw a line, else an empty function.
std::function<void(absl::string_view)> TerminalWriter();
int TerminalWidth();

}  // namespace qgemm

#endif  // QGEMM_CLIENT_QGEMMCTL_PROGRESS_H_
