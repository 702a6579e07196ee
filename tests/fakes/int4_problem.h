#ifndef QGEMM_TESTS_FAKES_INT4_PROBLEM_H_
#define QGEMM_TESTS_FAKES_INT4_PROBLEM_H_

#include <cstdint>

#include "qgemm/v1/types.pb.h"

namespace qgemm {

// The problem that most tests ask for: int4, groups of 128, bf16 activations.
inline v1::Problem Int4Problem(int64_t n, int64_t k) {
  v1::Problem problem;
  problem.set_n(n);
  problem.set_k(k);
  problem.mutable_format()->set_bits(4);
  problem.mutable_format()->set_group_size(128);
  problem.set_act(v1::SCALAR_TYPE_BF16);
  return problem;
}

}  // namespace qgemm

#endif  // QGEMM_TESTS_FAKES_INT4_PROBLEM_H_
