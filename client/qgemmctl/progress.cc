#include "client/qgemmctl/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace qgemm {
namespace {

constexpr int kBarColumns = 20;
constexpr Duration kRedrawInterval = std::chrono::milliseconds(100);
constexpr absl::string_view kEraseLine = "\r\x1b[K";

// Compiling and timing overlap, so that each unit of work counts the same.
double FractionDone(const v1::TuneProgress& progress) {
  const double wanted = static_cast<double>(progress.kernels_wanted()) + progress.candidates_wanted() +
                        progress.results_wanted();
  const double done =
      static_cast<double>(progress.kernels_compiled()) + progress.candidates_done() + progress.results_done();
  return wanted > 0 ? std::clamp(done / wanted, 0.0, 1.0) : 0.0;
}

}  // namespace

std::string ProgressLine(const v1::TuneProgress& progress, int width) {
  const int filled = static_cast<int>(FractionDone(progress) * kBarColumns);
  std::string line =
      absl::StrCat("[", std::string(filled, '#'), std::string(kBarColumns - filled, '.'), "] ",
                   progress.kernels_compiled(), "/", progress.kernels_wanted(), " kernels compiled, ");
  if (progress.candidates_wanted() > 0) {
    absl::StrAppend(&line, progress.candidates_done(), "/", progress.candidates_wanted(),
                    " candidates timed, ");
  }
  absl::StrAppend(&line, progress.results_done(), "/", progress.results_wanted(), " results, ",
                  absl::StrFormat("%.0f s", progress.elapsed_s()));
  if (!progress.note().empty()) absl::StrAppend(&line, ", ", progress.note());
  if (width > 0 && line.size() > static_cast<size_t>(width)) line.resize(width);
  return line;
}

void ProgressBar::Show(const v1::TuneProgress& progress) {
  if (write_ == nullptr) return;
  const TimePoint now = clock_.Now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedrawInterval;
  write_(absl::StrCat(kEraseLine, ProgressLine(progress, width_)));
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  write_(kEraseLine);
  drawn_ = false;
}

std::function<void(absl::string_view)> TerminalWriter() {
  const char* terminal = std::getenv("TERM");
  if (isatty(STDERR_FILENO) == 0 || terminal == nullptr || absl::string_view(terminal) == "dumb") {
    return nullptr;
  }
  return [](absl::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); };
}

int TerminalWidth() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace qgemm
