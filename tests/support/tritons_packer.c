/* Triton's own code in C (`backends/nvidia/driver.c`, or a launcher that Triton 3.6 writes, given as TRITONS_DRIVER) over a driver that is not there: what it
 * would hand to cuLaunchKernelEx goes to a function that a test sets, and memory of the host is as good as any. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static int no_attribute;
static void *found(const char *name);
#define dlopen(name, flags) ((void *)&no_attribute)
#define dlsym(library, name) found(name)
#define dlerror() ((const char *)0)
#include TRITONS_DRIVER
#undef dlsym
#undef dlopen
#undef dlerror

typedef CUresult (*Launch)(const CUlaunchConfig *config, CUfunction function, void **params, void **extra);
static Launch launched;
static int (*encoded)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
static int driver_is;

/* Triton looks its functions up once. */
static CUresult launch_now(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  return launched(config, function, params, extra);
}

static CUresult encode_now(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *steps,
                           const uint32_t *box, const uint32_t *every, int interleave, int swizzle, int promotion, int fill) {
  return encoded(map, type, rank, address, sizes, steps, box, every, interleave, swizzle, promotion, fill);
}

static void *found(const char *name) {
  return !strcmp(name, "cuLaunchKernelEx") ? (void *)launch_now : !strcmp(name, "cuTensorMapEncodeTiled") ? (void *)encode_now : (void *)0;
}

__attribute__((visibility("default"))) void launch_by(void *function) { launched = (Launch)function; }
__attribute__((visibility("default"))) void encode_by(void *function, int of) { encoded = function; driver_is = of; }
CUresult cuDriverGetVersion(int *out) { *out = driver_is; return CUDA_SUCCESS; }

CUresult cuCtxGetCurrent(CUcontext *out) { *out = (CUcontext)&no_attribute; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) { *text = error ? "pretended" : "none"; return CUDA_SUCCESS; }
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr address) {
  (void)attribute;
  memcpy(out, &address, sizeof address);
  return CUDA_SUCCESS;
}

/* What no launch needs. */
#define NOT_THERE(name, parameters) CUresult name parameters { return CUDA_ERROR_NOT_SUPPORTED; }
NOT_THERE(cuCtxGetDevice, (CUdevice *out))
NOT_THERE(cuCtxGetLimit, (size_t *out, CUlimit limit))
NOT_THERE(cuCtxSetCurrent, (CUcontext context))
NOT_THERE(cuCtxSetLimit, (CUlimit limit, size_t value))
NOT_THERE(cuDeviceGet, (CUdevice *out, int index))
NOT_THERE(cuDeviceGetAttribute, (int *out, CUdevice_attribute attribute, CUdevice device))
NOT_THERE(cuDevicePrimaryCtxRetain, (CUcontext *out, CUdevice device))
NOT_THERE(cuFuncGetAttribute, (int *out, CUfunction_attribute attribute, CUfunction function))
NOT_THERE(cuFuncSetAttribute, (CUfunction function, CUfunction_attribute attribute, int value))
NOT_THERE(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config))
NOT_THERE(cuModuleGetFunction, (CUfunction *out, CUmodule module, const char *name))
NOT_THERE(cuModuleLoadData, (CUmodule *out, const void *image))
NOT_THERE(cuModuleUnload, (CUmodule module))
NOT_THERE(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *out))
