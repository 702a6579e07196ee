// The manifests that are written against the JSON schema that describes them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/unit/client/sample_bundle.h"

namespace qgemm {
namespace {

using Json = nlohmann::json;

bool HasType(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

// The keywords that manifest.schema.json uses; a property that the schema does not name is an error, too.
class Schema {
 public:
  explicit Schema(Json root) : root_(std::move(root)) {}

  std::string Check(const std::string& definition, const Json& value) const {
    return Check(root_["$defs"][definition], value, definition);
  }

 private:
  std::string Check(const Json& schema, const Json& value, const std::string& at) const {
    if (schema.contains("$ref")) {
      const std::string name = schema["$ref"].get<std::string>().substr(std::string("#/$defs/").size());
      std::string error = Check(root_["$defs"].at(name), value, at);
      if (!error.empty()) return error;
    }
    if (schema.contains("oneOf")) {
      int fitting = 0;
      std::string errors;
      for (const Json& choice : schema["oneOf"]) {
        const std::string error = Check(choice, value, at);
        fitting += error.empty();
        errors += error + "; ";
      }
      if (fitting != 1) return errors;
    }
    if (schema.contains("const") && value != schema["const"]) return at + " is not the constant";
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end()) {
      return at + " is none of the values: " + value.dump();
    }
    if (schema.contains("type")) {
      bool fits = false;
      const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      for (const Json& type : types) fits |= HasType(value, type);
      if (!fits) return at + " has another type";
    }
    if (schema.contains("minimum") && value.is_number() && value < schema["minimum"])
      return at + " is too small";
    if (schema.contains("pattern") && value.is_string() &&
        !std::regex_search(value.get<std::string>(), std::regex(schema["pattern"].get<std::string>()))) {
      return at + " does not fit its pattern";
    }
    for (const Json& key : schema.value("required", Json::array())) {
      if (!value.contains(key.get<std::string>())) return at + "." + key.get<std::string>() + " is missing";
    }
    if (schema.contains("properties") && value.is_object()) {
      for (const auto& [key, part] : value.items()) {
        if (!schema["properties"].contains(key)) return at + "." + key + " is not in the schema";
        const std::string error = Check(schema["properties"][key], part, at + "." + key);
        if (!error.empty()) return error;
      }
    }
    if (schema.contains("items") && value.is_array()) {
      for (const Json& item : value) {
        const std::string error = Check(schema["items"], item, at + "[]");
        if (!error.empty()) return error;
      }
    }
    return "";
  }

  const Json root_;
};

class ManifestSchema : public ::testing::Test {
 protected:
  ManifestSchema()
      : schema_(Json::parse(std::ifstream(QGEMM_SOURCE_DIR "/client/bundle/manifest.schema.json"))) {
    WriteSampleBundle(folder_ / "b");
  }
  Json Read(const std::string& name) { return Json::parse(std::ifstream(folder_ / ("b/" + name))); }

  const Schema schema_;
  TemporaryFolder folder_;
};

TEST_F(ManifestSchema, DescribesWhatIsWritten) {
  EXPECT_EQ(schema_.Check("manifest", Read("manifest.json")), "");
  EXPECT_EQ(schema_.Check("method", Read("methods/decode.json")), "");
  EXPECT_EQ(schema_.Check("method", Read("methods/prefill.json")), "");
}

TEST_F(ManifestSchema, RefusesWhatIsNotWritten) {
  Json manifest = Read("manifest.json");
  manifest["kernels"][0]["sha256"] = "abc";
  EXPECT_NE(schema_.Check("manifest", manifest), "");
  Json method = Read("methods/decode.json");
  method["layers"][0]["picks"][0].erase("launch");
  EXPECT_NE(schema_.Check("method", method), "");
  EXPECT_NE(schema_.Check("method", manifest), "");
}

}  // namespace
}  // namespace qgemm
