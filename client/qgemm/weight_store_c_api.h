#ifndef QGEMM_CLIENT_QGEMM_WEIGHT_STORE_C_API_H_
#define QGEMM_CLIENT_QGEMM_WEIGHT_STORE_C_API_H_

#include <stddef.h>
#include <stdint.h>

/* The weight store (client/weight_store) in C, in libqgemm.so: writes the tensors of several exported methods
   to one safetensors file. A weight on the GPU that an earlier method wrote is known by a fingerprint made
   there, and is neither copied nor written again.

   Codes and sentences are those of qgemm/c_api.h. Not thread-safe. */

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): C names, in C. */
#ifdef __cplusplus
extern "C" {
#endif

typedef struct qgemm_weight_store qgemm_weight_store;

enum qgemm_weight_kind {
  QGEMM_WEIGHT = 0,     /* the same in every method that has its key; fingerprinted where it is on the GPU */
  QGEMM_CPU_TENSOR = 1, /* the same, in the host's memory: always written */
  QGEMM_LIBRARY_CONSTANT = 2, /* local to one compiled method, whose name is in the key: always written */
  QGEMM_STATE = 3             /* KV caches and other state: always written, may differ each time */
};

typedef struct qgemm_weight_entry {
  const char* key; /* its name in the file */
  int kind;
  const char* dtype; /* of safetensors: "U8", "BF16", ... */
  int rank;
  const int64_t* shape;
  uint64_t address; /* of its bytes, without gaps; on the GPU multiples of 16 are fingerprinted */
  int on_device;    /* address is the device's; else the host's */
} qgemm_weight_entry;

typedef struct qgemm_weight_counts {
  int64_t written;
  int64_t skipped;
  int64_t fingerprints;
  int64_t bytes_written;
  int64_t bytes_skipped;
} qgemm_weight_counts;

/* Writes `path`. device_ordinal: whose memory entries are in; -1: all are in the host's. skip_repeats 0:
   everything is copied and written each time; the file is the same. The first weight on the GPU compiles a
   small kernel: NOT_FOUND where there is no NVRTC. */
int qgemm_weight_store_open(const char* path, int device_ordinal, int skip_repeats, qgemm_weight_store** out,
                            char* error, size_t error_size);
/* INVALID_ARGUMENT: a changed weight under an old key. What writes the entry must have ended. `skipped` may
 * be NULL. */
int qgemm_weight_store_add(qgemm_weight_store* store, const qgemm_weight_entry* entry, int* skipped,
                           char* error, size_t error_size);
int qgemm_weight_store_get_counts(const qgemm_weight_store* store, qgemm_weight_counts* out);
/* The file is there after this; layout_id goes into its metadata. */
int qgemm_weight_store_finish(qgemm_weight_store* store, char* error, size_t error_size);
void qgemm_weight_store_close(qgemm_weight_store* store); /* NULL: nothing; unfinished: no file */

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#endif /* QGEMM_CLIENT_QGEMM_WEIGHT_STORE_C_API_H_ */
