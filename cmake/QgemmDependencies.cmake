# Every third-party library the build uses, from the distribution's packages. Nothing is vendored or downloaded.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)
find_package(RocksDB CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(spdlog CONFIG REQUIRED)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(CLI11 CONFIG REQUIRED)
find_package(tomlplusplus CONFIG REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
if(QGEMM_BUILD_TESTS)
  find_package(GTest CONFIG REQUIRED)
endif()
if(QGEMM_BUILD_BENCH)
  find_package(benchmark CONFIG REQUIRED)
endif()

# CUDA headers only (cuda.h, nvrtc.h): the libraries are opened with dlopen at run time, so that every
# binary starts on a machine without a GPU or a toolkit.
find_path(QGEMM_CUDA_INCLUDE_DIR cuda.h
  HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include
  DOC "Folder of cuda.h and nvrtc.h: the CUDA 13 toolkit's or the pip package's")
if(NOT QGEMM_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h not found: install the CUDA 13 toolkit, or set CUDA_HOME or "
    "-DQGEMM_CUDA_INCLUDE_DIR to the folder that holds cuda.h and nvrtc.h")
endif()
