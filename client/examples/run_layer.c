/* Loads a method of a bundle, runs one layer on X and compares Y with what is expected:

     run_layer BUNDLE METHOD LAYER M X_FILE Y_FILE [DEVICE]

   X_FILE holds M rows of k 16-bit numbers, Y_FILE M rows of y_columns floats. Exit 0: Y is right. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/qgemm/c_api.h"

static char error[512];

static void check(int code, const char* what) {
  if (code == QGEMM_OK) return;
  fprintf(stderr, "%s: %s (code %d)\n", what, error, code);
  exit(1);
}

static void* read_file(const char* path, size_t bytes) {
  FILE* file = fopen(path, "rb");
  void* data = malloc(bytes);
  if (file == NULL || data == NULL || fread(data, 1, bytes, file) != bytes) {
    fprintf(stderr, "%s: cannot read %zu bytes\n", path, bytes);
    exit(1);
  }
  fclose(file);
  return data;
}

static float bf16_to_float(uint16_t bits) {
  uint32_t word = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &word, sizeof(value));
  return value;
}

static float fp16_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                          : exponent == 0 ? ldexpf((float)fraction, -24)
                                          : ldexpf((float)(fraction + 1024), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

int main(int argc, char** argv) {
  if (argc < 7) {
    fprintf(stderr, "usage: %s BUNDLE METHOD LAYER M X_FILE Y_FILE [DEVICE]\n", argv[0]);
    return 2;
  }
  const int64_t m = atoll(argv[4]);
  qgemm_runtime* runtime = NULL;
  check(qgemm_runtime_open(argv[1], argv[2], argc > 7 ? atoi(argv[7]) : 0, &runtime, error, sizeof(error)),
        "open");
  check(qgemm_runtime_upload_weights(runtime, error, sizeof(error)), "weights");
  const int layer = qgemm_runtime_find_layer(runtime, argv[3]);
  qgemm_layer_info info;
  check(qgemm_runtime_layer_info(runtime, layer, &info, error, sizeof(error)), argv[3]);
  int bucket = 0;
  check(qgemm_runtime_select(runtime, layer, m, &bucket, error, sizeof(error)), "select");
  printf("%s: %s, M = %lld by the kernel for bucket %d\n", info.name, info.problem, (long long)m, bucket);

  const size_t x_bytes = (size_t)(m * info.k) * 2, y_count = (size_t)(m * info.y_columns);
  void* x = read_file(argv[5], x_bytes);
  float* expected = read_file(argv[6], y_count * sizeof(float));
  uint16_t* y = malloc(y_count * 2);
  const int is_bf16 = strstr(info.problem, "out bf16") != NULL;
  if (y == NULL || (!is_bf16 && strstr(info.problem, "out fp16") == NULL)) {
    fprintf(stderr, "%s: this example reads 16-bit results\n", info.problem);
    return 1;
  }

  qgemm_launch launch;
  memset(&launch, 0, sizeof(launch));
  launch.m = m;
  launch.ldx = info.k;
  launch.ldy = info.y_columns;
  check(qgemm_runtime_allocate(runtime, (int64_t)x_bytes, &launch.x, error, sizeof(error)), "X");
  check(qgemm_runtime_allocate(runtime, (int64_t)y_count * 2, &launch.y, error, sizeof(error)), "Y");
  check(qgemm_runtime_allocate_workspace(runtime, m, &launch.workspace, error, sizeof(error)), "workspace");
  check(qgemm_runtime_copy_in(runtime, launch.x, x, (int64_t)x_bytes, error, sizeof(error)), "copy X");
  check(qgemm_runtime_launch(runtime, layer, &launch, error, sizeof(error)), "launch");
  check(qgemm_runtime_copy_out(runtime, y, launch.y, (int64_t)y_count * 2, error, sizeof(error)), "copy Y");
  qgemm_runtime_close(runtime);

  double difference = 0, norm = 0;
  for (size_t i = 0; i < y_count; ++i) {
    const double value = is_bf16 ? bf16_to_float(y[i]) : fp16_to_float(y[i]);
    difference += (value - expected[i]) * (value - expected[i]);
    norm += (double)expected[i] * expected[i];
  }
  const double relative = sqrt(difference / norm), tolerance = is_bf16 ? 3e-3 : 6e-4;
  printf("relative error %.2e, at most %.1e is right: %s\n", relative, tolerance,
         relative <= tolerance ? "OK" : "WRONG");
  free(x);
  free(y);
  free(expected);
  return relative <= tolerance ? 0 : 1;
}
