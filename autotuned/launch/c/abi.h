/* Structures of other libraries' stable ABIs that the launcher reads or fills.
 *
 * An isolated build has neither torch's nor CUDA's headers, so they are declared here, as far as used and with the
 * specifications' names: DLPack 1.x's C exchange API (on torch.Tensor since torch 2.10), the driver's extended launch
 * call (CUDA 11.8 and later), and the functions of torch's C shim that describe a tensor. */
#ifndef AUTOTUNED_LAUNCH_ABI_H
#define AUTOTUNED_LAUNCH_ABI_H
#include <stddef.h>
#include <stdint.h>

/* DLPack */
typedef struct { uint32_t major, minor; } DlVersion;
typedef struct { int32_t type, id; } DlDevice; /* type: 1 CPU, 2 CUDA, 10 ROCm */
typedef struct { uint8_t code, bits; uint16_t lanes; } DlType;
typedef struct {
  void *data;
  DlDevice device;
  int32_t ndim;
  DlType dtype;
  int64_t *shape, *strides; /* in elements; strides may be NULL for a contiguous tensor */
  uint64_t byte_offset;
} DlTensor;
typedef struct DlApi {
  DlVersion version;
  struct DlApi *older;
  void *allocate, *export_managed, *import_managed;
  int (*borrow)(void *object, DlTensor *out);                       /* 0, or -1 with a Python error set */
  int (*current_stream)(int32_t device_type, int32_t id, void **out); /* likewise */
} DlApi;
enum { DL_CPU = 1, DL_CUDA = 2, DL_MAJOR = 1 };

/* torch's C shim, which compiled models call. `tensor` is the address of an `at::Tensor`; returns 0 for success. */
typedef int (*ShimPointer)(const void *tensor, void **out);
typedef int (*ShimSizes)(const void *tensor, const int64_t **out);
typedef int (*ShimInt64)(const void *tensor, int64_t *out);
typedef int (*ShimInt32)(const void *tensor, int32_t *out);
typedef struct {
  ShimPointer data;
  ShimSizes sizes, strides; /* in elements; pointers into the tensor */
  ShimInt64 dim;
  ShimInt32 dtype, device_type, device_index; /* torch's own numbers; the index is -1 for a CPU */
} TorchShim;
enum { TORCH_CPU = 0, TORCH_CUDA = 1 };

/* CUDA driver */
typedef struct { int id; int pad; union { char bytes[64]; int number; unsigned dims[3]; } value; } CuAttribute;
typedef struct {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void *stream;
  CuAttribute *attributes;
  unsigned attribute_count;
} CuLaunchConfig;
typedef int (*CuLaunchKernelEx)(const CuLaunchConfig *, void *function, void **params, void **extra);
typedef int (*CuCtxGetCurrent)(void **context);
typedef int (*CuMemsetAsync)(uint64_t address, unsigned char value, size_t bytes, void *stream);
/* map, element type, rank, address, sizes, strides in bytes, box, element strides, interleave, swizzle, promotion, fill */
typedef int (*CuTensorMapEncodeTiled)(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                                      const uint64_t *steps, const uint32_t *box, const uint32_t *every, int interleave,
                                      int swizzle, int promotion, int fill);
typedef int (*CuStreamIsCapturing)(void *stream, int *status); /* status 0: not capturing */
typedef int (*CuDriverGetVersion)(int *version);
typedef int (*CuGetErrorString)(int error, const char **text);

#endif
