#ifndef QGEMM_KERNELS_FAMILY_FAMILY_H_
#define QGEMM_KERNELS_FAMILY_FAMILY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/device_profile.h"
#include "kernels/kernel_config.h"
#include "kernels/launch_spec.h"
#include "kernels/problem.h"

namespace qgemm {

// Everything the rest of kernels/ asks of a kernel family. A new family is one subclass here, one .cuh in
// device/ and one line in AllFamilies().
class KernelFamily {
 public:
  virtual ~KernelFamily() = default;

  virtual Family id() const = 0;
  // The kernel's extern "C" symbol, the same for all configs.
  virtual absl::string_view entry() const = 0;
  // Names of the embedded device sources (kernels/device), in the order they are compiled in.
  virtual absl::Span<const absl::string_view> device_sources() const = 0;
  // Source text that depends on the config beyond the constants of namespace config; goes before the last
  // device source.
  virtual std::string GeneratedSource(const KernelConfig& config, const KernelSignature& signature) const {
    return "";
  }

  // FailedPrecondition when the device cannot run the family at all.
  [[nodiscard]] virtual absl::Status SupportsDevice(const DeviceProfile& device) const = 0;
  // FailedPrecondition when a problem is none of the family's business.
  [[nodiscard]] virtual absl::Status SupportsProblem(const Problem& problem) const = 0;
  // All configs worth trying for a bucket, unsorted; independent of any shape.
  virtual std::vector<KernelConfig> Configs(const KernelSignature& signature, int m_bucket) const = 0;
  // Bytes of dynamic shared memory for slices of at most `slice_units` units (UnitK) and `rows` rows of X per
  // CTA.
  virtual int64_t DynamicSmemBytes(const KernelConfig& config, const KernelSignature& signature,
                                   int64_t slice_units, int rows) const = 0;
  // Weight bytes a CTA keeps in flight: what hides memory latency.
  virtual int BytesInFlight(const KernelConfig& config, const KernelSignature& signature) const = 0;
  // The kernel's parameters, in order; `units` units of K in `split_k` slices.
  virtual std::vector<KernelArgument> Arguments(const KernelConfig& config, const Problem& problem,
                                                int64_t units, int split_k) const = 0;
};

// In the order of enum Family.
absl::Span<const KernelFamily* const> AllFamilies();
const KernelFamily& FamilyOf(const KernelConfig& config);

// FailedPrecondition for a signature that the device code shared by the families does not serve.
[[nodiscard]] absl::Status SupportsSignature(const KernelSignature& signature);

// K in units: a slice of a split is a whole number of them. max(64, group) weights; channel-wise 64; with two
// levels 256.
int UnitK(const WeightFormat& format);

// Bytes that a stage of `blocks` blocks holds of one 16-row fragment, plane by plane. Channel-wise scales do
// not come with the stages.
struct StageBytes {
  int codes = 0;
  int scales = 0;
  int zeros = 0;
  int steps = 0;

  int all() const { return codes + scales + zeros + steps; }
};
StageBytes FragmentStage(const WeightFormat& format, int blocks);

// Stages of each warp that a CTA of family mma's staged path makes bytes of X for at a time (int8
// activations).
int ChunkStages(const KernelConfig& config);

// Whether a config's CTAs are large enough to fill an SM, so that those of a tile's slices may add its sums
// together, at most kMostShares of them (device/epilogue.cuh). Other kernels have no code for it: it would be
// cold, and cost kernels of 8 us that add their slices in a cluster a microsecond.
inline constexpr int kMostShares = 16;
bool MayShareTiles(const KernelConfig& config);

// Whether a kernel has code that adds slices of K (device/fragments.cuh). Not several passes, for which it
// would take the most registers; nor tiles of which a warp keeps more than 32 fragments: NVRTC took over half
// a second for some, and no split of theirs was within 13 % of a cell's best time.
bool MaySplit(const KernelConfig& config);

// Units of K in a tail of a config with tails, of `units` in all: split_k - 1 tails, and what each costs
// beside its products, take as long as the rest of one tile; or one, where K is too short for that.
int64_t TailUnits(const KernelConfig& config, const WeightFormat& format, int64_t units, int split_k);

// Slices whose partial sums a thread asks for before it adds the first (device/epilogue.cuh); CTAs of 512
// threads are alone on an SM, with registers to spare. And of how many fragments (device/fragments.cuh).
int SlicesAtOnce(const KernelConfig& config);
int FragmentsAtOnce(const KernelConfig& config);
// Whether a kernel has code for slices in a cluster, which push their sums to the CTA that adds them
// (device/epilogue.cuh): small tiles, whose sums take a trip between SMs rather than bandwidth. Sums of
// larger ones, read there, won nothing in 52,000 timings on an H200 beyond 6 % of what the workspace takes
// (5376x4096, M 96), mostly nothing at all.
bool PushesSlices(const KernelConfig& config);
// Bytes of shared memory that the epilogue needs.
int64_t EpilogueSmemBytes(const KernelConfig& config);

// The lines `constexpr ... = ...;` of namespace config that every device source reads.
std::string ConfigConstants(const KernelConfig& config, const KernelSignature& signature);

const KernelFamily& MmaFamily();
const KernelFamily& WgmmaFamily();

}  // namespace qgemm

#endif  // QGEMM_KERNELS_FAMILY_FAMILY_H_
