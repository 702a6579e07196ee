#ifndef QGEMM_CLIENT_MODEL_CONFIG_H_
#define QGEMM_CLIENT_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace qgemm {

// One kind of linear layer of a model: a weight of n rows and k columns that occurs `count` times.
struct LinearLayer {
  std::string name;  // "q_proj", "qkv_proj", ...
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 0;  // in the whole model
  bool bias = false;
  bool fused = false;  // stands for several layers whose weights are stacked along N

  friend bool operator==(const LinearLayer&, const LinearLayer&) = default;
};

// Layers that are one and the same problem.
struct LayerGroup {
  std::vector<LinearLayer> layers;  // never empty; equal n, k and bias

  std::string Names() const;     // "k_proj,v_proj"
  std::string Variants() const;  // "separate", "fused" or "both"
  int64_t Count() const;
};

// The linear layers of a model from the text of its Hugging Face config.json: q_proj k_proj v_proj and the
// fused qkv_proj, o_proj, gate_proj up_proj and the fused gate_up_proj, down_proj, lm_head. Separate and
// fused variants are both listed: which of them a runtime launches is the exporter's choice. lm_head is
// listed for tied embeddings too: its GEMM is there, with the embedding as its weight. What a config leaves
// out has the default of the family's configuration class in the transformers library. A text_config inside
// the file (multimodal models) is read in the file's place.
//
// Known model types: llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, gemma3_text.
// InvalidArgument names the field, its value and what is allowed; mixture-of-experts models are refused.
[[nodiscard]] absl::StatusOr<std::vector<LinearLayer>> ParseModelConfig(absl::string_view json_text);

// The same from a file; messages start with its path. NotFound, PermissionDenied: it cannot be opened.
[[nodiscard]] absl::StatusOr<std::vector<LinearLayer>> ReadModelConfig(const std::string& path);

// Layers of equal n, k and bias together, in the order of their first layer.
std::vector<LayerGroup> GroupLayers(const std::vector<LinearLayer>& layers);

}  // namespace qgemm

#endif  // QGEMM_CLIENT_MODEL_CONFIG_H_
