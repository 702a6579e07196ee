#include "client/model_config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
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

// What a model family's config leaves to its class: 0 = the field is required, or is derived.
struct ModelFamily {
  absl::string_view model_type;
  Bias bias;
  int64_t head_dim;  // 0: hidden_size / num_attention_heads
  int64_t num_attention_heads;
  int64_t num_key_value_heads;  // 0: num_attention_heads
  int64_t vocab_size;
};

// Defaults as in transformers' configuration_<family>.py.
constexpr ModelFamily kFamilies[] = {
    {"llama", Bias::kAttentionField, 0, 0, 0, 0},
    {"mistral", Bias::kNone, 0, 0, 0, 0},
    {"qwen2", Bias::kQkv, 0, 0, 0, 0},
    {"qwen3", Bias::kAttentionField, 128, 0, 0, 0},
    {"gemma", Bias::kAttentionField, 256, 0, 0, 0},
    {"gemma2", Bias::kAttentionField, 256, 0, 0, 0},
    {"gemma3_text", Bias::kAttentionField, 256, 8, 4, 262208},
    {"gemma3", Bias::kAttentionField, 256, 8, 4, 262208},
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

absl::Status RefuseExperts(const Json& config) {
  for (const char* field : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    const Json* value = Find(config, field);
    if (value != nullptr && !(value->is_number() && *value == 0)) {
      return UnknownModelType(
          absl::StrCat(field, " is ", Shown(*value), ", mixture-of-experts layers are not read"));
    }
  }
  return absl::OkStatus();
}

// Collects layers; a product or sum that leaves the allowed range is reported by the layer it would belong
// to.
class LayerList {
 public:
  absl::Status Add(std::string name, int64_t n, int64_t k, int64_t count, bool bias, bool fused = false) {
    if (n > kMaxDimension || k > kMaxDimension) {
      return absl::InvalidArgumentError(absl::StrCat("the shape of ", name, " is ", n, "x", k,
                                                     ": allowed are rows and columns from 1 to ",
                                                     kMaxDimension));
    }
    layers_.push_back({std::move(name), n, k, count, bias, fused});
    return absl::OkStatus();
  }
  std::vector<LinearLayer> Take() { return std::move(layers_); }

 private:
  std::vector<LinearLayer> layers_;
};

absl::StatusOr<std::vector<LinearLayer>> LayersOf(const Json& config, const ModelFamily& family) {
  QGEMM_RETURN_IF_ERROR(RefuseExperts(config));
  QGEMM_ASSIGN_OR_RETURN(const int64_t hidden, Dimension(config, "hidden_size", 0));
  QGEMM_ASSIGN_OR_RETURN(const int64_t intermediate, Dimension(config, "intermediate_size", 0));
  QGEMM_ASSIGN_OR_RETURN(const int64_t count, Dimension(config, "num_hidden_layers", 0));
  QGEMM_ASSIGN_OR_RETURN(const int64_t heads,
                         Dimension(config, "num_attention_heads", family.num_attention_heads));
  QGEMM_ASSIGN_OR_RETURN(const int64_t kv_heads,
                         Dimension(config, "num_key_value_heads",
                                   family.num_key_value_heads > 0 ? family.num_key_value_heads : heads));
  QGEMM_ASSIGN_OR_RETURN(const int64_t vocab, Dimension(config, "vocab_size", family.vocab_size));
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_key_value_heads is ", kv_heads,
                                                   ": allowed are divisors of num_attention_heads, ", heads));
  }
  int64_t head_dim = family.head_dim;
  if (Find(config, "head_dim") == nullptr && head_dim == 0) {
    if (hidden % heads != 0) {
      return absl::InvalidArgumentError(absl::StrCat("head_dim is missing and hidden_size, ", hidden,
                                                     ", is no multiple of num_attention_heads, ", heads));
    }
    head_dim = hidden / heads;
  }
  QGEMM_ASSIGN_OR_RETURN(head_dim, Dimension(config, "head_dim", head_dim));

  bool qkv_bias = family.bias == Bias::kQkv;
  bool o_bias = false;
  bool mlp_bias = false;
  if (family.bias == Bias::kAttentionField) {
    QGEMM_ASSIGN_OR_RETURN(qkv_bias, Flag(config, "attention_bias"));
    QGEMM_ASSIGN_OR_RETURN(mlp_bias, Flag(config, "mlp_bias"));
    o_bias = qkv_bias;
  }

  // A product of two dimensions fits int64; sums of products are formed only after their terms were checked
  // by Add.
  const int64_t q = heads * head_dim;
  const int64_t kv = kv_heads * head_dim;
  LayerList list;
  QGEMM_RETURN_IF_ERROR(list.Add("q_proj", q, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("k_proj", kv, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("v_proj", kv, hidden, count, qkv_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("qkv_proj", q + kv + kv, hidden, count, qkv_bias, /*fused=*/true));
  QGEMM_RETURN_IF_ERROR(list.Add("o_proj", hidden, q, count, o_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("gate_proj", intermediate, hidden, count, mlp_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("up_proj", intermediate, hidden, count, mlp_bias));
  QGEMM_RETURN_IF_ERROR(list.Add("gate_up_proj", 2 * intermediate, hidden, count, mlp_bias, /*fused=*/true));
  QGEMM_RETURN_IF_ERROR(list.Add("down_proj", hidden, intermediate, count, mlp_bias));
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

absl::StatusOr<std::vector<LinearLayer>> ParseModelConfig(absl::string_view json_text) {
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
  return LayersOf(*text_config, family);
}

absl::StatusOr<std::vector<LinearLayer>> ReadModelConfig(const std::string& path) {
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
  absl::StatusOr<std::vector<LinearLayer>> layers = ParseModelConfig(text);
  if (layers.ok()) return layers;
  return absl::Status(layers.status().code(),
                      absl::StrCat("model file ", path, ": ", layers.status().message()));
}

std::vector<LayerGroup> GroupLayers(const std::vector<LinearLayer>& layers) {
  std::vector<LayerGroup> groups;
  for (const LinearLayer& layer : layers) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& group) {
      const LinearLayer& first = group.layers.front();
      return first.n == layer.n && first.k == layer.k && first.bias == layer.bias;
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
