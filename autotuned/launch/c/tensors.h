/* What a tensor is: its address, shape, strides, dtype and device, by torch's C shim or by DLPack.
 *
 * Part of `module.c`, after `python_calls.h`; relies on the structures in `abi.h`. */

/* What a tensor is; shape and strides are the tensor's own and live as long as it does. */
typedef struct {
  uint64_t address;
  int64_t ndim;
  const int64_t *shape, *strides; /* in elements; strides may be NULL for a contiguous tensor */
  DlType dtype;
  DlDevice device;
} View;

/* torch's C shim tells what a tensor is in 15 ns, its DLPack export in 50, which converts the Python object first, with
 * the lock of the interpreter taken anew (tests/bench/host.py). The shim wants the `at::Tensor` in the object. That it
 * lies right behind the object's header is compared with `Tensor._cdata`, once; and of each dtype the shim's answers with
 * those of DLPack, whenever something is bound. What does not agree, or is not known yet, goes through DLPack. */
static TorchShim shim;
enum { SHIM_UNKNOWN, SHIM_AGREES, SHIM_REFUSED };
static int shim_state = SHIM_UNKNOWN;
static DlType shim_dtype[64]; /* by torch's number; bits are 0 until DLPack has told */

/* A tensor through DLPack; 0, and no error set, if it has no memory. */
static __attribute__((noinline)) int view_by_dlpack(PyObject *x, View *v) {
  DlTensor t;
  if (dl->borrow(x, &t)) { PyErr_Clear(); return 0; }
  *v = (View){(uint64_t)(uintptr_t)t.data + t.byte_offset, t.ndim, t.shape, t.strides, t.dtype, t.device};
  return 1;
}

/* hot path. A tensor through the shim; 0 if it does not know all of it. */
static inline int view_by_shim(PyObject *x, View *v) {
  const void *tensor = (const char *)x + sizeof(PyObject);
  void *data, *sizes, *strides;
  int32_t dtype, type, index;
  if (shim.data(tensor, &data) | shim.sizes(tensor, &sizes)) return 0; /* torch logs why, and Triton will raise it */
  if (shim.strides(tensor, &strides) | shim.dim(tensor, &v->ndim) | shim.dtype(tensor, &dtype)) return 0;
  if (shim.device_type(tensor, &type) | shim.device_index(tensor, &index)) return 0;
  if ((uint32_t)dtype >= 64 || !shim_dtype[dtype].bits || (type != TORCH_CUDA && type != TORCH_CPU)) return 0;
  v->address = (uint64_t)(uintptr_t)data;
  v->shape = sizes;
  v->strides = strides;
  v->dtype = shim_dtype[dtype];
  v->device = type == TORCH_CUDA ? (DlDevice){DL_CUDA, index} : (DlDevice){DL_CPU, 0};
  return 1;
}

/* hot path. What an exact torch.Tensor or Parameter is; 0 if it has no memory. */
static inline int view(PyObject *x, View *v) {
  return (shim_state == SHIM_AGREES && view_by_shim(x, v)) || view_by_dlpack(x, v);
}

static int same_numbers(const int64_t *one, const int64_t *other, int64_t count) {
  return !count || (one && other && !memcmp(one, other, sizeof *one * (size_t)count));
}

/* Whether the word behind the header of a tensor is what torch says it is; clears errors. */
static int tensor_lies_in_object(PyObject *x) {
  PyObject *address = PyObject_GetAttrString(x, "_cdata");
  uint64_t word, said = address ? PyLong_AsUnsignedLongLong(address) : 0;
  memcpy(&word, (const char *)x + sizeof(PyObject), sizeof word);
  Py_XDECREF(address);
  if (PyErr_Occurred()) PyErr_Clear();
  return said && word == said;
}

/* cold path. Let the shim be used for tensors of this one's dtype, if it says of this one what DLPack says. */
static void compare_shim(PyObject *x) {
  View by_shim, by_dlpack;
  int32_t dtype;
  if (shim_state == SHIM_REFUSED || !shim.data || !view_by_dlpack(x, &by_dlpack)) return;
  if (shim_state == SHIM_UNKNOWN && !tensor_lies_in_object(x)) { shim_state = SHIM_REFUSED; return; }
  if (shim.dtype((const char *)x + sizeof(PyObject), &dtype) || (uint32_t)dtype >= 64) return;
  DlType before = shim_dtype[dtype];
  shim_dtype[dtype] = by_dlpack.dtype;
  if (!view_by_shim(x, &by_shim)) { shim_dtype[dtype] = before; return; }
  int same = by_shim.address == by_dlpack.address && by_shim.ndim == by_dlpack.ndim &&
             same_numbers(by_shim.shape, by_dlpack.shape, by_shim.ndim) &&
             same_numbers(by_shim.strides, by_dlpack.strides, by_shim.ndim) &&
             by_shim.device.type == by_dlpack.device.type && by_shim.device.id == by_dlpack.device.id &&
             (!before.bits || !memcmp(&before, &by_dlpack.dtype, sizeof before));
  shim_state = same ? SHIM_AGREES : SHIM_REFUSED;
}


/* torch's library is loaded already; without these functions DLPack serves. */
static void find_shim(void) {
  void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  TorchShim found = {0};
  if (!library) return;
  found.data = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_data_ptr");
  found.sizes = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_sizes");
  found.strides = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_strides");
  found.dim = (ShimInt64)(uintptr_t)dlsym(library, "aoti_torch_get_dim");
  found.dtype = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_dtype");
  found.device_type = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_type");
  found.device_index = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_index");
  if (found.data && found.sizes && found.strides && found.dim && found.dtype && found.device_type && found.device_index)
    shim = found;
}

/* Find torch's tensor type and its exchange API, once torch is imported; -1 on error, 0 also if there is none yet. */
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
    PyErr_Clear(); /* a torch without it: everything takes the safe path */
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
  (void)module;
  int before = shim_state, yes = PyObject_IsTrue(whether);
  if (yes < 0) return NULL;
  shim_state = yes ? SHIM_UNKNOWN : SHIM_REFUSED;
  memset(shim_dtype, 0, sizeof shim_dtype);
  return PyBool_FromLong(before == SHIM_AGREES);
}
