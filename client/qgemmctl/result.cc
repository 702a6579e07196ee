#include "client/qgemmctl/result.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/problem_proto.h"
#include "client/qgemmctl/table.h"
#include "kernels/bucket.h"

namespace qgemm {
namespace {

// Event times come as float milliseconds: digits below a nanosecond are noise of that conversion.
// The ladder's last bucket serves every M above it, too.
std::string BucketText(int m_bucket) {
  return absl::StrCat(m_bucket, m_bucket == BucketLadder().back() ? "+" : "");
}

double ToNanosecond(double us) { return std::round(us * 1e3) / 1e3; }

using Json = nlohmann::ordered_json;

constexpr size_t kShownDigestDigits = 12;

// "bias+silu+gated", in the order in which they are applied; "none".
std::string EpilogueWord(const v1::Epilogue& epilogue) {
  std::vector<absl::string_view> words;
  const bool activates =
      epilogue.activation() != v1::ACTIVATION_UNSPECIFIED && epilogue.activation() != v1::ACTIVATION_NONE;
  if (epilogue.bias()) words.push_back("bias");
  if (activates) words.push_back(ActivationWord(epilogue.activation()));
  if (epilogue.gated()) words.push_back("gated");
  if (epilogue.residual()) words.push_back("residual");
  return words.empty() ? "none" : absl::StrJoin(words, "+");
}

int ScaleLevels(const v1::WeightFormat& format) { return std::max(1, format.scale_levels()); }

std::string FormatWord(const v1::WeightFormat& format) { return absl::StrCat("int", format.bits()); }

std::string Text(absl::string_view view) { return std::string(view); }

std::string Microseconds(double value) { return absl::StrFormat("%.2f", value); }

std::string CountCell(int64_t count) { return count > 0 ? absl::StrCat(count) : ""; }

// The value of a column that all results share, or "" when they differ.
template <typename CellOf>
std::string Shared(const std::vector<Result>& results, const CellOf& cell_of) {
  std::string value = results.empty() ? "" : cell_of(results.front());
  for (const Result& result : results) {
    if (cell_of(result) != value) return "";
  }
  return value;
}

std::string FormatCell(const Result& result) { return SignatureWord(result.problem); }
std::string TargetCell(const Result& result) { return result.pick.has_value() ? result.pick->target() : ""; }

std::string SourceCell(const Result& result) {
  if (!result.pick.has_value()) return "-";
  return absl::StrCat(PickSourceWord(result.pick->source()), result.pick->partial() ? " (partial)" : "",
                      result.stale ? " (stale)" : "");
}

}  // namespace

Result ResultFor(const RequestedProblem& requested, int m_bucket) {
  return {.layers = requested.layers,
          .variant = requested.variant,
          .count = requested.count,
          .problem = ProblemToProto(requested.problem),
          .m_bucket = m_bucket};
}

Json ResultToJson(const Result& result) {
  const v1::Problem& problem = result.problem;
  const auto of_pick = [&](const auto& field) -> Json {
    return result.pick.has_value() ? Json(field(*result.pick)) : Json(nullptr);
  };
  Json json;
  json["layers"] = result.layers;
  json["n"] = problem.n();
  json["k"] = problem.k();
  json["m_bucket"] = result.m_bucket;
  json["format"] = FormatWord(problem.format());
  json["group_size"] = problem.format().group_size();
  json["act"] = Text(ScalarTypeWord(problem.act()));
  json["act_quantization"] = Text(ActivationQuantizationWord(problem.act_quantization()));
  json["out"] = Text(ScalarTypeWord(problem.out()));
  json["zero"] = Text(ZeroPointWord(problem.format().zero_point()));
  json["scale"] = Text(ScalarTypeWord(problem.format().scale_type()));
  json["scale_levels"] = ScaleLevels(problem.format());
  json["epilogue"] = EpilogueWord(problem.epilogue());
  json["target"] = of_pick([](const v1::Pick& pick) { return pick.target(); });
  json["source"] = of_pick([](const v1::Pick& pick) { return Text(PickSourceWord(pick.source())); });
  json["cached"] = result.cached;
  json["stale"] = result.stale;
  json["config"] = of_pick([](const v1::Pick& pick) { return pick.config(); });
  json["split_k"] = of_pick([](const v1::Pick& pick) { return pick.split_k(); });
  json["reduction"] = of_pick([](const v1::Pick& pick) { return Text(ReductionWord(pick.reduction())); });
  json["time_us"] = of_pick([](const v1::Pick& pick) {
    return pick.has_time_us() ? Json(ToNanosecond(pick.time_us())) : Json(nullptr);
  });
  json["predicted_us"] = of_pick([](const v1::Pick& pick) { return ToNanosecond(pick.predicted_us()); });
  json["spread_us"] = of_pick([](const v1::Pick& pick) {
    return pick.has_spread_us() ? Json(ToNanosecond(pick.spread_us())) : Json(nullptr);
  });
  json["confidence"] =
      of_pick([](const v1::Pick& pick) { return pick.confidence() == v1::CONFIDENCE_HIGH ? "high" : "low"; });
  json["kernel_sha256"] = of_pick([](const v1::Pick& pick) { return pick.kernel().sha256(); });
  json["candidates"] = of_pick([](const v1::Pick& pick) { return pick.candidates(); });
  json["verified"] = of_pick([](const v1::Pick& pick) { return pick.verified(); });
  json["timed"] = of_pick([](const v1::Pick& pick) { return pick.timed(); });
  json["rejected"] = of_pick([](const v1::Pick& pick) { return pick.rejected(); });
  if (!result.pick.has_value()) json["error"] = result.error;
  if (result.pick.has_value() && result.pick->has_similar_to()) {
    const v1::SimilarTo& origin = result.pick->similar_to();
    json["similar_to"] = {{"n", origin.n()},
                          {"k", origin.k()},
                          {"m_bucket", origin.m_bucket()},
                          {"distance", origin.distance()},
                          {"value", origin.value()},
                          {"time_us", origin.time_us()}};
  }
  if (result.pick.has_value() && result.pick->partial()) json["partial"] = true;
  return json;
}

std::string ResultsTable(const std::vector<Result>& results) {
  using enum Table::Align;
  Table table({{"layers"},
               {"variant"},
               {"count", kRight},
               {"N", kRight},
               {"K", kRight},
               {"M <=", kRight},
               {"format"},
               {"target"},
               {"source"},
               {"time us", kRight},
               {"spread us", kRight},
               {"predicted us", kRight},
               {"confidence"},
               {"config"},
               {"split", kRight},
               {"reduction"},
               {"cached"},
               {"kernel"}});
  // What all lines have in common stands above them once, so that a line fits a terminal.
  const std::string format = Shared(results, FormatCell);
  const std::string target = Shared(results, TargetCell);
  for (const Result& result : results) {
    std::vector<std::string> cells = {result.layers,
                                      result.variant,
                                      CountCell(result.count),
                                      absl::StrCat(result.problem.n()),
                                      absl::StrCat(result.problem.k()),
                                      BucketText(result.m_bucket),
                                      format.empty() ? FormatCell(result) : "",
                                      target.empty() ? TargetCell(result) : "",
                                      SourceCell(result)};
    if (result.pick.has_value()) {
      const v1::Pick& pick = *result.pick;
      cells.insert(
          cells.end(),
          {pick.has_time_us() ? Microseconds(pick.time_us()) : "-",
           pick.has_spread_us() ? Microseconds(pick.spread_us()) : "-", Microseconds(pick.predicted_us()),
           pick.confidence() == v1::CONFIDENCE_HIGH ? "high" : "low", pick.config(),
           absl::StrCat(pick.split_k()), Text(ReductionWord(pick.reduction())), result.cached ? "yes" : "no",
           pick.kernel().sha256().substr(0, kShownDigestDigits)});
    } else {
      cells.resize(18);
    }
    table.AddRow(std::move(cells));
  }
  return absl::StrCat(format, format.empty() || target.empty() ? "" : ", ",
                      target.empty() ? "" : absl::StrCat("target ", target),
                      format.empty() && target.empty() ? "" : "\n", table.ToString());
}

std::string SignatureWord(const v1::Problem& problem) {
  const v1::WeightFormat& format = problem.format();
  std::string word = absl::StrCat(
      FormatWord(format), "-", format.group_size() == 0 ? "channel" : absl::StrCat("g", format.group_size()),
      " ", ScalarTypeWord(problem.act()));
  // What is as it mostly is goes without saying.
  if (problem.act_quantization() == v1::ACTIVATION_QUANTIZATION_INT8) absl::StrAppend(&word, " as int8");
  if (problem.out() != v1::SCALAR_TYPE_UNSPECIFIED && problem.out() != problem.act()) {
    absl::StrAppend(&word, " out ", ScalarTypeWord(problem.out()));
  }
  if (ScaleLevels(format) == 2) {
    absl::StrAppend(&word, " scale ", ScalarTypeWord(format.scale_type()), "x2");
  } else if (format.scale_type() != v1::SCALAR_TYPE_UNSPECIFIED && format.scale_type() != problem.act()) {
    absl::StrAppend(&word, " scale ", ScalarTypeWord(format.scale_type()));
  }
  if (format.zero_point() == v1::ZERO_POINT_INTEGER || format.zero_point() == v1::ZERO_POINT_FLOAT) {
    absl::StrAppend(&word, " z", ZeroPointWord(format.zero_point()));
  }
  const std::string epilogue = EpilogueWord(problem.epilogue());
  return epilogue == "none" ? word : absl::StrCat(word, " ", epilogue);
}

std::string ResultName(const Result& result) {
  return absl::StrCat(result.problem.n(), "x", result.problem.k(), " ", SignatureWord(result.problem),
                      " M <= ", BucketText(result.m_bucket));
}

}  // namespace qgemm
