// Compares search efforts over recorded timings, without a GPU. Reads sweeps
// (tests/replay/recorded_timings.h) of int4, group 128, bf16 on an H200; each session is a fresh daemon that
// tunes every cell in turn:
//   strategy_replay [--efforts balanced,exhaustive] [--sessions 20] [--placement-us 0.2]
//       [--placements 32] [--company-us 0.25] [--no-rewarm] [--least 60] FILE...
// Only candidates that were recorded can win; cells with fewer than --least of them are left out. Prints per
// cell and effort: mean and worst regret (recorded time of the pick over the smallest one), how often two
// sessions that follow each other pick the same candidate or one whose recorded time is within 1 %, and
// seconds on the virtual GPU.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/replay/recorded_timings.h"
#include "tests/replay/replay_session.h"

namespace qgemm {
namespace {

struct Options {
  std::vector<v1::Effort> efforts = {v1::EFFORT_BALANCED};
  int sessions = 20;
  NoiseModel noise;
  bool rewarm = true;
  int least = 60;
  std::vector<std::string> files;
};

struct Tally {
  int count = 0;
  double regret_sum = 0;
  double worst = 1;
  int over = 0;  // regret above 1 %
  int pairs = 0;
  int agree = 0;
  int same = 0;
  double gpu_s = 0;
  std::map<Missed, int> missed;

  void Add(const ReplayOutcome& outcome, const ReplayOutcome* before) {
    ++count;
    regret_sum += outcome.regret;
    worst = std::max(worst, outcome.regret);
    over += outcome.regret > 1.01 ? 1 : 0;
    gpu_s += outcome.gpu_s;
    ++missed[outcome.missed];
    if (before == nullptr) return;
    ++pairs;
    same += outcome.candidate == before->candidate ? 1 : 0;
    const double ratio = outcome.true_us / before->true_us;
    agree += ratio < 1.01 && ratio > 1 / 1.01 ? 1 : 0;
  }
  void Print(const std::string& name) {
    std::printf(
        "%-24s regret mean %.4f worst %.4f above 1 %% %3d of %3d (not planned %d, screening %d, race %d); "
        "same %3d, within 1 %% %3d of %3d; %.3f s\n",
        name.c_str(), regret_sum / count, worst, over, count, missed[Missed::kNotPlanned],
        missed[Missed::kScreening], missed[Missed::kRace], same, agree, pairs, gpu_s / count);
  }
};

const char* EffortName(v1::Effort effort) {
  return effort == v1::EFFORT_EXHAUSTIVE ? "exhaustive"
         : effort == v1::EFFORT_BALANCED ? "balanced"
                                         : "quick";
}

int Report(const RecordedTimings& timings, const Options& options) {
  for (const v1::Effort effort : options.efforts) {
    std::map<Cell, Tally> tallies;
    Tally all;
    std::map<Cell, ReplayOutcome> last;
    for (int session = 0; session < options.sessions; ++session) {
      ReplaySession daemon(timings, options.noise, 1000 + session, options.rewarm);
      for (const auto& [cell, candidates] : timings) {
        const absl::StatusOr<ReplayOutcome> outcome = daemon.Tune(cell, effort);
        if (!outcome.ok()) {
          std::fprintf(stderr, "%s\n", outcome.status().ToString().c_str());
          return 1;
        }
        const auto before = last.find(cell);
        for (Tally* tally : {&tallies[cell], &all}) {
          tally->Add(*outcome, before != last.end() ? &before->second : nullptr);
        }
        last[cell] = *outcome;
      }
    }
    std::printf("%s\n", EffortName(effort));
    for (auto& [cell, tally] : tallies) {
      tally.Print(std::to_string(cell.n) + "x" + std::to_string(cell.k) + " M " + std::to_string(cell.m));
    }
    all.Print("all");
  }
  return 0;
}

int Usage() {
  std::fprintf(stderr,
               "usage: strategy_replay [--efforts balanced,exhaustive] [--sessions N] [--placement-us US] "
               "[--placements N] [--company-us US] [--no-rewarm] [--least N] FILE...\n");
  return 2;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool last = i + 1 == argc;
    if (argument == "--sessions" && !last) {
      if (!absl::SimpleAtoi(argv[++i], &options.sessions)) return Usage();
    } else if (argument == "--least" && !last) {
      if (!absl::SimpleAtoi(argv[++i], &options.least)) return Usage();
    } else if (argument == "--placement-us" && !last) {
      if (!absl::SimpleAtod(argv[++i], &options.noise.placement_us)) return Usage();
    } else if (argument == "--no-rewarm") {
      options.rewarm = false;
    } else if (argument == "--company-us" && !last) {
      if (!absl::SimpleAtod(argv[++i], &options.noise.company_us)) return Usage();
    } else if (argument == "--placements" && !last) {
      if (!absl::SimpleAtoi(argv[++i], &options.noise.placements)) return Usage();
    } else if (argument == "--efforts" && !last) {
      options.efforts.clear();
      for (const absl::string_view word : absl::StrSplit(argv[++i], ',')) {
        if (word != "balanced" && word != "exhaustive") return Usage();
        options.efforts.push_back(word == "balanced" ? v1::EFFORT_BALANCED : v1::EFFORT_EXHAUSTIVE);
      }
    } else {
      options.files.push_back(argument);
    }
  }
  RecordedTimings timings;
  for (const std::string& name : options.files) {
    std::ifstream file(name);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", name.c_str());
      return 1;
    }
    MergeRecordedTimings(ReadRecordedTimings(file), &timings);
  }
  std::erase_if(timings,
                [&](const auto& cell) { return static_cast<int>(cell.second.size()) < options.least; });
  if (timings.empty()) return Usage();
  return Report(timings, options);
}

}  // namespace
}  // namespace qgemm

int main(int argc, char** argv) { return qgemm::Main(argc, argv); }
