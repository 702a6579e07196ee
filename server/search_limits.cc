#include "server/search_limits.h"

#include <regex.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace qgemm {
namespace {

constexpr size_t kMaxExpression = 256;
constexpr double kMaxBudgetSeconds = 86400;

// glibc's matcher, which does not backtrack without back-references: a client's expression cannot keep the
// daemon busy.
class Expression {
 public:
  static absl::StatusOr<std::shared_ptr<const Expression>> Compile(const std::string& text) {
    if (text.size() > kMaxExpression) {
      return absl::InvalidArgumentError(
          absl::StrCat("only has ", text.size(), " characters; allowed: at most ", kMaxExpression));
    }
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      if (text[i] == '\\' && text[i + 1] >= '1' && text[i + 1] <= '9') {
        return absl::InvalidArgumentError(
            absl::StrCat("only is \"", text, "\"; allowed: an expression without back-references"));
      }
    }
    // No name has a brace, and counted repetitions within each other take gigabytes to compile.
    if (absl::StrContains(text, '{')) {
      return absl::InvalidArgumentError(
          absl::StrCat("only is \"", text, "\"; allowed: an expression without counted repetitions"));
    }
    const std::shared_ptr<Expression> expression(new Expression);
    const int error = regcomp(&expression->regex_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    expression->compiled_ = error == 0;
    if (error == 0) return expression;
    char reason[128];
    regerror(error, &expression->regex_, reason, sizeof(reason));
    return absl::InvalidArgumentError(absl::StrCat(
        "only is \"", text, "\"; allowed: a POSIX extended regular expression (here: ", reason, ")"));
  }
  ~Expression() {
    if (compiled_) regfree(&regex_);
  }
  Expression(const Expression&) = delete;
  Expression& operator=(const Expression&) = delete;

  bool Matches(const std::string& text) const { return regexec(&regex_, text.c_str(), 0, nullptr, 0) == 0; }

 private:
  Expression() = default;
  regex_t regex_{};
  bool compiled_ = false;
};

}  // namespace

std::string SearchLimits::Key() const {
  if (!any()) return "";
  return absl::StrCat("|", max_candidates, "|", budget.count(), "|", only);
}

std::function<bool(const Candidate&)> SearchLimits::Filter() const {
  if (only.empty()) return nullptr;
  const auto expression = Expression::Compile(only);
  QGEMM_CHECK(expression.ok());
  return [expression = *expression](const Candidate& candidate) {
    return expression->Matches(CandidateName(candidate));
  };
}

absl::StatusOr<SearchLimits> SearchLimitsFromProto(const v1::TuneRequest& request) {
  SearchLimits limits;
  limits.only = request.only();
  if (!limits.only.empty()) {
    const auto expression = Expression::Compile(limits.only);
    if (!expression.ok()) return expression.status();
  }
  if (request.max_candidates() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_candidates is ", request.max_candidates(), "; allowed: 0 (no limit) and up"));
  }
  limits.max_candidates = request.max_candidates();
  if (!(request.budget_s() >= 0) || request.budget_s() > kMaxBudgetSeconds) {
    return absl::InvalidArgumentError(
        absl::StrCat("budget_s is ", request.budget_s(), "; allowed: 0 (no limit) .. ", kMaxBudgetSeconds));
  }
  limits.budget = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(request.budget_s()));
  // However small: zero is no limit.
  if (request.budget_s() > 0) limits.budget = std::max(limits.budget, Duration(1));
  return limits;
}

}  // namespace qgemm
