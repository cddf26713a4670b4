/* The launch table and the launch itself in C; `launch/table.py` is the specification.
 *
 * Differences from the Python twin:
 *  1. Words are 64-bit numbers. A tensor whose shape is not in the key contributes only its rank and stride pattern, so
 *     that a batch of varying length is one entry; the Python twin uses exact shapes and strides.
 *  2. Strings and dtypes are compared by identity (the entry keeps them alive): equal strings in two objects are bound
 *     twice, which costs one more miss.
 *  3. NumPy arrays have no signature here: plain callables use the Python twin.
 *  4. The current device is identified by its CUDA context if libcuda is loaded.
 *  5. When the table is full, the older half is evicted at once.
 *
 * One translation unit in several files, so that the compiler sees the whole hot path. The parts are included below,
 * each after those that it relies on. This file has the shared variables and the module.
 *
 * Reference conventions: "new" and "borrowed" as in Python's documentation; a function that may run Python code says
 * so. Entries are reference-counted, because a grid callable or a hook may clear the table that a call is using. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "abi.h"
#include "cpython.h"

#ifdef STEPS_ASIDE
/* ---- an unsupported Python --------------------------------------------------------------------------------------- */

static int refuse(PyObject *module) {
  PyErr_SetString(PyExc_ImportError, STEPS_ASIDE);
  return -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)refuse},
#ifdef Py_mod_gil
                                   {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* else the import would enable the GIL */
#endif
                                   {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "The launch path in C.", 0, NULL, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launch(void) { return PyModuleDef_Init(&definition); }
#else

#define INTERFACE 6    /* as in `_native.py`: version of what Python and C pass each other */
#define MAX_ARGS 128   /* free parameters; a kernel with more uses the Python twin */
#define MAX_SLOTS 256  /* parameters and items of tuples; a call with more is not bound */
#define MAX_DIMS 24    /* two bits per dimension in one word */
#define MAX_WORDS 1024 /* words of one call before its last argument; a call with more is not bound */
#define SPARE_WORDS (2 + 2 * MAX_DIMS) /* most words of one argument, apart from a tuple's items */
#define LIMIT 4096     /* entries of one table, as in the Python twin */
#define VERSIONS 8     /* dicts with versions summed in an unrolled loop: most launches have 6, and one per module */

/* ---- shared by all tables -------------------------------------------------------------------------- */

static PyTypeObject *tensor_type, *parameter_type; /* strong; NULL until torch is imported */
static DlApi *dl;
static CuLaunchKernelEx cu_launch;
static CuCtxGetCurrent cu_context;
static CuGetErrorString cu_error;
static CuMemsetAsync cu_memset;
static CuTensorMapEncodeTiled cu_encode; /* NULL in a driver without tensor maps */
static CuStreamIsCapturing cu_capturing;
static int driver_version; /* 13010 for CUDA 13.1; 0 if unknown */
static int driver_sought;
static int (*stream_of)(int32_t type, int32_t id, void **out); /* torch's, or a test's stand-in */
static int takes_host_memory = 0; /* whether the driver is a stand-in that accepts host memory */
static uint64_t generation = 1; /* grows when anything watched changes */
static PyObject *one; /* strong: Python's cached 1 */
static PyObject *s_run, *s_config, *s_slow_run, *s_still_ours, *s_fallback, *s_grid, *s_warmup, *s_getitem, *s_cache, *s_look_up, *s_proxy, *s_configs, *s_best_config, *s_fn;

/* Called at the first bind, not at import: by then Triton has loaded the library, which takes milliseconds. Signatures
 * made earlier, without a context, were only looked up in empty tables. */
static void find_driver(void) {
  if (driver_sought) return;
  driver_sought = 1;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return;
  cu_launch = (CuLaunchKernelEx)(uintptr_t)dlsym(library, "cuLaunchKernelEx");
  cu_context = (CuCtxGetCurrent)(uintptr_t)dlsym(library, "cuCtxGetCurrent");
  cu_memset = (CuMemsetAsync)(uintptr_t)dlsym(library, "cuMemsetD8Async");
  cu_encode = (CuTensorMapEncodeTiled)(uintptr_t)dlsym(library, "cuTensorMapEncodeTiled");
  cu_capturing = (CuStreamIsCapturing)(uintptr_t)dlsym(library, "cuStreamIsCapturing");
  CuDriverGetVersion ask = (CuDriverGetVersion)(uintptr_t)dlsym(library, "cuDriverGetVersion");
  if (ask) (void)ask(&driver_version);
  cu_error = (CuGetErrorString)(uintptr_t)dlsym(library, "cuGetErrorString");
}

/* ---- the parts ---------------------------------------------------------------------------------------------- */

#include "python_calls.h"
#include "../../c/fields.h"
#include "tensors.h"
#include "descriptors.h"
#include "signature.h"
#include "entries.h"
#include "parameters.h"
#include "guards.h"
#include "table.h"
#include "grids.h"
#include "submit.h"
#include "gridded.h"
#include "tuned.h"
#include "heuristics.h"
#include "../../dropin/c/front.h"
#include "pool.h"

/* ---- the module ------------------------------------------------------------------------------------------------ */

static PyObject *ready(PyObject *module, PyObject *unused) {
  if (find_torch()) return NULL;
  find_driver();
  if (!dl) return PyUnicode_FromString("this torch has no DLPack C exchange API");
  if (!cu_launch) return PyUnicode_FromString("libcuda has no cuLaunchKernelEx, or is not there");
  Py_RETURN_NONE;
}

static PyObject *use_driver(PyObject *module, PyObject *args) {
  unsigned long long launch, context, stream, memset, encode = 0;
  int host = 1;
  if (!PyArg_ParseTuple(args, "KKKK|pKi", &launch, &context, &stream, &memset, &host, &encode, &driver_version)) return NULL;
  cu_encode = (CuTensorMapEncodeTiled)(uintptr_t)encode;
  takes_host_memory = launch && host;
  driver_sought = 1;
  cu_memset = (CuMemsetAsync)(uintptr_t)memset;
  cu_launch = (CuLaunchKernelEx)(uintptr_t)launch;
  cu_context = (CuCtxGetCurrent)(uintptr_t)context;
  stream_of = stream ? (int (*)(int32_t, int32_t, void **))(uintptr_t)stream : dl ? dl->current_stream : NULL;
  Py_RETURN_NONE;
}

/* A hash of all environment variables as C sees them; 1 us for 6 KB. */
static PyObject *environment(PyObject *module, PyObject *unused) {
  const uint64_t prime = UINT64_C(1099511628211);
  uint64_t h = UINT64_C(1469598103934665603), part;
  for (char **variable = environ; variable && *variable; variable++) {
    const char *text = *variable;
    size_t length = strlen(text);
    for (h = (h ^ length) * prime; length; text += sizeof part) {
      size_t size = length < sizeof part ? length : sizeof part;
      part = 0;
      memcpy(&part, text, size);
      h = (h ^ part ^ h >> 29) * prime;
      length -= size;
    }
  }
  return PyLong_FromUnsignedLongLong(h);
}

/* An audit hook, which Python calls at each of its events, and which cannot be removed: 35 ns an event, 120 in Python. */
static PyInterpreterState *hears_in;

static int hear(const char *event, PyObject *args, void *callback) {
  if (strncmp(event, "os.", 3) || (strcmp(event + 3, "putenv") && strcmp(event + 3, "unsetenv"))) return 0;
  if (!args || !PyTuple_Check(args) || !PyTuple_GET_SIZE(args) || PyInterpreterState_Get() != hears_in) return 0;
  PyObject *done = PyObject_CallOneArg(callback, PyTuple_GET_ITEM(args, 0));
  Py_XDECREF(done);
  return done ? 0 : -1;
}

static PyObject *hear_environment(PyObject *module, PyObject *callback) {
  hears_in = PyInterpreterState_Get();
  if (PySys_AddAuditHook(hear, Py_NewRef(callback))) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"hear_environment", hear_environment, METH_O, "Call this with the name of each environment variable that Python is about to set or unset."},
    {"environment", environment, METH_NOARGS, "A hash of all environment variables, as C sees them."},
    {"tensor_words", (PyCFunction)(void (*)(void))tensor_words, METH_FASTCALL, "tensor_words(roles, *tensors): the words of torch tensors as bytes, one role each; None if one cannot be read."},
    {"index_like", index_like, METH_VARARGS, "A replaced `[]` of the first class applies to `Base` too, one of the second to `HeuristicsBase`."},
    {"watch", watch, METH_O, "Validate entries again when this dict or type changes; before Python 3.12, dicts come with `direct`."},
    {"look_up_in", look_up_in, METH_O, "Look up choices of this subclass of dict in C; calls its `_look_up` for a missing key."},
    {"ready", ready, METH_NOARGS, "None if kernels can be launched from C, else why not."},
    {"read_grids", read_grids, METH_O, "Use this function to translate grid callables; see `launch/grid_program.py`."},
    {"pool_take", pool_take, METH_O, "pool_take(x): an unused tensor like those of `torch.empty_like(x)`; None if there is none."},
    {"pool_give", pool_give, METH_VARARGS, "pool_give(x, made): keep the new result of `torch.empty_like(x)`."},
    {"pool_release", pool_release, METH_O, "pool_release(tensor, None or False): drop the tensors in this one's memory, all, or those that refer to others."},
    {"pool_counts", pool_counts, METH_VARARGS, "pool_counts(x, storage): C++ reference counts of a tensor and its storage; None if that is not at this address."},
    {"pool_state", pool_state, METH_NOARGS, "This thread's dispatch state in torch, two numbers, usually 0; None if unknown."},
    {"pool_begin", pool_begin, METH_VARARGS, "pool_begin(bits, bits, modes, deterministic): serve under these bits of the state, while both callables return false."},
    {"use_shim", use_shim, METH_O, "Set whether torch's C shim may be used instead of DLPack, from the next bind on; returns whether it was. For tests."},
    {"use_driver", use_driver, METH_VARARGS, "Addresses of stand-ins for the driver's launch, current context, stream and memset, whether they accept host memory, a stand-in for encoding tensor maps, and the driver's version; for tests."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "The launch path in C.", -1, module_methods,
                                        NULL, NULL, NULL, NULL};

static int intern_names(void) {
  struct { PyObject **where; const char *text; } names[] = {
      {&s_run, "run"}, {&s_fallback, "fallback"}, {&s_config, "config"}, {&s_slow_run, "_slow_run"},
      {&s_still_ours, "_still_ours"}, {&s_grid, "grid"}, {&s_warmup, "warmup"}, {&s_getitem, "__getitem__"},
      {&s_cache, "cache"}, {&s_look_up, "_look_up"}, {&s_names, "_names"}, {&s_defaults, "_defaults"}, {&s_refusal, "_refusal"},
      {&s_proxy, "proxy"}, {&s_configs, "configs"}, {&s_best_config, "best_config"}, {&s_fn, "fn"},
      {&s_base, "base"}, {&s_shape, "shape"}, {&s_strides, "strides"}, {&s_block_shape, "block_shape"},
      {&s_padding, "padding"}, {&s_rounds, "round_f32_to_tf32"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(*names[i].where = PyUnicode_InternFromString(names[i].text))) return -1;
  if (!(one = PyLong_FromLong(1))) return -1;
  PyObject *module = PyImport_ImportModule("enum");
  enum_type = module ? (PyTypeObject *)PyObject_GetAttrString(module, "Enum") : NULL;
  Py_XDECREF(module);
  return enum_type ? 0 : -1;
}

PyMODINIT_FUNC PyInit__launch(void) {
  FieldsType.tp_new = PyBaseObject_Type.tp_new; /* which types in C do not inherit */
  if (intern_names() || PyType_Ready(&TableType) || PyType_Ready(&BaseType) || PyType_Ready(&GriddedType) ||
      PyType_Ready(&HeuristicsType) || PyType_Ready(&FrontType) || PyType_Ready(&FieldsType))
    return NULL;
  if (!(missed = PyErr_NewException("autotuned._launch.Missed", PyExc_BaseException, NULL))) return NULL;
  if (!(own_run = PyObject_GetAttr((PyObject *)&BaseType, s_run))) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (PyModule_AddObjectRef(module, "Table", (PyObject *)&TableType) ||
      PyModule_AddObjectRef(module, "Base", (PyObject *)&BaseType) ||
      PyModule_AddObjectRef(module, "HeuristicsBase", (PyObject *)&HeuristicsType) ||
      PyModule_AddObjectRef(module, "Front", (PyObject *)&FrontType) ||
      PyModule_AddObjectRef(module, "Fields", (PyObject *)&FieldsType) ||
      PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
#endif
