#include "kernels/search_space.h"

#include <algorithm>

#include "base/ceil_div.h"
#include "kernels/bucket.h"
#include "kernels/family/family.h"
#include "kernels/launch_spec.h"
#include "kernels/legality.h"

namespace qgemm {
namespace {

constexpr int kSplits[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 20, 24, 26, 32};

void SortUnique(std::vector<KernelConfig>& configs) {
  std::sort(configs.begin(), configs.end());
  configs.erase(std::unique(configs.begin(), configs.end()), configs.end());
}

// CTAs an SM holds, by threads and shared memory (registers are known only after compiling).
int Occupancy(const LaunchSpec& spec, const DeviceProfile& device) {
  const int by_threads = device.max_threads_per_sm / spec.block_threads;
  const int by_smem = device.max_smem_per_sm / (spec.dynamic_smem_bytes + 1024);
  return std::max(1, std::min(by_threads, by_smem));
}

// Whether a config's tiles are more than the SMs hold at once: what several passes are for.
bool MoreThanAWave(KernelConfig config, const Problem& problem, int m_bucket, const DeviceProfile& device) {
  config.passes = 1;
  const LaunchSpec spec = MakeLaunchSpec({config, 1, Reduction::kNone}, problem, m_bucket);
  const Dim3 grid = spec.Grid(m_bucket);
  return grid.x * grid.y > int64_t{device.sm_count} * Occupancy(spec, device);
}

// Splits of a config with tails: the fewest slices whose tails the SMs that its tiles leave idle can do. None
// where half the SMs are idle, which ordinary splits make use of, or where tails would take less than a sixth
// of K: adding them costs what they save.
std::vector<Candidate> TailSplits(const KernelConfig& config, const Problem& problem, int m_bucket,
                                  const DeviceProfile& device) {
  KernelConfig plain = config;
  plain.tails = false;
  const LaunchSpec spec = MakeLaunchSpec({plain, 1, Reduction::kNone}, problem, m_bucket);
  const Dim3 grid = spec.Grid(m_bucket);
  const int64_t per_sm = CeilDiv(grid.x * grid.y, device.sm_count);
  if (per_sm > Occupancy(spec, device) || (per_sm == 1 && grid.x * grid.y * 2 <= device.sm_count)) return {};
  const WeightFormat& format = problem.signature.format;
  const int64_t units = CeilDiv(problem.k, UnitK(format));
  int tails = 2;
  while (grid.x * (grid.y + CeilDiv(grid.y, tails)) > per_sm * device.sm_count && tails < grid.y) ++tails;
  const Candidate candidate{config, tails + 1, Reduction::kWorkspace};
  if (6 * TailUnits(config, format, units, candidate.split_k) < units) return {};
  if (!IsLegal(candidate, problem, m_bucket, device).ok()) return {};
  return {candidate};
}

}  // namespace

std::vector<KernelConfig> ConfigSpace(const KernelSignature& signature, int m_bucket,
                                      const DeviceProfile& device) {
  std::vector<KernelConfig> configs;
  for (const KernelFamily* family : AllFamilies()) {
    if (!family->SupportsDevice(device).ok()) continue;
    const std::vector<KernelConfig> more = family->Configs(signature, m_bucket);
    configs.insert(configs.end(), more.begin(), more.end());
  }
  SortUnique(configs);
  return configs;
}

std::vector<KernelConfig> WholeConfigSpace(const KernelSignature& signature, const DeviceProfile& device) {
  std::vector<KernelConfig> all;
  for (const int bucket : BucketLadder()) {
    const std::vector<KernelConfig> configs = ConfigSpace(signature, bucket, device);
    all.insert(all.end(), configs.begin(), configs.end());
  }
  SortUnique(all);
  return all;
}

std::vector<Candidate> LegalSplits(const KernelConfig& config, const Problem& problem, int m_bucket,
                                   const DeviceProfile& device) {
  if (config.tails) return TailSplits(config, problem, m_bucket, device);
  std::vector<Candidate> legal;
  for (const int split : kSplits) {
    for (const Reduction reduction : {Reduction::kNone, Reduction::kWorkspace, Reduction::kCluster}) {
      const Candidate candidate{config, split, reduction};
      if (IsLegal(candidate, problem, m_bucket, device).ok()) legal.push_back(candidate);
    }
  }
  // With fewer CTAs than half the SMs most of the GPU idles. A split helps only until the SMs have their
  // fill: of 43 measured cells no winner that split had more than 2.1 CTAs per SM in family mma, 4.2 in
  // family wgmma, whose small CTAs hide each other's copies. When no split gives enough CTAs, the largest
  // legal one stays.
  const double most_per_sm = config.family == Family::kWgmma ? 4.2 : 2.1;
  std::vector<Candidate> useful;
  for (const Candidate& candidate : legal) {
    const LaunchSpec spec = MakeLaunchSpec(candidate, problem, m_bucket);
    const Dim3 grid = spec.Grid(m_bucket);
    const double per_sm = static_cast<double>(grid.x * grid.y * grid.z) / device.sm_count;
    const double waves = per_sm / Occupancy(spec, device);
    if (per_sm < 0.5) continue;
    if (candidate.split_k > 1 && per_sm > most_per_sm) continue;
    if (candidate.reduction == Reduction::kCluster && waves > 1) continue;
    useful.push_back(candidate);
  }
  if (useful.empty() && !legal.empty()) useful.push_back(legal.back());
  std::sort(useful.begin(), useful.end());
  return useful;
}

std::vector<Candidate> LegalCandidates(const Problem& problem, int m_bucket, const DeviceProfile& device) {
  std::vector<Candidate> candidates;
  for (const KernelConfig& config : ConfigSpace(problem.signature, m_bucket, device)) {
    if (config.passes > 1 && !MoreThanAWave(config, problem, m_bucket, device)) continue;
    const std::vector<Candidate> useful = LegalSplits(config, problem, m_bucket, device);
    candidates.insert(candidates.end(), useful.begin(), useful.end());
  }
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

}  // namespace qgemm
