#include "client/qgemmctl/json_output.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace qgemm {
namespace {

using Json = nlohmann::ordered_json;
using v1::KernelArgument;

// "POINTER_ROLE_X" -> "x": what launchers written in other languages compare with.
std::string Word(absl::string_view enumerator, absl::string_view prefix) {
  std::string word(enumerator.substr(prefix.size()));
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return word;
}

Json IntegerToJson(const char* kind, const KernelArgument::Integer& integer) {
  if (integer.has_symbol()) {
    return {{"kind", kind}, {"symbol", Word(KernelArgument::Symbol_Name(integer.symbol()), "SYMBOL_")}};
  }
  return {{"kind", kind}, {"constant", integer.constant()}};
}

Json ArgumentToJson(const KernelArgument& argument) {
  Json json;
  if (argument.has_pointer()) {
    const KernelArgument::Pointer& pointer = argument.pointer();
    json = {{"kind", "pointer"},
            {"role", Word(KernelArgument::PointerRole_Name(pointer.role()), "POINTER_ROLE_")},
            {"read", pointer.read()},
            {"written", pointer.written()},
            {"alignment", pointer.alignment()}};
  } else if (argument.has_tensor_map()) {
    const KernelArgument::TensorMap& map = argument.tensor_map();
    json = {{"kind", "tensor_map"},
            {"role", Word(KernelArgument::PointerRole_Name(map.role()), "POINTER_ROLE_")},
            {"element", Word(KernelArgument::TensorMap::Element_Name(map.element()), "ELEMENT_")},
            {"columns", map.columns()},
            {"rows", map.rows()},
            {"row_pitch_bytes", map.row_pitch_bytes()},
            {"box_columns", map.box_columns()},
            {"box_rows", map.box_rows()},
            {"swizzle_bytes", map.swizzle_bytes()}};
  } else if (argument.has_i64()) {
    json = IntegerToJson("i64", argument.i64());
  } else {
    json = IntegerToJson("i32", argument.i32());
  }
  json["name"] = argument.name();
  return json;
}

}  // namespace

Json KernelInfoToJson(const v1::KernelInfo& kernel) {
  Json json = {{"sha256", kernel.sha256()},
               {"config", kernel.config()},
               {"entry", kernel.entry()},
               {"arch", kernel.arch()},
               {"cubin_bytes", kernel.cubin_bytes()},
               {"registers", kernel.registers()},
               {"static_smem_bytes", kernel.static_smem_bytes()},
               {"spill_store_bytes", kernel.spill_store_bytes()},
               {"spill_load_bytes", kernel.spill_load_bytes()},
               {"stack_bytes", kernel.stack_bytes()},
               {"toolchain", kernel.toolchain()},
               {"abi_version", kernel.abi_version()},
               {"layout_id", kernel.layout_id()},
               {"compile_ms", kernel.compile_ms()},
               {"created_unix_ms", kernel.created_unix_ms()}};
  if (kernel.has_access()) json["access"] = AccessReportToJson(kernel.access());
  return json;
}

Json AccessReportToJson(const v1::AccessReport& report) {
  Json parameters = Json::array();
  for (const v1::AccessReport::Parameter& parameter : report.parameters()) {
    parameters.push_back({{"index", parameter.index()},
                          {"read", parameter.read()},
                          {"written", parameter.written()},
                          {"alignment", parameter.alignment()}});
  }
  return {{"failure", report.failure().empty() ? Json(nullptr) : Json(report.failure())},
          {"parameters", std::move(parameters)}};
}

Json LaunchSpecToJson(const v1::LaunchSpec& spec) {
  Json arguments = Json::array();
  for (const KernelArgument& argument : spec.arguments()) arguments.push_back(ArgumentToJson(argument));
  return {{"abi_version", spec.abi_version()},
          {"layout_id", spec.layout_id()},
          {"entry", spec.entry()},
          {"tile_m", spec.tile_m()},
          {"tile_n", spec.tile_n()},
          {"grid_n", spec.grid_n()},
          {"split_k", spec.split_k()},
          {"cluster_z", std::max(1, spec.cluster_z())},
          {"block_threads", spec.block_threads()},
          {"dynamic_smem_bytes", spec.dynamic_smem_bytes()},
          {"max_m", spec.max_m()},
          {"workspace",
           {{"ticket_bytes_per_m_tile", spec.workspace().ticket_bytes_per_m_tile()},
            {"partial_bytes_per_m_tile", spec.workspace().partial_bytes_per_m_tile()}}},
          {"arguments", std::move(arguments)}};
}

Json ErrorToJson(const absl::Status& status) {
  return {{"error",
           {{"code", absl::StatusCodeToString(status.code())}, {"message", std::string(status.message())}}}};
}

std::string JsonText(const Json& json) {
  return absl::StrCat(json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace), "\n");
}

}  // namespace qgemm
