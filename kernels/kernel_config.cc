#include "kernels/kernel_config.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace qgemm {
namespace {

absl::string_view FamilyName(Family family) {
  switch (family) {
    case Family::kMma:
      return "mma";
    case Family::kWgmma:
      return "wgmma";
  }
  return "invalid";
}

absl::string_view ActivationPathName(ActivationPath path) {
  switch (path) {
    case ActivationPath::kSlice:
      return "slice";
    case ActivationPath::kStaged:
      return "staged";
  }
  return "invalid";
}

absl::string_view ScaleModeName(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::kPre:
      return "pre";
    case ScaleMode::kPost:
      return "post";
  }
  return "invalid";
}

// Takes `prefix` and then a positive number of at most four digits off the front of `text`.
bool ConsumeNumber(absl::string_view prefix, absl::string_view* text, int* value) {
  if (!absl::ConsumePrefix(text, prefix)) return false;
  size_t digits = 0;
  *value = 0;
  while (digits < text->size() && digits < 4 && absl::ascii_isdigit((*text)[digits])) {
    *value = *value * 10 + ((*text)[digits] - '0');
    ++digits;
  }
  text->remove_prefix(digits);
  return *value > 0;
}

bool ConsumeConfig(absl::string_view* text, KernelConfig* config) {
  if (absl::ConsumePrefix(text, "mma")) {
    config->family = Family::kMma;
  } else if (absl::ConsumePrefix(text, "wgmma")) {
    config->family = Family::kWgmma;
  } else {
    return false;
  }
  if (!ConsumeNumber("_t", text, &config->token_tiles)) return false;
  if (!ConsumeNumber("_r", text, &config->row_tiles)) return false;
  if (!ConsumeNumber("_w", text, &config->warps_n)) return false;
  if (!ConsumeNumber("x", text, &config->warps_k)) return false;
  if (!ConsumeNumber("_s", text, &config->stages)) return false;
  if (!ConsumeNumber("_b", text, &config->blocks_per_stage)) return false;
  if (absl::ConsumePrefix(text, "_slice")) {
    config->activations = ActivationPath::kSlice;
  } else if (absl::ConsumePrefix(text, "_staged")) {
    config->activations = ActivationPath::kStaged;
  } else {
    return false;
  }
  if (absl::ConsumePrefix(text, "_pre")) {
    config->scale = ScaleMode::kPre;
  } else if (absl::ConsumePrefix(text, "_post")) {
    config->scale = ScaleMode::kPost;
  } else {
    return false;
  }
  if (absl::StartsWith(*text, "_p") && !ConsumeNumber("_p", text, &config->passes)) return false;
  config->tails = config->passes == 1 && absl::ConsumePrefix(text, "_tails");
  // wgmma reads staged activations only; mma has neither passes nor tails.
  if (config->family == Family::kWgmma) return config->activations == ActivationPath::kStaged;
  return config->passes == 1 && !config->tails;
}

}  // namespace

std::string ConfigName(const KernelConfig& config) {
  return absl::StrCat(FamilyName(config.family), "_t", config.token_tiles, "_r", config.row_tiles, "_w",
                      config.warps_n, "x", config.warps_k, "_s", config.stages, "_b", config.blocks_per_stage,
                      "_", ActivationPathName(config.activations), "_", ScaleModeName(config.scale),
                      config.passes > 1 ? absl::StrCat("_p", config.passes) : "",
                      config.tails ? "_tails" : "");
}

absl::StatusOr<KernelConfig> ParseConfig(absl::string_view text) {
  KernelConfig config;
  absl::string_view rest = text;
  // Printing it again rejects what a number can be spelled like besides its one printed form ("01").
  if (ConsumeConfig(&rest, &config) && rest.empty() && ConfigName(config) == text) return config;
  return absl::InvalidArgumentError(
      absl::StrCat("config \"", text.substr(0, 100),
                   "\" is malformed: write it like mma_t1_r2_w4x2_s4_b2_slice_post (token tiles, row tiles, "
                   "warps N x K, stages, "
                   "blocks per stage, slice or staged, pre or post; of family wgmma also _p2, passes above "
                   "1, or _tails)"));
}

absl::string_view ReductionName(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kWorkspace:
      return "workspace";
    case Reduction::kCluster:
      return "cluster";
  }
  return "invalid";
}

std::string CandidateName(const Candidate& candidate) {
  return absl::StrCat(ConfigName(candidate.config), "/k", candidate.split_k, "/",
                      ReductionName(candidate.reduction));
}

}  // namespace qgemm
