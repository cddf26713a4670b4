/* Stands in for torch and the CUDA driver, so that the launcher alone can be timed in any Python: a tensor type with
 * DLPack's C exchange API, and a launch that does nothing. For `host.py` also a function that valgrind counts in, torch's
 * export of a tensor alone, and a launcher for Triton's own path that does nothing. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../../autotuned/launch/c/abi.h"
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define COUNT_FROM_HERE do { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; } while (0)
#define COUNT_TO_HERE(name) do { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; } while (0)
#else
#define COUNT_FROM_HERE (void)0
#define COUNT_TO_HERE(name) (void)(name)
#endif

typedef struct { PyObject_HEAD DlTensor layout; int64_t shape, stride; } Tensor;
static PyTypeObject TensorType;

static int borrow(void *object, DlTensor *out) { *out = ((Tensor *)object)->layout; return 0; }
static int stream(int32_t type, int32_t id, void **out) { (void)type; (void)id; *out = (void *)0x77; return 0; }
/* A driver's launch does its work in caches that the launcher would like for itself: as much as this of code and data. */
#define BUSY_CODE 48 /* KiB */
#define BUSY_DATA 32
static int busy = 0;
static volatile unsigned char busy_data[BUSY_DATA << 10];
#if defined(__x86_64__)
__attribute__((noinline)) static void busy_code(void) {
  __asm__ volatile(".rept %c0\n .byte 0x66,0x66,0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\n .byte 0x0f,0x1f,0x40,0\n .endr" ::"i"(BUSY_CODE * 64));
}
#else
static void busy_code(void) {}
#endif
static int launch(const CuLaunchConfig *config, void *function, void **params, void **extra) {
  (void)config; (void)function; (void)params; (void)extra;
  if (busy) {
    for (size_t i = 0; i < sizeof busy_data; i += 64) busy_data[i]++;
    busy_code();
  }
  return 0;
}
static int encode(void *map, int type, uint32_t rank, void *address, const uint64_t *sizes, const uint64_t *steps, const uint32_t *box,
                  const uint32_t *every, int interleave, int swizzle, int promotion, int fill) {
  memset(map, 0, 128);
  (void)type; (void)rank; (void)address; (void)sizes; (void)steps; (void)box; (void)every; (void)interleave;
  (void)swizzle; (void)promotion; (void)fill;
  return 0;
}
static int context(void **out) { *out = (void *)0x1000; return 0; }
static int set(uint64_t address, unsigned char value, size_t bytes, void *on) {
  (void)address; (void)value; (void)bytes; (void)on;
  return 0;
}
static DlApi api = {{DL_MAJOR, 1}, NULL, NULL, NULL, NULL, borrow, stream};

static PyObject *new_tensor(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  unsigned long long address;
  long long size;
  (void)keywords;
  if (!PyArg_ParseTuple(args, "KL", &address, &size)) return NULL;
  Tensor *t = (Tensor *)type->tp_alloc(type, 0);
  if (!t) return NULL;
  t->shape = size;
  t->stride = 1;
  t->layout = (DlTensor){(void *)(uintptr_t)address, {DL_CUDA, 0}, 1, {2, 32, 1}, &t->shape, &t->stride, 0};
  return (PyObject *)t;
}

static PyTypeObject TensorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "standin.Tensor", .tp_doc = "Tensor(address, size)",
    .tp_basicsize = sizeof(Tensor), .tp_flags = Py_TPFLAGS_DEFAULT, .tp_new = new_tensor};

static PyObject *driver(PyObject *module, PyObject *unused) {
  (void)module; (void)unused;
  return Py_BuildValue("KKKKiKi", (unsigned long long)(uintptr_t)launch, (unsigned long long)(uintptr_t)context,
                       (unsigned long long)(uintptr_t)stream, (unsigned long long)(uintptr_t)set, 1,
                       (unsigned long long)(uintptr_t)encode, 13010);
}
/* Call a function with an argument; callgrind counts what happens in it, and writes that out under a name. Nothing is
 * counted outside, where programs run five times faster for it. */
static PyObject *counted(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  const char *name = count == 3 ? PyUnicode_AsUTF8(args[2]) : NULL;
  if (!name) return PyErr_Format(PyExc_TypeError, "counted: expected a function, its argument and a name");
  COUNT_FROM_HERE;
  PyObject *result = PyObject_CallOneArg(args[0], args[1]);
  COUNT_TO_HERE(name);
  return result;
}

/* Export each of a list of tensors as the launcher does, and nothing else. */
static PyObject *export_all(PyObject *module, PyObject *tensors) {
  DlTensor out;
  (void)module;
  if (!PyList_Check(tensors) || !PyList_GET_SIZE(tensors)) return PyErr_Format(PyExc_TypeError, "export_all: expected tensors");
  PyObject *capsule = PyObject_GetAttrString((PyObject *)Py_TYPE(PyList_GET_ITEM(tensors, 0)), "__dlpack_c_exchange_api__");
  DlApi *found = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  Py_XDECREF(capsule);
  for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(tensors); i++)
    if (found->borrow(PyList_GET_ITEM(tensors, i), &out)) return NULL;
  if (!found) return NULL;
  Py_RETURN_NONE;
}

static PyObject *set_busy(PyObject *module, PyObject *whether) {
  (void)module;
  busy = PyObject_IsTrue(whether);
  Py_RETURN_NONE;
}

/* The launch alone, as often as a list is long. */
static PyObject *launch_all(PyObject *module, PyObject *list) {
  CuLaunchConfig config = {0};
  (void)module;
  for (Py_ssize_t i = 0; i < PyList_Size(list); i++) launch(&config, NULL, NULL, NULL);
  Py_RETURN_NONE;
}

static PyObject *nothing(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module; (void)args; (void)count;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"driver", driver, METH_NOARGS, "Addresses for `_launch.use_driver`."},
    {"counted", (PyCFunction)(void (*)(void))counted, METH_FASTCALL, "Call a function; its instructions are counted."},
    {"export_all", export_all, METH_O, "Export a list of tensors through DLPack."},
    {"busy", set_busy, METH_O, "Whether a launch uses the processor's caches as a driver does."},
    {"launch_all", launch_all, METH_O, "The launch alone, as often as a list is long."},
    {"nothing", (PyCFunction)(void (*)(void))nothing, METH_FASTCALL, "In the place of Triton's C launcher."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "standin", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_standin(void) {
  PyObject *capsule = PyCapsule_New(&api, "dlpack_exchange_api", NULL), *fields = PyDict_New();
  if (!capsule || !fields || PyDict_SetItemString(fields, "__dlpack_c_exchange_api__", capsule)) return NULL;
  TensorType.tp_dict = fields;
  if (PyType_Ready(&TensorType)) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddObjectRef(module, "Tensor", (PyObject *)&TensorType)) Py_CLEAR(module);
  return module;
}
