#include "client/model_config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxDimension = std::numeric_limits<int32_t>::max();
// A config.json is a few KiB; a larger file is something else (weights, say) and is not read into memory.
constexpr int64_t kMaxConfigBytes = 16 << 20;

enum class Bias {
  kNone,            // no linear layer has one
  kQkv,             // q, k and v always have one
  kAttentionField,  // attention_bias: q, k, v and o; mlp_bias: gate, up and down
};

// Where a family's feed-forward layers are mixtures of experts.
enum class Experts {
  kNone,
  kAll,     // num_local_experts (mixtral) or num_experts (olmoe) of intermediate_size in every layer
  kSparse,  // num_experts of moe_intermediate_size in the layers that mlp_only_layers and
            // decoder_sparse_step say, shared_expert_intermediate_size beside them; dense layers elsewhere
};

// What a model family's config leaves to its class: 0 = the field is required, or is derived.
struct ModelFamily {
  absl::string_view model_type;
  Bias bias;
  int64_t head_dim;  // 0: hidden_size / num_attention_heads
  int64_t num_attention_heads;
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t vocab_size;
  Experts experts = Experts::kNone;
  const char* activation_field = "hidden_act";
  absl::string_view activation = "silu";  // where the field is missing
};

constexpr absl::string_view kGemmaActivation = "gelu_pytorch_tanh";

// Defaults as in transformers' configuration_<family>.py.
constexpr ModelFamily kFamilies[] = {
    {"llama", Bias::kAttentionField, 0, 0, 0, 0},
    {"mistral", Bias::kNone, 0, 0, 0, 0},
    {"qwen2", Bias::kQkv, 0, 0, 0, 0},
    {"qwen3", Bias::kAttentionField, 128, 0, 0, 0},
    {"gemma", Bias::kAttentionField, 256, 0, 0, 0, Experts::kNone, "hidden_activation", kGemmaActivation},
    {"gemma2", Bias::kAttentionField, 256, 0, 0, 0, Experts::kNone, "hidden_activation", kGemmaActivation},
    {"gemma3_text", Bias::kAttentionField, 256, 8, 4, 262208, Experts::kNone, "hidden_activation",
     kGemmaActivation},
    {"gemma3", Bias::kAttentionField, 256, 8, 4, 262208, Experts::kNone, "hidden_activation",
     kGemmaActivation},
    {"mixtral", Bias::kNone, 0, 0, 0, 0, Experts::kAll},
    {"olmoe", Bias::kAttentionField, 0, 0, 0, 0, Experts::kAll},
    {"qwen2_moe", Bias::kQkv, 0, 0, 0, 0, Experts::kSparse},
    {"qwen3_moe", Bias::kAttentionField, 0, 0, 0, 0, Experts::kSparse},
};

absl::Status UnknownModelType(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": known are ", absl::StrJoin(kFamilies, ", ", [](std::string* out, const ModelFamily& family) {
        absl::StrAppend(out, family.model_type);
      })));
}

// A value for an error message, cut short: a config may hold anything.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  constexpr size_t kLimit = 40;
  if (text.size() > kLimit) text = absl::StrCat(text.substr(0, kLimit), "...");
  return text;
}

// The field's value, or nullptr where it is absent or null: both mean the default in these files.
const Json* Find(const Json& config, const char* field) {
  const auto it = config.find(field);
  return it == config.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<int64_t> Dimension(const Json& config, const char* field, int64_t default_value) {
  const Json* value = Find(config, field);
  if (value == nullptr) {
    if (default_value > 0) return default_value;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is missing: a whole number from 1 to ", kMaxDimension, " is needed"));
  }
  const bool in_range =
      value->is_number_unsigned() && value->get<uint64_t>() >= 1 && value->get<uint64_t>() <= kMaxDimension;
  if (!in_range) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", Shown(*value), ": allowed are whole numbers from 1 to ", kMaxDimension));
  }
  return value->get<int64_t>();
}

absl::StatusOr<bool> Flag(const Json& config, const char* field) {
  const Json* value = Find(config, field);
  if (value == nullptr) return false;
  if (!value->is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", Shown(*value), ": allowed are true and false"));
  }
  return value->get<bool>();
}

absl::StatusOr<ModelFamily> FindFamily(const Json& text_config, const Json& whole_config) {
  const Json* type = Find(text_config, "model_type");
  if (type == nullptr) type = Find(whole_config, "model_type");
  if (type == nullptr) return UnknownModelType("model_type is missing");
  if (type->is_string()) {
    const std::string& name = type->get_ref<const std::string&>();
    for (const ModelFamily& family : kFamilies) {
      if (family.model_type == name) return family;
    }
  }
  return UnknownModelType(absl::StrCat("model_type is ", Shown(*type)));
}

absl::Status RefuseExperts(const Json& config, const ModelFamily& family) {
  for (const char* field : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const Json* value = Find(config, field);
    if (value != nullptr && !(value->is_number() && *value == 0)) {
      return UnknownModelType(absl::StrCat(field, " is ", Shown(*value), ", and the experts of model_type ",
                                           family.model_type, " are not read"));
    }
  }
  return absl::OkStatus();
}

// How many of `layers` feed-forward layers are mixtures of experts.
absl::StatusOr<int64_t> SparseLayers(const Json& config, int64_t layers) {
  QGEMM_ASSIGN_OR_RETURN(const int64_t period, Dimension(config, "decoder_sparse_step", 1));
  std::set<int64_t> dense;
  if (const Json* list = Find(config, "mlp_only_layers")) {
    const auto is_index = [](const Json& entry) {
      return entry.is_number_unsigned() && entry.get<uint64_t>() < kMaxDimension;
    };
    if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_index)) {
      return absl::InvalidArgumentError(
          absl::StrCat("mlp_only_layers is ", Shown(*list), ": a list of layer numbers is needed"));
    }
    for (const Json& entry : *list) {
      // Layer i is sparse when i + 1 is a multiple of the period: others are dense whether listed or not.
      const int64_t layer = entry.get<int64_t>();
      if (layer < layers && (layer + 1) % period == 0) dense.insert(layer);
    }
  }
  return layers / period - static_cast<int64_t>(dense.size());
}

// The share of one of `tp` devices in a dimension that is split evenly.
absl::StatusOr<int64_t> Share(absl::string_view field, int64_t value, int tp) {
  if (value % tp != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, ": allowed with --tp ", tp, " are multiples of ", tp));
  }
  return value / tp;
}

// The activation between gate and up, by the names that these files have for it.
absl::StatusOr<Activation> GateActivation(const Json& config, const ModelFamily& family) {
  const Json* value = Find(config, family.activation_field);
  std::string name(family.activation);
  if (value != nullptr) name = value->is_string() ? value->get<std::string>() : Shown(*value);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return absl::InvalidArgumentError(
      absl::StrCat(family.activation_field, " is ", value == nullptr ? name : Shown(*value),
                   ": gate and up can be fused with silu, gelu_pytorch_tanh or relu"));
}

// Collects layers; a product or sum that leaves the allowed range is reported by the layer it would belong
// to.
class LayerList {
 public:
  // `gate`: of fused gate and up layers; kNone: they are not gated.
  explicit LayerList(Activation gate) : gate_(gate) {}

  absl::Status Add(std::string name, int64_t n, int64_t k, int64_t count, bool bias, bool fused = false,
                   Activation gate = Activation::kNone) {
    if (n > kMaxDimension || k > kMaxDimension) {
      return absl::InvalidArgumentError(absl::StrCat("the shape of ", name, " is ", n, "x", k,
                                                     ": allowed are rows and columns from 1 to ",
                                                     kMaxDimension));
    }
    if (count > 0) layers_.push_back({std::move(name), n, k, count, bias, fused, gate});
    return absl::OkStatus();
  }

  // gate, up and down of a feed-forward layer, with gate and up also as one.
  absl::Status AddMlp(const std::string& prefix, int64_t intermediate, int64_t hidden, int64_t count,
                      bool bias, bool down_bias) {
    QGEMM_RETURN_IF_ERROR(Add(prefix + "gate_proj", intermediate, hidden, count, bias));
    QGEMM_RETURN_IF_ERROR(Add(prefix + "up_proj", intermediate, hidden, count, bias));
    QGEMM_RETURN_IF_ERROR(
        Add(prefix + "gate_up_proj", 2 * intermediate, hidden, count, bias, /*fused=*/true, gate_));
    return Add(prefix + "down_proj", hidden, intermediate, count, down_bias);
  }

  std::vector<LinearLayer> Take() { return std::move(layers_); }

 private:
  const Activation gate_;
  std::vector<LinearLayer> layers_;
};

struct Attention {
  int64_t hidden = 0;
  int64_t q = 0;  // one device's rows of q_proj
  int64_t kv = 0;
};

absl::StatusOr<Attention> ReadAttention(const Json& config, const ModelFamily& family, int tp) {
  Attention attention;
  QGEMM_ASSIGN_OR_RETURN(attention.hidden, Dimension(config, "hidden_size", 0));
  QGEMM_ASSIGN_OR_RETURN(const int64_t heads,
                         Dimension(config, "num_attention_heads", family.num_attention_heads));
  QGEMM_ASSIGN_OR_RETURN(const int64_t kv_heads,
                         Dimension(config, "num_key_value_heads",
                                   family.num_key_value_heads > 0 ? family.num_key_value_heads : heads));
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_key_value_heads is ", kv_heads,
                                                   ": allowed are divisors of num_attention_heads, ", heads));
  }
  int64_t head_dim = family.head_dim;
  if (Find(config, "head_dim") == nullptr && head_dim == 0) {
    if (attention.hidden % heads != 0) {
      return absl::InvalidArgumentError(absl::StrCat("head_dim is missing and hidden_size, ",
                                                     attention.hidden,
                                                     ", is no multiple of num_attention_heads, ", heads));
    }
    head_dim = attention.hidden / heads;
  }
  QGEMM_ASSIGN_OR_RETURN(head_dim, Dimension(config, "head_dim", head_dim));
  QGEMM_ASSIGN_OR_RETURN(const int64_t own_heads, Share("num_attention_heads", heads, tp));
  // Fewer key-value heads than devices: each device holds one, and some hold the same.
  int64_t own_kv_heads = 1;
  if (kv_heads > tp || tp % kv_heads != 0) {
    QGEMM_ASSIGN_OR_RETURN(own_kv_heads, Share("num_key_value_heads", kv_heads, tp));
  }
  // A product of two dimensions fits int64; sums of products are formed only after their terms were checked
  // by LayerList::Add.
  attention.q = own_heads * head_dim;
  attention.kv = own_kv_heads * head_dim;
  return attention;
}

// The feed-forward layers: dense ones, and experts where the family has them.
absl::Status AddFeedForward(const Json& config, const ModelFamily& family, int64_t hidden, int64_t layers,
                            bool mlp_bias, int tp, LayerList& list) {
  // A bias after a product that is summed over devices is added once, by nobody's kernel.
  const bool down_bias = mlp_bias && tp == 1;
  int64_t sparse = 0;
  if (family.experts == Experts::kSparse) {
    QGEMM_ASSIGN_OR_RETURN(sparse, SparseLayers(config, layers));
  }
  if (family.experts == Experts::kAll) sparse = layers;
  if (sparse < layers) {
    QGEMM_ASSIGN_OR_RETURN(int64_t intermediate, Dimension(config, "intermediate_size", 0));
    QGEMM_ASSIGN_OR_RETURN(intermediate, Share("intermediate_size", intermediate, tp));
    QGEMM_RETURN_IF_ERROR(list.AddMlp("", intermediate, hidden, layers - sparse, mlp_bias, down_bias));
  }
  if (sparse == 0) return absl::OkStatus();

  const bool is_local = Find(config, "num_local_experts") != nullptr;
  QGEMM_ASSIGN_OR_RETURN(const int64_t experts,
                         Dimension(config, is_local ? "num_local_experts" : "num_experts", 0));
  const char* width_field =
      family.experts == Experts::kSparse ? "moe_intermediate_size" : "intermediate_size";
  QGEMM_ASSIGN_OR_RETURN(int64_t width, Dimension(config, width_field, 0));
  QGEMM_ASSIGN_OR_RETURN(width, Share(width_field, width, tp));
  QGEMM_RETURN_IF_ERROR(list.AddMlp("expert_", width, hidden, sparse * experts, mlp_bias, down_bias));
  const Json* shared = Find(config, "shared_expert_intermediate_size");
  if (shared == nullptr || (shared->is_number() && *shared == 0)) return absl::OkStatus();
  QGEMM_ASSIGN_OR_RETURN(int64_t shared_width, Dimension(config, "shared_expert_intermediate_size", 0));
  QGEMM_ASSIGN_OR_RETURN(shared_width, Share("shared_expert_intermediate_size", shared_width, tp));
  return list.AddMlp("shared_expert_", shared_width, hidden, sparse, mlp_bias, down_bias);
}

absl::StatusOr<std::vector<LinearLayer>> LayersOf(const Json& config, const ModelFamily& family, int tp,
                                                  bool fuse_gate_up) {
  if (family.experts == Experts::kNone) QGEMM_RETURN_IF_ERROR(RefuseExperts(config, family));
  QGEMM_ASSIGN_OR_RETURN(const Attention attention, ReadAttention(config, family, tp));
  QGEMM_ASSIGN_OR_RETURN(const int64_t count, Dimension(config, "num_hidden_layers", 0));
  QGEMM_ASSIGN_OR_RETURN(int64_t vocab, Dimension(config, "vocab_size", family.vocab_size));
  if (tp > 1) {
    // A vocabulary that is split is padded to whole multiples of 64 first.
    QGEMM_ASSIGN_OR_RETURN(vocab, Share("vocab_size, rounded up to 64,", (vocab + 63) / 64 * 64, tp));
  }

  bool qkv_bias = family.bias == Bias::kQkv;
  bool o_bias = false;
  bool mlp_bias = false;
  if (family.bias == Bias::kAttentionField) {
    QGEMM_ASSIGN_OR_RETURN(qkv_bias, Flag(config, "attention_bias"));
    QGEMM_ASSIGN_OR_RETURN(mlp_bias, Flag(config, "mlp_bias"));
    o_bias = qkv_bias && tp == 1;
  }

  const auto [hidden, q, kv] = attention;
  Activation gate = Activation::kNone;
  if (fuse_gate_up) {
    QGEMM_ASSIGN_OR_RETURN(gate, GateActivation(config, family));
  }
  LayerList list(gate);
  QGEMM_RETURN_IF_ERROR(list.Add("q_proj", q, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("k_proj", kv, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("v_proj", kv, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("qkv_proj", q + kv + kv, hidden, count, qkv_bias, /*fused=*/true));
  QGEMM_RETURN_IF_ERROR(list.Add("o_proj", hidden, q, count, o_bias));
  QGEMM_RETURN_IF_ERROR(AddFeedForward(config, family, hidden, count, mlp_bias, tp, list));
  QGEMM_RETURN_IF_ERROR(list.Add("lm_head", vocab, hidden, 1, /*bias=*/false));
  return list.Take();
}

}  // namespace

std::string LayerGroup::Names() const {
  return absl::StrJoin(layers, ",",
                       [](std::string* out, const LinearLayer& layer) { absl::StrAppend(out, layer.name); });
}

std::string LayerGroup::Variants() const {
  const auto is_fused = [](const LinearLayer& layer) { return layer.fused; };
  if (std::all_of(layers.begin(), layers.end(), is_fused)) return "fused";
  return std::any_of(layers.begin(), layers.end(), is_fused) ? "both" : "separate";
}

int64_t LayerGroup::Count() const {
  int64_t count = 0;
  for (const LinearLayer& layer : layers) count += layer.count;
  return count;
}

absl::StatusOr<std::vector<LinearLayer>> ParseModelConfig(absl::string_view json_text, int tp,
                                                          bool fuse_gate_up) {
  if (tp < 1 || tp > kMaxTensorParallel) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp ", tp, " is not allowed: use 1 to ", kMaxTensorParallel));
  }
  const Json config = Json::parse(json_text.begin(), json_text.end(), nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) return absl::InvalidArgumentError("not a well-formed JSON document");
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the document is ", Shown(config), ": an object is needed"));
  }
  const Json* text_config = Find(config, "text_config");
  if (text_config == nullptr) text_config = &config;
  if (!text_config->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text_config is ", Shown(*text_config), ": an object is needed"));
  }
  QGEMM_ASSIGN_OR_RETURN(const ModelFamily family, FindFamily(*text_config, config));
  return LayersOf(*text_config, family, tp, fuse_gate_up);
}

absl::StatusOr<std::vector<LinearLayer>> ReadModelConfig(const std::string& path, int tp, bool fuse_gate_up) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the model file ", path));
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (!file.eof() && file.fail())) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the model file ", path, ": a regular file is needed"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (static_cast<int64_t>(text.size()) > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model file ", path, " is larger than 16 MiB: a config.json is needed"));
  }
  absl::StatusOr<std::vector<LinearLayer>> layers = ParseModelConfig(text, tp, fuse_gate_up);
  if (layers.ok()) return layers;
  return absl::Status(layers.status().code(),
                      absl::StrCat("model file ", path, ": ", layers.status().message()));
}

std::vector<LayerGroup> GroupLayers(const std::vector<LinearLayer>& layers) {
  std::vector<LayerGroup> groups;
  for (const LinearLayer& layer : layers) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& group) {
      const LinearLayer& first = group.layers.front();
      return first.n == layer.n && first.k == layer.k && first.bias == layer.bias && first.gate == layer.gate;
    });
    if (same == groups.end()) {
      groups.push_back({{layer}});
    } else {
      same->layers.push_back(layer);
    }
  }
  return groups;
}

}  // namespace qgemm
