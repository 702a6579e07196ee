#ifndef QGEMM_CLIENT_MODEL_CONFIG_H_
#define QGEMM_CLIENT_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/problem.h"

namespace qgemm {

// One kind of linear layer of a model: a weight of n rows and k columns that occurs `count` times.
struct LinearLayer {
  std::string name;  // "q_proj", "qkv_proj", ...
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 0;  // in the whole model
  bool bias = false;
  bool fused = false;  // stands for several layers whose weights are stacked along N
  // Not kNone: rows of gate and up alternate, and the GEMM's epilogue makes gate(gate's row) * up's row.
  Activation gate = Activation::kNone;

  friend bool operator==(const LinearLayer&, const LinearLayer&) = default;
};

// Layers that are one and the same problem.
struct LayerGroup {
  std::vector<LinearLayer> layers;  // never empty; equal n, k, bias and gate

  std::string Names() const;     // "k_proj,v_proj"
  std::string Variants() const;  // "separate", "fused" or "both"
  int64_t Count() const;
};

inline constexpr int kMaxTensorParallel = 1024;

// The linear layers of a model from the text of its Hugging Face config.json: q_proj k_proj v_proj and the
// fused qkv_proj, o_proj, gate_proj up_proj and the fused gate_up_proj, down_proj, lm_head. Separate and
// fused variants are both listed: which of them a runtime launches is the exporter's choice. lm_head is
// listed for tied embeddings too: its GEMM is there, with the embedding as its weight. What a config leaves
// out has the default of the family's configuration class in the transformers library. A text_config inside
// the file (multimodal models) is read in the file's place.
//
// Mixtures of experts: expert_gate_proj, expert_up_proj, expert_gate_up_proj, expert_down_proj are one
// expert's, counted over all experts and layers; shared_expert_... those of a shared expert. Routers are not
// listed: they stay unquantized.
//
// `tp`: the layers of one of that many devices. q, k, v, gate, up and lm_head are split along N (key-value
// heads are repeated where there are fewer than devices; the vocabulary is padded to a multiple of 64), o and
// down along K; those are summed over devices, and lose their bias here, which is added after the sum.
//
// `fuse_gate_up`: gate_up_proj is one gated GEMM with the model's activation; a model whose activation no
// kernel has is refused then.
//
// Known model types: llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, gemma3_text; with experts mixtral,
// olmoe, qwen2_moe, qwen3_moe. InvalidArgument names the field, its value and what is allowed.
[[nodiscard]] absl::StatusOr<std::vector<LinearLayer>> ParseModelConfig(absl::string_view json_text,
                                                                        int tp = 1,
                                                                        bool fuse_gate_up = false);

// The same from a file; messages start with its path. NotFound, PermissionDenied: it cannot be opened.
[[nodiscard]] absl::StatusOr<std::vector<LinearLayer>> ReadModelConfig(const std::string& path, int tp = 1,
                                                                       bool fuse_gate_up = false);

// Layers of equal n, k, bias and gate together, in the order of their first layer.
std::vector<LayerGroup> GroupLayers(const std::vector<LinearLayer>& layers);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_MODEL_CONFIG_H_
