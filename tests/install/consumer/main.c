/* Uses the installed libqgemm.so: there is no bundle, and it says so. */
#include <qgemm/c_api.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  char error[256];
  qgemm_runtime* runtime = NULL;
  const int code = qgemm_runtime_open("/nonexistent/bundle", "decode", 0, &runtime, error, sizeof(error));
  printf("C interface %d: %d, %s\n", qgemm_c_api_version(), code, error);
  return code == QGEMM_NOT_FOUND && strstr(error, "/nonexistent/bundle") != NULL &&
                 qgemm_c_api_version() == QGEMM_C_API_VERSION
             ? 0
             : 1;
}
