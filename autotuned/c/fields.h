/* The constructor of immutable classes: `Fields` in `_startup.py` is the specification. A first call makes ten of them.
 *
 * Part of `launch/c/module.c`; relies on no other part. */

static PyObject *s_names, *s_defaults, *s_refusal;

/* Whether a keyword is the name of a field that is not given by position; -1 on error. */
static int is_free_field(PyObject *names, Py_ssize_t given, PyObject *name) {
  for (Py_ssize_t i = given; i < PyTuple_GET_SIZE(names); i++) {
    int same = name == PyTuple_GET_ITEM(names, i) ? 1 : PyObject_RichCompareBool(name, PyTuple_GET_ITEM(names, i), Py_EQ);
    if (same) return same;
  }
  return 0;
}

/* cold path. Raise the error that the class makes for these arguments; returns -1. Runs Python code. */
static int refuse_fields(PyObject *self, PyObject *args, PyObject *kwargs) {
  PyObject *given = kwargs ? Py_NewRef(kwargs) : PyDict_New();
  PyObject *error = given ? PyObject_CallMethodObjArgs(self, s_refusal, args, given, NULL) : NULL;
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(error);
  Py_XDECREF(given);
  return -1;
}

/* Set the fields: defaults, then arguments by position and by name. 1, 0 if they do not fit, -1 on error. */
static int fill_fields(PyObject *self, PyObject *names, PyObject *fields, PyObject *args, PyObject *kwargs) {
  Py_ssize_t given = PyTuple_GET_SIZE(args), count = PyTuple_GET_SIZE(names), at = 0;
  Py_ssize_t named = kwargs ? PyDict_GET_SIZE(kwargs) : 0;
  PyObject *name, *value;
  if (given > count) return 0;
  if (given < count) {
    PyObject *defaults = PyObject_GetAttr((PyObject *)Py_TYPE(self), s_defaults);
    int failed = !defaults || PyDict_Update(fields, defaults);
    Py_XDECREF(defaults);
    if (failed) return -1;
  }
  for (Py_ssize_t i = 0; i < given; i++)
    if (PyDict_SetItem(fields, PyTuple_GET_ITEM(names, i), PyTuple_GET_ITEM(args, i))) return -1;
  while (named && PyDict_Next(kwargs, &at, &name, &value)) {
    int free = is_free_field(names, given, name);
    if (free <= 0) return free;
    if (PyDict_SetItem(fields, name, value)) return -1;
  }
  return PyDict_GET_SIZE(fields) == count;
}

static int fields_init(PyObject *self, PyObject *args, PyObject *kwargs) {
  PyObject *names = PyObject_GetAttr((PyObject *)Py_TYPE(self), s_names), *fields = NULL;
  int fits = -1;
  if (names && PyTuple_Check(names)) fields = PyObject_GenericGetDict(self, NULL);
  else if (names) PyErr_SetString(PyExc_TypeError, "_names: expected a tuple");
  if (fields) fits = fill_fields(self, names, fields, args, kwargs);
  Py_XDECREF(fields);
  Py_XDECREF(names);
  return fits > 0 ? 0 : fits ? -1 : refuse_fields(self, args, kwargs);
}

static PyTypeObject FieldsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Fields", .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .tp_init = fields_init};
