#ifndef QGEMM_CLIENT_BUNDLE_JSON_FIELDS_H_
#define QGEMM_CLIENT_BUNDLE_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace qgemm {

// Reads an object's fields and remembers the first that is not as it should be, so that a reader checks once
// at its end. `where` names the object in messages.
class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  JsonFields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json_.is_object()) Fail("", "an object");
  }

  int64_t Integer(const char* name, int64_t low, int64_t high) {
    const Json* value = Find(name);
    if (value == nullptr) return low;
    if (!value->is_number_integer() || value->get<int64_t>() < low || value->get<int64_t>() > high ||
        (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
      Fail(name, absl::StrCat("a whole number from ", low, " to ", high));
      return low;
    }
    return value->get<int64_t>();
  }
  int Int(const char* name, int low = 0) { return static_cast<int>(Integer(name, low, INT32_MAX)); }
  int64_t Long(const char* name, int64_t low = 0) { return Integer(name, low, INT64_MAX); }
  double Number(const char* name) {
    const Json* value = Find(name);
    if (value != nullptr && value->is_number()) return value->get<double>();
    if (value != nullptr) Fail(name, "a number");
    return 0;
  }
  bool Bool(const char* name) {
    const Json* value = Find(name);
    if (value != nullptr && value->is_boolean()) return value->get<bool>();
    if (value != nullptr) Fail(name, "true or false");
    return false;
  }
  std::string Text(const char* name) {
    const Json* value = Find(name);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    if (value != nullptr) Fail(name, "text");
    return "";
  }
  const Json& Array(const char* name) {
    static const Json* const empty = new Json(Json::array());
    const Json* value = Find(name);
    if (value != nullptr && value->is_array()) return *value;
    if (value != nullptr) Fail(name, "an array");
    return *empty;
  }
  const Json& Object(const char* name) {
    static const Json* const empty = new Json(Json::object());
    const Json* value = Find(name);
    if (value != nullptr && value->is_object()) return *value;
    if (value != nullptr) Fail(name, "an object");
    return *empty;
  }
  bool Has(const char* name) const {
    return json_.is_object() && json_.contains(name) && !json_[name].is_null();
  }
  void Fail(const char* name, const std::string& allowed) {
    if (status_.ok()) {
      status_ =
          absl::DataLossError(absl::StrCat(where_, *name != '\0' ? "." : "", name, " must be ", allowed));
    }
  }

  const std::string& where() const { return where_; }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) {
    if (Has(name)) return &json_[name];
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(where_, ".", name, " is missing"));
    return nullptr;
  }

  const Json& json_;
  const std::string where_;
  absl::Status status_;
};

}  // namespace qgemm

#endif  // QGEMM_CLIENT_BUNDLE_JSON_FIELDS_H_
