#include "client/qgemmctl/progress.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

v1::TuneProgress Progress(int compiled, int candidates_wanted = 0) {
  v1::TuneProgress progress;
  progress.set_kernels_wanted(40);
  progress.set_kernels_compiled(compiled);
  progress.set_candidates_wanted(candidates_wanted);
  progress.set_candidates_done(candidates_wanted / 2);
  progress.set_results_wanted(8);
  progress.set_elapsed_s(12.4);
  return progress;
}

TEST(Progress, LineCountsWhatIsDone) {
  EXPECT_EQ(ProgressLine(Progress(24), 200),
            "[##########..........] 24/40 kernels compiled, 0/8 results, 12 s");
  EXPECT_EQ(ProgressLine(Progress(40, 40), 200),
            "[#############.......] 40/40 kernels compiled, 20/40 candidates timed, 0/8 results, 12 s");
}

TEST(Progress, LineFitsTheTerminal) { EXPECT_EQ(ProgressLine(Progress(24), 10), "[#########"); }

TEST(Progress, LineOfAnEmptyRequestIsEmptyToo) {
  EXPECT_EQ(ProgressLine(v1::TuneProgress(), 200),
            "[....................] 0/0 kernels compiled, 0/0 results, 0 s");
}

TEST(ProgressBar, RedrawsAtMostTenTimesASecond) {
  SimulatedClock clock;
  int writes = 0;
  ProgressBar bar([&](absl::string_view) { ++writes; }, 80, clock);
  for (int i = 0; i < 1000; ++i) {
    bar.Show(Progress(1));
    clock.Advance(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(writes, 10);
}

TEST(ProgressBar, ClearsOnlyWhatItDrew) {
  SimulatedClock clock;
  std::string screen;
  {
    ProgressBar bar([&](absl::string_view text) { screen.append(text.data(), text.size()); }, 80, clock);
    bar.Clear();
    EXPECT_EQ(screen, "");
    bar.Show(Progress(1));
    screen.clear();
  }
  EXPECT_EQ(screen, "\r\x1b[K");
}

TEST(ProgressBar, DrawsNothingWithoutATerminal) {
  SimulatedClock clock;
  ProgressBar bar(nullptr, 80, clock);
  bar.Show(Progress(1));
  bar.Clear();
}

}  // namespace
}  // namespace qgemm
