#ifndef QGEMM_TESTS_UNIT_CLIENT_SAMPLE_BUNDLE_H_
#define QGEMM_TESTS_UNIT_CLIENT_SAMPLE_BUNDLE_H_

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/digest.h"
#include "client/bundle/bundle.h"
#include "client/bundle/bundle_writer.h"
#include "kernels/bucket.h"

namespace qgemm {

// A folder of its own, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "qgemm-bundle.XXXXXX").string();
    QGEMM_CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string operator/(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

 private:
  std::string path_;
};

inline Problem SampleProblem() { return {128, 256, {}}; }

// A pick of a real candidate; its kernel's bytes are SampleCubin(config).
inline std::string SampleCubin(const std::string& config) { return "cubin of " + config; }
inline BundlePick SamplePick(int m_bucket, const std::string& config, int split_k, const Problem& problem) {
  const auto parsed = ParseConfig(config);
  QGEMM_CHECK_OK(parsed.status());
  BundlePick pick;
  pick.m_bucket = m_bucket;
  pick.kernel_sha256 = Sha256Hex(SampleCubin(config));
  pick.config = config;
  const Reduction reduction = split_k > 1 ? Reduction::kWorkspace : Reduction::kNone;
  pick.reduction = std::string(ReductionName(reduction));
  pick.target = "h200";
  pick.source = "MEASURED";
  pick.confidence = "high";
  pick.predicted_us = 7.25;
  pick.time_us = 6.543;
  pick.spread_us = 0.021;
  pick.launch = MakeLaunchSpec({*parsed, split_k, reduction}, problem, m_bucket);
  return pick;
}

inline constexpr char kMmaConfig[] = "mma_t1_r1_w1x8_s3_b2_slice_post";
inline constexpr char kWgmmaConfig[] = "wgmma_t8_r1_w1x1_s4_b2_staged_pre";

// Layer "q" with one pick (static M) or one per bucket: the first four are kMmaConfig, split in two, the
// others kWgmmaConfig.
inline BundleMethod SampleMethod(const std::string& name, int64_t static_m, const std::string& weight_key) {
  BundleMethod method;
  method.name = name;
  method.static_m = static_m;
  BundleLayer layer{"q", SampleProblem(), weight_key, {}};
  for (const int bucket : BucketLadder()) {
    if (static_m > 0 && bucket != BucketFor(static_m)) continue;
    layer.picks.push_back(bucket <= 8 ? SamplePick(bucket, kMmaConfig, 2, layer.problem)
                                      : SamplePick(bucket, kWgmmaConfig, 1, layer.problem));
  }
  method.layers.push_back(std::move(layer));
  return method;
}

// Methods "decode" (M = 1) and "prefill" (dynamic) over one set of weights.
inline void WriteSampleBundle(const std::string& path) {
  auto writer = BundleWriter::Create(path);
  QGEMM_CHECK_OK(writer.status());
  for (const char* config : {kMmaConfig, kWgmmaConfig}) {
    BundleKernel kernel;
    kernel.sha256 = Sha256Hex(SampleCubin(config));
    kernel.entry = config[0] == 'm' ? "qgemm_mma" : "qgemm_wgmma";
    kernel.arch = "sm_90a";
    QGEMM_CHECK_OK((*writer)->AddKernel(kernel, SampleCubin(config)));
  }
  auto weights = (*writer)->Weights();
  QGEMM_CHECK_OK(weights.status());
  for (const PlaneSize& plane : PlanesOf(SampleProblem())) {
    const std::string bytes(plane.bytes, plane.plane[0]);
    QGEMM_CHECK_OK((*weights)->Write(absl::StrCat("model.q.", plane.plane), "U8", {plane.bytes}, bytes));
  }
  QGEMM_CHECK_OK((*writer)->AddMethod(SampleMethod("decode", 1, "model.q")));
  QGEMM_CHECK_OK((*writer)->AddMethod(SampleMethod("prefill", 0, "model.q")));
  QGEMM_CHECK_OK((*writer)->Finish());
}

}  // namespace qgemm

#endif  // QGEMM_TESTS_UNIT_CLIENT_SAMPLE_BUNDLE_H_
