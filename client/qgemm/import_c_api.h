/* Importers of quantized checkpoints, for callers without C++: library qgemm (libqgemm.so).
 *
 * Every function that can fail returns QGEMM_IMPORT_OK or QGEMM_IMPORT_INVALID and, where `error` is not
 * null, writes one sentence of at most `error_size` bytes with its closing zero. On failure nothing is
 * created. No function keeps a pointer of its caller's. Functions may run at the same time in any threads.
 */
#ifndef QGEMM_CLIENT_QGEMM_IMPORT_C_API_H_
#define QGEMM_CLIENT_QGEMM_IMPORT_C_API_H_

#include <stddef.h>
#include <stdint.h>

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): C names, in C. */
#ifdef __cplusplus
extern "C" {
#endif

#define QGEMM_IMPORT_OK 0
#define QGEMM_IMPORT_INVALID 3

/* Element types of tensors. */
enum {
  QGEMM_IMPORT_INT32 = 0,
  QGEMM_IMPORT_INT64 = 1,
  QGEMM_IMPORT_UINT8 = 2,
  QGEMM_IMPORT_INT8 = 3,
  QGEMM_IMPORT_FP16 = 4,
  QGEMM_IMPORT_BF16 = 5,
  QGEMM_IMPORT_FP32 = 6
};

/* A tensor as it stands in a file: little-endian, row-major, without gaps; any alignment. A null pointer to a
 * tensor means that the file has none. */
typedef struct qgemm_import_tensor {
  const char* name; /* stands in error messages */
  int32_t type;
  int32_t rank;
  const int64_t* shape; /* [rank] */
  const void* data;
  int64_t size; /* bytes */
} qgemm_import_tensor;

/* What is subtracted from a code or added to the product. */
enum {
  QGEMM_IMPORT_ZERO_MIDDLE = 0,  /* w = (q - 2^(bits-1)) * s */
  QGEMM_IMPORT_ZERO_INTEGER = 1, /* w = (q - z) * s */
  QGEMM_IMPORT_ZERO_FLOAT = 2    /* w = (q - origin) * s + b */
};

/* The weights of a layer, and its planes: row-major, owned by the handle, null where the form has no such
 * plane. kernels/import/canonical_weights.h has the formulas. */
typedef struct qgemm_import_weights qgemm_import_weights;
typedef struct qgemm_import_view {
  int64_t n;
  int64_t k;
  int64_t group_size;
  int64_t groups;     /* of a row */
  int64_t super_size; /* weights per d and dmin; 0: one level of scales */
  int64_t supers;     /* of a row */
  int32_t bits;
  int32_t scale_type; /* QGEMM_IMPORT_FP16 or QGEMM_IMPORT_BF16 */
  int32_t zero;
  int32_t origin;
  const uint8_t* codes;       /* [n][k] */
  const uint16_t* scales;     /* [n][groups] */
  const uint8_t* zeros;       /* [n][groups] */
  const uint16_t* offsets;    /* [n][groups] */
  const uint16_t* d;          /* [n][supers] */
  const uint16_t* dmin;       /* [n][supers] */
  const int8_t* scale_codes;  /* [n][groups] */
  const uint8_t* zero_codes;  /* [n][groups] */
  const int32_t* permutation; /* [k]: column j is column permutation[j] of the model's weight */
} qgemm_import_view;

void qgemm_import_view_of(const qgemm_import_weights* weights, qgemm_import_view* view);
void qgemm_import_free(qgemm_import_weights* weights);

/* Rows [first_row, first_row + rows) in fp32 to `out` [rows][k], in the column order of `codes`. */
int qgemm_import_dequantize(const qgemm_import_weights* weights, int64_t first_row, int64_t rows, float* out,
                            char* error, size_t error_size);

/* GPTQ, 4 or 8 bits. zeros: 0 detects the convention (symmetric models only), 1 the file stores z - 1, 2 it
 * stores z. */
int qgemm_import_gptq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                      const qgemm_import_tensor* scales, const qgemm_import_tensor* g_idx, int32_t bits,
                      int64_t group_size, int32_t zeros, qgemm_import_weights** out, char* error,
                      size_t error_size);

/* Writes 1 or 2, the convention that `qzeros` shows, or 0 where it shows none. */
int qgemm_import_gptq_zeros(const qgemm_import_tensor* qzeros, int32_t bits, int32_t* zeros, char* error,
                            size_t error_size);

/* AWQ, version "gemm". */
int qgemm_import_awq(const qgemm_import_tensor* qweight, const qgemm_import_tensor* qzeros,
                     const qgemm_import_tensor* scales, int64_t group_size, qgemm_import_weights** out,
                     char* error, size_t error_size);

/* compressed-tensors, "pack-quantized", 4, 5, 6 or 8 bits. encoding: 0 detects, 1 padded words, 2 dense. */
int qgemm_import_compressed_tensors(const qgemm_import_tensor* weight_packed,
                                    const qgemm_import_tensor* weight_shape,
                                    const qgemm_import_tensor* weight_scale,
                                    const qgemm_import_tensor* weight_zero_point,
                                    const qgemm_import_tensor* weight_g_idx, int32_t bits, int64_t group_size,
                                    int32_t encoding, qgemm_import_weights** out, char* error,
                                    size_t error_size);

/* torchao int4, tile-packed; n and k without torchao's padding. */
int qgemm_import_torchao(const qgemm_import_tensor* qdata, const qgemm_import_tensor* scale_and_zero,
                         int64_t n, int64_t k, int64_t group_size, qgemm_import_weights** out, char* error,
                         size_t error_size);

/* GGUF; type is the file's number of the block type: 2 Q4_0, 3 Q4_1, 8 Q8_0, 12 Q4_K, 13 Q5_K, 14 Q6_K. */
int qgemm_import_gguf(const qgemm_import_tensor* data, int32_t type, int64_t n, int64_t k,
                      qgemm_import_weights** out, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#endif /* QGEMM_CLIENT_QGEMM_IMPORT_C_API_H_ */
