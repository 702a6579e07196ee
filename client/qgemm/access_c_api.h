#ifndef QGEMM_CLIENT_QGEMM_ACCESS_C_API_H_
#define QGEMM_CLIENT_QGEMM_ACCESS_C_API_H_

#include <stdint.h>

/* Which of a kernel's pointer parameters are read and written (kernels/access_report), in C, in libqgemm.so.
   A kernel's PTX is analysed once per call signature: the kernel and, of each argument, its dtype and whether
   its address is a multiple of 16, or its value, or that it is symbolic. Thread-safe. */

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): C names, in C. */
#ifdef __cplusplus
extern "C" {
#endif

enum qgemm_argument_kind {
  QGEMM_POINTER_ARGUMENT = 0,  /* value: the address; a tensor map: that of its tensor */
  QGEMM_SCALAR_ARGUMENT = 1,   /* value: its bits */
  QGEMM_SYMBOLIC_ARGUMENT = 2, /* any symbolic size is like any other */
  QGEMM_OPAQUE_ARGUMENT = 3    /* anything else: the call is analysed every time */
};

typedef struct qgemm_call_argument {
  int32_t kind;
  int32_t dtype; /* the caller's numbering */
  uint64_t value;
} qgemm_call_argument;

typedef struct qgemm_call {
  const char* kernel; /* names it uniquely, such as its SHA-256 */
  const char* entry;  /* the function of the PTX */
  const qgemm_call_argument* arguments;
  int32_t argument_count; /* as many as the kernel has parameters */
  /* Called where the signature has to be analysed: the PTX, ended by 0 and valid until the next call. NULL:
     there is none, and the analysis fails. */
  const char* (*ptx)(void* context);
  void* context;
} qgemm_call;

#define QGEMM_MOST_PARAMETERS 32

typedef struct qgemm_parameter_access {
  int32_t index; /* of the kernel's parameters, from 0 */
  int32_t read;
  int32_t written;
  int32_t alignment; /* bytes of the widest access; 0: never accessed */
} qgemm_parameter_access;

/* The caller's own copy. */
typedef struct qgemm_access_report {
  int32_t failed; /* the analysis; then every parameter below is read and written, and nothing was kept */
  int32_t count;
  qgemm_parameter_access parameters[QGEMM_MOST_PARAMETERS];
  char failure[256]; /* one sentence */
} qgemm_access_report;

typedef struct qgemm_access_counts {
  int64_t analyses;
  int64_t failures; /* of them failed */
  int64_t repeats;  /* answered without */
} qgemm_access_counts;

typedef struct qgemm_access_memo qgemm_access_memo;

qgemm_access_memo* qgemm_access_memo_create(void);
void qgemm_access_memo_free(qgemm_access_memo* memo); /* NULL: nothing */

/* QGEMM_OK of qgemm/c_api.h also where the analysis failed; QGEMM_INVALID_ARGUMENT: a NULL, a kind that there
   is not, or more parameters than a report holds. */
int qgemm_access_memo_get(qgemm_access_memo* memo, const qgemm_call* call, qgemm_access_report* out);
void qgemm_access_memo_get_counts(const qgemm_access_memo* memo, qgemm_access_counts* out);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#endif /* QGEMM_CLIENT_QGEMM_ACCESS_C_API_H_ */
