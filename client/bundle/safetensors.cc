#include "client/bundle/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace qgemm {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100 << 20;  // the format's own limit
constexpr size_t kHeaderAlignment = 64;          // so that planes are aligned in a mapped file

absl::Status WriteError(const std::string& path, int error) {
  const std::string message = absl::StrCat("cannot write ", path, ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::FailedPreconditionError(message);
}

absl::Status WriteAt(int fd, absl::string_view bytes, int64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += written;
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> ReadEntry(const std::string& name, const Json& entry, absl::string_view data) {
  const auto damaged = [&name](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("tensor ", name, ": ", what));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    return damaged("it needs dtype, shape and two data_offsets");
  }
  TensorView tensor;
  tensor.dtype = entry["dtype"].get<std::string>();
  uint64_t expected = static_cast<uint64_t>(SafetensorsElementBytes(tensor.dtype));
  if (expected == 0) return damaged(absl::StrCat("dtype ", tensor.dtype, " is not known"));
  for (const Json& size : entry["shape"]) {
    if (!size.is_number_unsigned()) return damaged("a size of its shape is no whole number");
    tensor.shape.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(expected, size.get<uint64_t>(), &expected)) {
      return damaged("its shape is too large");
    }
  }
  const Json& begin = entry["data_offsets"][0];
  const Json& end = entry["data_offsets"][1];
  if (!begin.is_number_unsigned() || !end.is_number_unsigned()) {
    return damaged("its offsets are no whole numbers");
  }
  const uint64_t first = begin.get<uint64_t>(), last = end.get<uint64_t>();
  if (first > last || last > data.size()) {
    return damaged(
        absl::StrCat("its bytes ", first, " to ", last, " are outside of the ", data.size(), " there are"));
  }
  if (last - first != expected) {
    return damaged(absl::StrCat("bytes ", first, " to ", last, " are ", last - first, "; ", tensor.dtype,
                                " [", absl::StrJoin(tensor.shape, ", "), "] needs ", expected));
  }
  tensor.bytes = data.substr(first, expected);
  return tensor;
}

}  // namespace

int SafetensorsElementBytes(absl::string_view dtype) {
  constexpr std::pair<const char*, int> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8},
  };
  for (const auto& [name, bytes] : kTypes) {
    if (dtype == name) return bytes;
  }
  return 0;
}

absl::StatusOr<std::map<std::string, TensorView>> ReadSafetensors(absl::string_view file) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return absl::DataLossError("a safetensors file has at least 8 bytes");
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof(header_bytes)) {
    return absl::DataLossError(
        absl::StrCat("the header's ", header_bytes, " bytes are not there or more than ", kMaxHeaderBytes));
  }
  const absl::string_view header = file.substr(sizeof(header_bytes), header_bytes);
  const absl::string_view data = file.substr(sizeof(header_bytes) + header_bytes);
  const Json json = Json::parse(header.begin(), header.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::DataLossError("the header is no JSON object");
  std::map<std::string, TensorView> tensors;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    QGEMM_ASSIGN_OR_RETURN(TensorView tensor, ReadEntry(name, entry, data));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path) {
  UniqueFd data(open((path + ".data").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!data.valid()) return WriteError(path, errno);
  return SafetensorsWriter(path, std::move(data));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (data_.valid()) unlink(data_path().c_str());
}

absl::Status SafetensorsWriter::Write(const std::string& name, absl::string_view dtype,
                                      const std::vector<int64_t>& shape, absl::string_view bytes) {
  int64_t expected = SafetensorsElementBytes(dtype);
  for (const int64_t size : shape) expected *= size;
  if (expected != static_cast<int64_t>(bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " has ", bytes.size(), " bytes; ", dtype,
                                                   " [", absl::StrJoin(shape, ", "), "] needs ", expected));
  }
  const Entry entry{std::string(dtype), shape, end_, expected};
  const auto [at, is_new] = entries_.emplace(name, entry);
  if (!is_new && (at->second.dtype != entry.dtype || at->second.shape != shape)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, " was ", at->second.dtype, " [",
                                                   absl::StrJoin(at->second.shape, ", "), "], and is now ",
                                                   dtype, " [", absl::StrJoin(shape, ", "), "]"));
  }
  if (is_new) end_ += expected;
  return WriteAt(data_.get(), bytes, at->second.offset, data_path());
}

absl::Status SafetensorsWriter::Finish(const std::map<std::string, std::string>& metadata) {
  Json json;
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const auto& [name, entry] : entries_) {
    json[name] = {{"dtype", entry.dtype},
                  {"shape", entry.shape},
                  {"data_offsets", {entry.offset, entry.offset + entry.bytes}}};
  }
  std::string header = entries_.empty() && metadata.empty() ? "{}" : json.dump();
  const size_t whole = sizeof(uint64_t) + header.size();
  header.append((kHeaderAlignment - whole % kHeaderAlignment) % kHeaderAlignment, ' ');
  const uint64_t length = header.size();
  std::string start(sizeof(length), '\0');
  std::memcpy(start.data(), &length, sizeof(length));
  start += header;

  const UniqueFd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return WriteError(path_, errno);
  QGEMM_RETURN_IF_ERROR(WriteAt(file.get(), start, 0, path_));
  std::string buffer(std::min<int64_t>(end_, 4 << 20), '\0');
  for (int64_t at = 0; at < end_;) {
    const ssize_t count = pread(data_.get(), buffer.data(), buffer.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return WriteError(data_path(), count < 0 ? errno : EIO);
    QGEMM_RETURN_IF_ERROR(WriteAt(file.get(), absl::string_view(buffer).substr(0, count),
                                  static_cast<int64_t>(start.size()) + at, path_));
    at += count;
  }
  if (fsync(file.get()) != 0) return WriteError(path_, errno);
  unlink(data_path().c_str());
  data_.reset();
  return absl::OkStatus();
}

}  // namespace qgemm
