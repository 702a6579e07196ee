/* Packed weights as numbers again: for programs that multiply on a CPU, and for checks. Library qgemm
 * (libqgemm.so). Thread-safe; keeps no pointer of its caller's. Codes and errors: qgemm/c_api.h. */
#ifndef QGEMM_CLIENT_QGEMM_PACKING_C_API_H_
#define QGEMM_CLIENT_QGEMM_PACKING_C_API_H_

#include <stddef.h>
#include <stdint.h>

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): C names, in C. */
#ifdef __cplusplus
extern "C" {
#endif

/* A plane of packed weights in the host's memory; {NULL, 0} where the format has none. */
typedef struct qgemm_plane {
  const void* bytes;
  int64_t size;
} qgemm_plane;

/* W [n][k] in fp32, as a bundle's planes hold it. `format`: "int4-g128-bf16". QGEMM_INVALID_ARGUMENT names
   the format, or the plane that has another size than it needs. */
int qgemm_dequantize_packed(const char* format, int64_t n, int64_t k, qgemm_plane weights, qgemm_plane scales,
                            qgemm_plane zeros, qgemm_plane steps, float* out, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#endif /* QGEMM_CLIENT_QGEMM_PACKING_C_API_H_ */
