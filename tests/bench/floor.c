/* The floor of a launch: the driver's call in a loop, with as many arguments as the kernel takes; and of a memset. */
#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include "../../autotuned/launch/c/abi.h"

static double us_of(struct timespec start, struct timespec end, int calls) {
  return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / calls / 1e3;
}

double floor_us(void *function, void *stream, unsigned long long *values, int count, unsigned grid, unsigned threads,
                unsigned shared_bytes, int calls) {
  static CuLaunchKernelEx launch;
  void *params[256];
  struct timespec start, end;
  if (!launch) launch = (CuLaunchKernelEx)(uintptr_t)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuLaunchKernelEx");
  for (int i = 0; i < count; i++) params[i] = &values[i];
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < calls; i++) {
    CuLaunchConfig config;
    memset(&config, 0, sizeof config);
    config.grid_x = grid;
    config.grid_y = config.grid_z = config.block_y = config.block_z = 1;
    config.block_x = threads;
    config.shared_bytes = shared_bytes;
    config.stream = stream;
    if (launch(&config, function, params, 0)) return -1.0;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return us_of(start, end, calls);
}

double memset_us(void *stream, unsigned long long address, unsigned long long bytes, int calls) {
  static CuMemsetAsync set;
  struct timespec start, end;
  if (!set) set = (CuMemsetAsync)(uintptr_t)dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemsetD8Async");
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (int i = 0; i < calls; i++) if (set(address, 0, bytes, stream)) return -1.0;
  clock_gettime(CLOCK_MONOTONIC, &end);
  return us_of(start, end, calls);
}
