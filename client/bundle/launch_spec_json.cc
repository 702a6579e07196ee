#include "client/bundle/launch_spec_json.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "client/bundle/json_fields.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<PointerRole, const char*> kRoles[] = {
    {PointerRole::kX, "x"},
    {PointerRole::kWeights, "weights"},
    {PointerRole::kScales, "scales"},
    {PointerRole::kZeros, "zeros"},
    {PointerRole::kBias, "bias"},
    {PointerRole::kY, "y"},
    {PointerRole::kSteps, "steps"},
    {PointerRole::kWorkspace, "workspace"},
    {PointerRole::kResidual, "residual"},
};
constexpr std::pair<Symbol, const char*> kSymbols[] = {
    {Symbol::kM, "m"}, {Symbol::kLdx, "ldx"}, {Symbol::kLdy, "ldy"}, {Symbol::kLdr, "ldr"}};
constexpr std::pair<TensorElement, const char*> kElements[] = {{TensorElement::kBf16, "bf16"},
                                                               {TensorElement::kFp16, "fp16"},
                                                               {TensorElement::kU32, "u32"},
                                                               {TensorElement::kU64, "u64"}};

template <typename Enum, size_t kCount>
const char* WordOf(Enum value, const std::pair<Enum, const char*> (&words)[kCount]) {
  for (const auto& [candidate, word] : words) {
    if (candidate == value) return word;
  }
  return "";
}

template <typename Enum, size_t kCount>
Enum ValueOf(JsonFields& fields, const char* name, const std::pair<Enum, const char*> (&words)[kCount]) {
  const std::string text = fields.Text(name);
  std::string allowed = "one of";
  for (const auto& [value, word] : words) {
    if (text == word) return value;
    absl::StrAppend(&allowed, " ", word);
  }
  fields.Fail(name, allowed);
  return words[0].first;
}

Json ArgumentToJson(const KernelArgument& argument) {
  Json json;
  if (const auto* pointer = std::get_if<PointerArgument>(&argument.kind)) {
    json = {{"kind", "pointer"},
            {"role", WordOf(pointer->role, kRoles)},
            {"read", pointer->read},
            {"written", pointer->written},
            {"alignment", pointer->alignment}};
  } else if (const auto* map = std::get_if<TensorMapArgument>(&argument.kind)) {
    json = {{"kind", "tensor_map"},
            {"role", WordOf(map->role, kRoles)},
            {"element", WordOf(map->element, kElements)},
            {"columns", map->columns},
            {"rows", map->rows},
            {"row_pitch_bytes", map->row_pitch_bytes},
            {"box_columns", map->box_columns},
            {"box_rows", map->box_rows},
            {"swizzle_bytes", map->swizzle_bytes}};
  } else {
    const auto& integer = std::get<IntegerArgument>(argument.kind);
    json["kind"] = integer.bits == 64 ? "i64" : "i32";
    if (const auto* constant = std::get_if<int64_t>(&integer.value)) {
      json["constant"] = *constant;
    } else {
      json["symbol"] = WordOf(std::get<Symbol>(integer.value), kSymbols);
    }
  }
  json["name"] = argument.name;
  return json;
}

absl::StatusOr<KernelArgument> ArgumentFromJson(const Json& json, const std::string& where) {
  JsonFields fields(json, where);
  KernelArgument argument;
  argument.name = fields.Text("name");
  const std::string kind = fields.Text("kind");
  if (kind == "pointer") {
    PointerArgument pointer{};
    pointer.role = ValueOf(fields, "role", kRoles);
    pointer.read = fields.Bool("read");
    pointer.written = fields.Bool("written");
    pointer.alignment = fields.Int("alignment");
    argument.kind = pointer;
  } else if (kind == "tensor_map") {
    TensorMapArgument map{};
    map.role = ValueOf(fields, "role", kRoles);
    map.element = ValueOf(fields, "element", kElements);
    map.columns = fields.Long("columns", 1);
    map.rows = fields.Long("rows");
    map.row_pitch_bytes = fields.Long("row_pitch_bytes");
    map.box_columns = fields.Int("box_columns", 1);
    map.box_rows = fields.Int("box_rows", 1);
    map.swizzle_bytes = fields.Int("swizzle_bytes");
    if (map.swizzle_bytes != 0 && map.swizzle_bytes != 128) fields.Fail("swizzle_bytes", "0 or 128");
    argument.kind = map;
  } else if (kind == "i32" || kind == "i64") {
    IntegerArgument integer;
    integer.bits = kind == "i64" ? 64 : 32;
    if (fields.Has("symbol")) {
      integer.value = ValueOf(fields, "symbol", kSymbols);
    } else {
      integer.value = fields.Long("constant", INT64_MIN);
    }
    argument.kind = integer;
  } else {
    fields.Fail("kind", "one of pointer tensor_map i32 i64");
  }
  QGEMM_RETURN_IF_ERROR(fields.status());
  return argument;
}

// The value of a word that `parse` knows.
template <typename Parse>
auto Parsed(JsonFields& fields, const char* name, const Parse& parse) {
  auto value = parse(name, fields.Text(name));
  if (!value.ok()) {
    fields.Fail(name, absl::StrCat("known: ", value.status().message()));
    return typename decltype(value)::value_type{};
  }
  return *value;
}

}  // namespace

Json ToJson(const LaunchSpec& spec) {
  Json arguments = Json::array();
  for (const KernelArgument& argument : spec.arguments) arguments.push_back(ArgumentToJson(argument));
  return {{"abi_version", spec.abi_version},
          {"layout_id", spec.layout_id},
          {"entry", spec.entry},
          {"tile_m", spec.tile_m},
          {"tile_n", spec.tile_n},
          {"grid_n", spec.grid_n},
          {"split_k", spec.split_k},
          {"cluster_z", spec.cluster_z},
          {"block_threads", spec.block_threads},
          {"dynamic_smem_bytes", spec.dynamic_smem_bytes},
          {"max_m", spec.max_m},
          {"workspace",
           {{"ticket_bytes_per_m_tile", spec.ticket_bytes_per_m_tile},
            {"partial_bytes_per_m_tile", spec.partial_bytes_per_m_tile}}},
          {"arguments", std::move(arguments)}};
}

absl::StatusOr<LaunchSpec> LaunchSpecFromJson(const Json& json) {
  JsonFields fields(json, "launch");
  LaunchSpec spec;
  spec.abi_version = fields.Int("abi_version");
  if (fields.status().ok() && spec.abi_version != kLaunchAbiVersion) {
    return absl::FailedPreconditionError(absl::StrCat("launch.abi_version is ", spec.abi_version,
                                                      "; this program launches version ", kLaunchAbiVersion,
                                                      ": export the bundle again"));
  }
  spec.layout_id = fields.Text("layout_id");
  spec.entry = fields.Text("entry");
  spec.tile_m = fields.Int("tile_m", 1);
  spec.tile_n = fields.Int("tile_n", 1);
  spec.grid_n = fields.Int("grid_n", 1);
  spec.split_k = fields.Int("split_k", 1);
  spec.cluster_z = fields.Int("cluster_z", 1);
  spec.block_threads = fields.Int("block_threads", 1);
  spec.dynamic_smem_bytes = fields.Int("dynamic_smem_bytes");
  spec.max_m = fields.Long("max_m");
  JsonFields workspace(fields.Object("workspace"), "launch.workspace");
  if (fields.status().ok()) {
    spec.ticket_bytes_per_m_tile = workspace.Long("ticket_bytes_per_m_tile");
    spec.partial_bytes_per_m_tile = workspace.Long("partial_bytes_per_m_tile");
    QGEMM_RETURN_IF_ERROR(workspace.status());
  }
  for (const Json& argument : fields.Array("arguments")) {
    const std::string where = absl::StrCat("launch.arguments[", spec.arguments.size(), "]");
    QGEMM_ASSIGN_OR_RETURN(KernelArgument read, ArgumentFromJson(argument, where));
    spec.arguments.push_back(std::move(read));
  }
  QGEMM_RETURN_IF_ERROR(fields.status());
  return spec;
}

Json ToJson(const Problem& problem) {
  const KernelSignature& signature = problem.signature;
  const auto word = [](absl::string_view view) { return std::string(view); };
  return {{"n", problem.n},
          {"k", problem.k},
          {"format",
           {{"bits", signature.format.bits},
            {"group_size", signature.format.group_size},
            {"scale", word(ScalarTypeName(signature.format.scale_type))},
            {"zero", word(ZeroPointName(signature.format.zero_point))},
            {"scale_levels", signature.format.scale_levels}}},
          {"act", word(ScalarTypeName(signature.act))},
          {"act_quantization", word(ActivationQuantizationName(signature.quantization))},
          {"out", word(ScalarTypeName(signature.out))},
          {"epilogue",
           {{"bias", signature.epilogue.bias},
            {"activation", word(ActivationName(signature.epilogue.activation))},
            {"gated", signature.epilogue.gated},
            {"residual", signature.epilogue.residual}}}};
}

absl::StatusOr<Problem> ProblemFromJson(const Json& json) {
  JsonFields fields(json, "problem");
  Problem problem;
  problem.n = fields.Long("n", 1);
  problem.k = fields.Long("k", 1);
  problem.signature.act = Parsed(fields, "act", ParseScalarType);
  problem.signature.out = Parsed(fields, "out", ParseScalarType);
  // Bundles of before there was such a thing do not say.
  if (fields.Has("act_quantization")) {
    problem.signature.quantization = Parsed(fields, "act_quantization", ParseActivationQuantization);
  }
  JsonFields format(fields.Object("format"), "problem.format");
  JsonFields epilogue(fields.Object("epilogue"), "problem.epilogue");
  QGEMM_RETURN_IF_ERROR(fields.status());
  WeightFormat& weights = problem.signature.format;
  weights.bits = format.Int("bits", 1);
  weights.group_size = format.Int("group_size");
  weights.scale_type = Parsed(format, "scale", ParseScalarType);
  weights.zero_point = Parsed(format, "zero", ParseZeroPoint);
  weights.scale_levels = format.Int("scale_levels", 1);
  problem.signature.epilogue.bias = epilogue.Bool("bias");
  problem.signature.epilogue.activation = Parsed(epilogue, "activation", ParseActivation);
  problem.signature.epilogue.gated = epilogue.Bool("gated");
  problem.signature.epilogue.residual = epilogue.Bool("residual");
  QGEMM_RETURN_IF_ERROR(format.status());
  QGEMM_RETURN_IF_ERROR(epilogue.status());
  QGEMM_RETURN_IF_ERROR(ValidateProblem(problem));
  return problem;
}

}  // namespace qgemm
