/* Reads a tensor's address, shape, strides, dtype and device, by torch's C shim or by DLPack.
 *
 * Part of `module.c`, after `python_calls.h`; relies on the structures in `abi.h`. */

/* The kind of a value, in the low seven bits of its first word. */
enum { TAG_TENSOR = 1, TAG_INT, TAG_BOOL, TAG_FLOAT, TAG_NONE, TAG_OBJECT, TAG_TUPLE, TAG_BLOCK, TAG_MASK = 0x7f };

/* A tensor as read; shape and strides point into it. */
typedef struct {
  void *data;
  int64_t ndim;
  const int64_t *shape, *strides; /* in elements; strides may be NULL for a contiguous tensor */
  uint64_t kind;                  /* its first word without alignment and rank, from `kind_of` */
} View;

/* Tag, dtype and device in one word: DLPack's dtype in the upper half, its device type in the third byte, the index in
 * the fourth, 255 for a CPU. */
static inline uint64_t kind_of(DlType type, DlDevice device) {
  uint32_t dtype;
  memcpy(&dtype, &type, sizeof dtype);
  return TAG_TENSOR | (uint64_t)dtype << 32 | (uint64_t)(uint8_t)(device.type == DL_CPU ? -1 : device.id) << 24 | (uint64_t)(uint8_t)device.type << 16;
}

static inline uint64_t address_of(const View *v) { return (uint64_t)(uintptr_t)v->data; }
static inline int32_t device_type_of(uint64_t kind) { return (uint8_t)(kind >> 16); }

static inline uint64_t element_bytes_of(uint64_t kind) {
  const uint32_t dtype = (uint32_t)(kind >> 32);
  DlType type;
  memcpy(&type, &dtype, sizeof type);
  return (uint64_t)type.bits * type.lanes / 8;
}

/* torch's C shim reads a tensor in 15 ns; DLPack takes 50, as it converts the Python object and takes the GIL again
 * (tests/bench/host.py). The shim needs the address of the `at::Tensor`, assumed right after the object's header. That
 * is checked against `Tensor._cdata` once, and the shim's results against DLPack's for each dtype, at each bind. Until
 * then, or if they differ, DLPack is used. */
static int no_answer(const void *tensor, void **out) { (void)tensor; (void)out; return 1; }
static TorchShim found_shim;                 /* torch's own */
static TorchShim shim = {.data = no_answer}; /* the one in use: torch's, once the address was checked */
enum { SHIM_UNKNOWN, SHIM_AGREES, SHIM_REFUSED };
static int shim_state = SHIM_UNKNOWN;
static uint64_t shim_kind[(TORCH_CUDA + 1) << 8]; /* `kind_of` by torch's numbers, without an index; 0: unknown */

/* Index into `shim_kind` of torch's numbers for dtype (8 bits) and device type; past the end for other devices. */
static inline uint32_t shim_place(int32_t dtype, int32_t type) { return (uint32_t)type << 8 | (uint32_t)dtype; }
enum { SHIM_PLACES = sizeof shim_kind / sizeof *shim_kind };

/* Read a tensor by DLPack; 0 without an error if it has no memory. */
static __attribute__((noinline)) int view_by_dlpack(PyObject *x, View *v) {
  DlTensor t;
  if (dl->borrow(x, &t)) { PyErr_Clear(); return 0; }
  uint64_t address = (uint64_t)(uintptr_t)t.data + t.byte_offset;
  *v = (View){(void *)(uintptr_t)address, t.ndim, t.shape, t.strides, kind_of(t.dtype, t.device)};
  return 1;
}

/* hot path. Read a tensor by the shim; 0 if something is unknown. */
static inline __attribute__((always_inline)) int view_by_shim(PyObject *x, View *v) {
  const void *tensor = (const char *)x + sizeof(PyObject);
  int32_t dtype, type, index;
  if (shim.data(tensor, &v->data)) return 0; /* torch logs why, and Triton raises it */
  int failed = shim.sizes(tensor, &v->shape);
  failed |= shim.strides(tensor, &v->strides);
  failed |= shim.dim(tensor, &v->ndim);
  failed |= shim.dtype(tensor, &dtype);
  failed |= shim.device_type(tensor, &type);
  failed |= shim.device_index(tensor, &index);
  uint32_t place = shim_place(dtype, type), number = (uint32_t)(index | (type - 1)); /* -1 for a CPU, whatever its index */
  if (failed || place >= SHIM_PLACES || !shim_kind[place]) return 0;
  v->kind = shim_kind[place] + (number << 24);
  return 1;
}

/* Read an exact torch.Tensor or Parameter; 0 if it has no memory. */
static int view(PyObject *x, View *v) { return view_by_shim(x, v) || view_by_dlpack(x, v); }

static int same_numbers(const int64_t *one, const int64_t *other, int64_t count) {
  return !count || (one && other && !memcmp(one, other, sizeof *one * (size_t)count));
}

/* Whether the word after a tensor's object header is `_cdata`; clears errors. */
static int tensor_lies_in_object(PyObject *x) {
  PyObject *address = PyObject_GetAttrString(x, "_cdata");
  uint64_t word, said = address ? PyLong_AsUnsignedLongLong(address) : 0;
  memcpy(&word, (const char *)x + sizeof(PyObject), sizeof word);
  Py_XDECREF(address);
  if (PyErr_Occurred()) PyErr_Clear();
  return said && word == said;
}

/* cold path. Use the shim for tensors of this dtype and device type if it agrees with DLPack on this one. */
static void compare_shim(PyObject *x) {
  View by_shim, by_dlpack;
  const void *tensor = (const char *)x + sizeof(PyObject);
  int32_t dtype, type;
  if (shim_state == SHIM_REFUSED || !found_shim.data || !view_by_dlpack(x, &by_dlpack)) return;
  if (shim_state == SHIM_UNKNOWN && !tensor_lies_in_object(x)) { shim_state = SHIM_REFUSED; return; }
  shim = found_shim;
  if (shim.dtype(tensor, &dtype) || shim.device_type(tensor, &type) || shim_place(dtype, type) >= SHIM_PLACES) return;
  uint64_t *kind = &shim_kind[shim_place(dtype, type)], before = *kind;
  *kind = by_dlpack.kind & ~(UINT64_C(255) << 24);
  if (!view_by_shim(x, &by_shim)) { *kind = before; return; }
  int same = by_shim.data == by_dlpack.data && by_shim.ndim == by_dlpack.ndim &&
             same_numbers(by_shim.shape, by_dlpack.shape, by_shim.ndim) &&
             same_numbers(by_shim.strides, by_dlpack.strides, by_shim.ndim) &&
             by_shim.kind == by_dlpack.kind && (!before || before == *kind);
  shim_state = same ? SHIM_AGREES : SHIM_REFUSED;
  if (!same) shim.data = no_answer;
}

/* Find the shim in torch's library, which is already loaded; without it DLPack is used. */
static void find_shim(void) {
  void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  TorchShim found = {0};
  if (!library) return;
  found.data = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_data_ptr");
  found.sizes = (ShimSizes)(uintptr_t)dlsym(library, "aoti_torch_get_sizes");
  found.strides = (ShimSizes)(uintptr_t)dlsym(library, "aoti_torch_get_strides");
  found.dim = (ShimInt64)(uintptr_t)dlsym(library, "aoti_torch_get_dim");
  found.dtype = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_dtype");
  found.device_type = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_type");
  found.device_index = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_index");
  if (found.data && found.sizes && found.strides && found.dim && found.dtype && found.device_type && found.device_index)
    found_shim = found;
}

/* Find torch's tensor types and exchange API, if torch is imported; -1 on error. */
static int find_torch(void) {
  if (tensor_type) return 0;
  PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  PyObject *nn = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.nn.parameter");
  if (!torch || !nn) return 0;
  PyObject *tensor = PyObject_GetAttrString(torch, "Tensor"), *parameter = PyObject_GetAttrString(nn, "Parameter");
  PyObject *capsule = tensor ? PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__") : NULL;
  DlApi *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  Py_XDECREF(capsule);
  while (api && api->version.major > DL_MAJOR) api = api->older;
  if (!parameter || !api || api->version.major != DL_MAJOR || !api->borrow || !api->current_stream) {
    PyErr_Clear(); /* a torch without it: every call takes the Python path */
    Py_XDECREF(tensor);
    Py_XDECREF(parameter);
    return 0;
  }
  dl = api;
  if (!stream_of) stream_of = api->current_stream;
  parameter_type = (PyTypeObject *)parameter;
  tensor_type = (PyTypeObject *)tensor;
  find_shim();
  return 0;
}

static PyObject *use_shim(PyObject *module, PyObject *whether) {
  int before = shim_state, yes = PyObject_IsTrue(whether);
  if (yes < 0) return NULL;
  shim_state = yes ? SHIM_UNKNOWN : SHIM_REFUSED;
  shim.data = no_answer;
  memset(shim_kind, 0, sizeof shim_kind);
  return PyBool_FromLong(before == SHIM_AGREES);
}
