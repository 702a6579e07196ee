#ifndef QGEMM_CLIENT_QGEMM_C_API_H_
#define QGEMM_CLIENT_QGEMM_C_API_H_

#include <stddef.h>
#include <stdint.h>

/* The runtime (client/qgemm/runtime.h) in C, in libqgemm.so: runs the layers of a bundle on a GPU.

   Functions that can fail return a code and write one sentence to `error`, a buffer of `error_size` bytes
   (NULL: no sentence). Pointers into device memory are uint64_t. Launch and select may be called from several
   threads at once, neither waits for the GPU nor allocates, and both may be used while a stream is captured.
 */

/* NOLINTBEGIN(readability-identifier-naming,modernize-use-using): C names, in C. */
#ifdef __cplusplus
extern "C" {
#endif

/* Of this file's structs and functions; a library of another version is refused by whoever loads it. */
#define QGEMM_C_API_VERSION 1
int qgemm_c_api_version(void);

enum qgemm_code {
  QGEMM_OK = 0,
  QGEMM_INVALID_ARGUMENT = 3, /* fix the call; no device of this ordinal */
  QGEMM_NOT_FOUND = 5,
  QGEMM_RESOURCE_EXHAUSTED = 8, /* device memory */
  QGEMM_FAILED_PRECONDITION = 9,
  QGEMM_ABORTED = 10, /* the CUDA context is lost */
  QGEMM_INTERNAL = 13,
  QGEMM_UNAVAILABLE = 14, /* no driver, no device */
  QGEMM_DATA_LOSS = 15    /* the bundle is damaged */
};

typedef struct qgemm_runtime qgemm_runtime; /* one method of a bundle on one device */

/* Scratch memory of launches that run one after the other; the first ticket_bytes must be zero before the
   first launch. Launches that may run at once need one each. */
typedef struct qgemm_workspace {
  uint64_t address;
  int64_t bytes;
  int64_t ticket_bytes;
} qgemm_workspace;

typedef struct qgemm_layer_info {
  const char* name;    /* valid while the runtime is */
  const char* problem; /* "5376x4096 int4-g128-bf16 act bf16 out bf16" */
  int64_t n;
  int64_t k;
  int64_t y_columns;
  int64_t static_m; /* 0: any M */
  int has_weights;  /* in the bundle */
} qgemm_layer_info;

/* Zero what is not needed. Tensors are 16-byte aligned; ld*: elements between rows. */
typedef struct qgemm_launch {
  int64_t m; /* 0: nothing is launched */
  uint64_t x;
  int64_t ldx; /* a multiple of 8, at least k */
  uint64_t y;
  int64_t ldy; /* at least y_columns */
  uint64_t residual;
  int64_t ldr;
  uint64_t weights; /* packed planes, where they are not the bundle's own: all that the format has */
  uint64_t scales;
  uint64_t zeros;
  uint64_t steps;
  uint64_t bias; /* alone: instead of the bundle's */
  qgemm_workspace workspace;
  void* stream;     /* CUstream or cudaStream_t; NULL: the default stream */
  int programmatic; /* programmatic dependent launch */
} qgemm_launch;

/* `bundle`: a directory or a tar file. */
int qgemm_runtime_open(const char* bundle, const char* method, int device_ordinal, qgemm_runtime** out,
                       char* error, size_t error_size);
void qgemm_runtime_close(qgemm_runtime* runtime); /* NULL: nothing */

/* Copies the bundle's weights of this method to the device. */
int qgemm_runtime_upload_weights(qgemm_runtime* runtime, char* error, size_t error_size);

int qgemm_runtime_layer_count(const qgemm_runtime* runtime);
int qgemm_runtime_find_layer(const qgemm_runtime* runtime, const char* name); /* -1: none */
int qgemm_runtime_layer_info(const qgemm_runtime* runtime, int layer, qgemm_layer_info* out, char* error,
                             size_t error_size);

/* The bucket of the kernel that serves m rows. */
int qgemm_runtime_select(const qgemm_runtime* runtime, int layer, int64_t m, int* m_bucket, char* error,
                         size_t error_size);

/* What every layer with up to max_m rows needs; address is 0. */
int qgemm_runtime_workspace_size(const qgemm_runtime* runtime, int64_t max_m, qgemm_workspace* out,
                                 char* error, size_t error_size);
/* The same, allocated and zeroed; freed with the runtime or before. */
int qgemm_runtime_allocate_workspace(qgemm_runtime* runtime, int64_t max_m, qgemm_workspace* out, char* error,
                                     size_t error_size);
/* The same for launches captured on `stream`, which is being captured: freed when the graph and all that was
   made of it are gone, at the latest with the runtime. QGEMM_FAILED_PRECONDITION: the stream is not being
   captured. */
int qgemm_runtime_allocate_graph_workspace(qgemm_runtime* runtime, int64_t max_m, void* stream,
                                           qgemm_workspace* out, char* error, size_t error_size);
void qgemm_runtime_free_workspace(qgemm_runtime* runtime, const qgemm_workspace* workspace);

int qgemm_runtime_launch(qgemm_runtime* runtime, int layer, const qgemm_launch* launch, char* error,
                         size_t error_size);

/* For programs without CUDA code of their own: zeroed device memory, freed with the runtime, and copies that
   wait for the default stream. */
int qgemm_runtime_allocate(qgemm_runtime* runtime, int64_t bytes, uint64_t* out, char* error,
                           size_t error_size);
int qgemm_runtime_copy_in(qgemm_runtime* runtime, uint64_t address, const void* bytes, int64_t count,
                          char* error, size_t error_size);
int qgemm_runtime_copy_out(qgemm_runtime* runtime, void* bytes, uint64_t address, int64_t count, char* error,
                           size_t error_size);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(readability-identifier-naming,modernize-use-using) */

#endif /* QGEMM_CLIENT_QGEMM_C_API_H_ */
