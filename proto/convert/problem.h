#ifndef QGEMM_PROTO_CONVERT_PROBLEM_H_
#define QGEMM_PROTO_CONVERT_PROBLEM_H_

#include "kernels/problem.h"
#include "qgemm/v1/types.pb.h"

namespace qgemm {

// The public message of a problem, with every field set. Pure.
v1::Problem ProblemToProto(const Problem& problem);

}  // namespace qgemm

#endif  // QGEMM_PROTO_CONVERT_PROBLEM_H_
