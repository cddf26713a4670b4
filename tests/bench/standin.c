/* Stands in for torch and the CUDA driver, so that the launcher alone can be timed in any Python: a tensor type with
 * DLPack's C exchange API, and a launch that does nothing. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "../../autotuned/_launch_abi.h"

typedef struct { PyObject_HEAD DlTensor layout; int64_t shape, stride; } Tensor;
static PyTypeObject TensorType;

static int borrow(void *object, DlTensor *out) { *out = ((Tensor *)object)->layout; return 0; }
static int stream(int32_t type, int32_t id, void **out) { (void)type; (void)id; *out = (void *)0x77; return 0; }
static int launch(const CuLaunchConfig *config, void *function, void **params, void **extra) {
  (void)config; (void)function; (void)params; (void)extra;
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
  return Py_BuildValue("KKKK", (unsigned long long)(uintptr_t)launch, (unsigned long long)(uintptr_t)context,
                       (unsigned long long)(uintptr_t)stream, (unsigned long long)(uintptr_t)set);
}
static PyMethodDef methods[] = {{"driver", driver, METH_NOARGS, "Addresses for `_launch.use_driver`."}, {NULL, NULL, 0, NULL}};
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
