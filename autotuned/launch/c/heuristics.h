/* `HeuristicsBase`, the base of `Heuristics`: computes values and calls the wrapped kernel with them.
 *
 * Part of `module.c`, after `tuned.h`. */

#define MAX_VALUES 16 /* values computed in C; more are computed in Python */

typedef struct {
  PyObject_HEAD
  PyObject *fn, *values, *arg_names; /* strong or NULL: as Triton's class sets them */
  PyObject *seen;          /* strong or NULL: the kernel for which `_still_ours` last returned true */
  PyObject *every;         /* strong or NULL: the last call's keyword names, then those of the computed values */
  uint64_t generation;     /* the shared one when `_still_ours` last returned true */
  int direct;              /* whether values are computed in C at all */
  int replaced;            /* whether this instance has its own `run` */
} Heuristics;

/* The functions of one call, copied from the live dict, since a function may change it. */
typedef struct { PyObject *names[MAX_VALUES], *functions[MAX_VALUES]; int count; } Values; /* strong */

static PyTypeObject HeuristicsType;

static int is_ordinary(const Heuristics *h) {
  return h->direct && !h->replaced && h->fn && h->values && PyDict_CheckExact(h->values) && h->arg_names && PyList_CheckExact(h->arg_names);
}

/* 1: compute values in C, 0: in Python, -1: error. May run Python code, which may change `h`. */
static int heuristics_hold(Heuristics *h) {
  if (!is_ordinary(h)) return 0;
  if (look_at_types()) return -1;
  if (h->generation == generation && h->fn == h->seen) return 1;
  uint64_t now = generation;
  PyObject *fn = h->fn;
  Py_INCREF(fn);
  PyObject *ours = PyObject_CallMethodNoArgs((PyObject *)h, s_still_ours);
  int yes = ours ? PyObject_IsTrue(ours) : -1;
  Py_XDECREF(ours);
  h->generation = yes == 1 ? now : 0;
  PyObject *old = h->seen;
  h->seen = fn;
  Py_XDECREF(old);
  return yes == 1 ? h->fn == fn && is_ordinary(h) : yes;
}

static void drop_values(Values *v) {
  for (int i = 0; i < v->count; i++) { Py_DECREF(v->names[i]); Py_DECREF(v->functions[i]); }
}

/* 0 if there are too many. */
static int take_values(const Heuristics *h, Values *v) {
  PyObject *name, *function;
  Py_ssize_t at = 0;
  v->count = 0;
  if (PyDict_GET_SIZE(h->values) > MAX_VALUES) return 0;
  while (PyDict_Next(h->values, &at, &name, &function)) {
    Py_INCREF(name);
    Py_INCREF(function);
    v->names[v->count] = name;
    v->functions[v->count++] = function;
  }
  return 1;
}

static inline PyObject *name_at(PyObject *names, Py_ssize_t given, const Values *v, Py_ssize_t i) {
  return i < given ? PyTuple_GET_ITEM(names, i) : v->names[i - given];
}

/* hot path. Whether `every` has this call's names. Compared by item, since calls with more than 15 keywords make a new
 * tuple each time. */
static int names_fit(const Heuristics *h, PyObject *names, Py_ssize_t given, const Values *v) {
  if (!h->every || PyTuple_GET_SIZE(h->every) != given + v->count) return 0;
  for (Py_ssize_t i = 0; i < given + v->count; i++)
    if (PyTuple_GET_ITEM(h->every, i) != name_at(names, given, v, i)) return 0;
  return 1;
}

/* Names of the keywords, then of the computed values. New reference; NULL with an error set, or without one if the
 * caller passes one of the computed values by keyword. */
static PyObject *every_name(Heuristics *h, PyObject *names, const Values *v) {
  Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0;
  if (!names_fit(h, names, given, v)) {
    PyObject *every = PyTuple_New(given + v->count);
    if (!every) return NULL;
    for (Py_ssize_t i = 0; i < given + v->count; i++) {
      PyObject *name = name_at(names, given, v, i);
      int twice = i >= given && names ? PySequence_Contains(names, name) : 0;
      if (twice) { Py_DECREF(every); return NULL; }
      Py_INCREF(name);
      PyTuple_SET_ITEM(every, i, name);
    }
    Py_XSETREF(h->every, every);
  }
  Py_INCREF(h->every);
  return h->every;
}

/* The caller's arguments by name, with grid and warmup in the order of Triton's `[]`. New reference. */
static PyObject *what_was_passed(const Heuristics *h, PyObject *const *args, Py_ssize_t positional, PyObject *names,
                                 PyObject *grid) {
  PyObject *passed = PyDict_New();
  for (Py_ssize_t i = 0; passed && i < positional; i++)
    if (PyDict_SetItem(passed, PyList_GET_ITEM(h->arg_names, i), args[i])) Py_CLEAR(passed);
  if (passed && (PyDict_SetItem(passed, s_grid, grid) || PyDict_SetItem(passed, s_warmup, Py_False))) Py_CLEAR(passed);
  for (Py_ssize_t i = 0; passed && names && i < PyTuple_GET_SIZE(names); i++)
    if (PyDict_SetItem(passed, PyTuple_GET_ITEM(names, i), args[positional + i])) Py_CLEAR(passed);
  return passed;
}

/* Fill `out` with the computed values (new references); returns their number n, or -1 - n with an error set. Each
 * function gets its own dict, as in Triton. Runs Python code. */
static int compute_values(const Values *v, PyObject *passed, PyObject **out) {
  for (int i = 0; i < v->count; i++) {
    PyObject *own = i + 1 < v->count ? PyDict_Copy(passed) : passed;
    if (own == passed) Py_INCREF(own);
    out[i] = own ? call_one(v->functions[i], own) : NULL;
    Py_XDECREF(own);
    if (!out[i]) return -1 - i;
    if (i + 1 < v->count && PyDict_SetItem(passed, v->names[i], out[i])) return -2 - i;
  }
  return v->count;
}

static PyObject *call_inner(PyObject *fn, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid);

/* hot path. Compute the values and call the kernel with all arguments. New reference. Runs Python code. */
static PyObject *call_heuristics(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names,
                                 PyObject *grid) {
  Heuristics *h = (Heuristics *)self;
  PyObject *all[2 * MAX_ARGS + MAX_VALUES];
  Values v;
  Py_ssize_t given = positional + (names ? PyTuple_GET_SIZE(names) : 0);
  int ours = heuristics_hold(h);
  if (ours < 0) return NULL;
  if (!ours || given > 2 * MAX_ARGS || positional > PyList_GET_SIZE(h->arg_names) || !take_values(h, &v))
    return slow_run(self, args, positional, names, grid, Py_False);
  PyObject *fn = h->fn, *every = every_name(h, names, &v), *launched = NULL;
  if (!every) {
    drop_values(&v);
    return PyErr_Occurred() ? NULL : slow_run(self, args, positional, names, grid, Py_False);
  }
  Py_INCREF(fn); /* a function may replace it */
  memcpy(all, args, sizeof *all * (size_t)given);
  PyObject *passed = what_was_passed(h, args, positional, names, grid);
  int computed = passed ? compute_values(&v, passed, all + given) : -1;
  Py_XDECREF(passed);
  drop_values(&v);
  if (computed >= 0) launched = call_inner(fn, all, positional, every, grid);
  for (int i = 0; i < (computed < 0 ? -1 - computed : computed); i++) Py_DECREF(all[given + i]);
  Py_DECREF(every);
  Py_DECREF(fn);
  return launched;
}

/* Call `fn`, which `_still_ours` has checked to be a tuned kernel or heuristics; these may wrap themselves. */
static PyObject *call_inner(PyObject *fn, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid) {
  if (!PyObject_TypeCheck(fn, &HeuristicsType)) return call_kernel(fn, args, positional, names, grid);
  if (enter_python()) return NULL;
  PyObject *launched = call_heuristics(fn, args, positional, names, grid);
  leave_python();
  return launched;
}

static PyObject *heuristics_subscript(PyObject *self, PyObject *grid) {
  return gridded(&heuristics_index, self, grid, call_heuristics);
}
static int heuristics_setattro(PyObject *self, PyObject *name, PyObject *value) {
  return set_attribute(self, name, value, &((Heuristics *)self)->generation, &((Heuristics *)self)->replaced);
}
static PyObject *heuristics_attach(Heuristics *h, PyObject *direct) {
  int yes = PyObject_IsTrue(direct);
  if (yes < 0) return NULL;
  h->direct = yes;
  Py_RETURN_NONE;
}

static int heuristics_traverse(Heuristics *h, visitproc visit, void *arg) {
  Py_VISIT(h->fn); Py_VISIT(h->values); Py_VISIT(h->arg_names); Py_VISIT(h->seen); Py_VISIT(h->every);
  return 0;
}
static int heuristics_clear(Heuristics *h) {
  Py_CLEAR(h->fn); Py_CLEAR(h->values); Py_CLEAR(h->arg_names); Py_CLEAR(h->seen); Py_CLEAR(h->every);
  return 0;
}
static void heuristics_dealloc(Heuristics *h) {
  PyObject_GC_UnTrack(h);
  heuristics_clear(h);
  Py_TYPE(h)->tp_free((PyObject *)h);
}

/* Only the slot is native: looking up `__getitem__` in the class, as torch's tracer does, finds the Python function. */
static PyObject *heuristics_native(PyObject *type, PyObject *unused) {
  if (!PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_HEAPTYPE)) {
    PyErr_SetString(PyExc_TypeError, "_native: expected a class made in Python");
    return NULL;
  }
  ((PyTypeObject *)type)->tp_as_mapping->mp_subscript = heuristics_subscript;
  Py_RETURN_NONE;
}

static PyMethodDef heuristics_methods[] = {
    {"_native", heuristics_native, METH_NOARGS | METH_CLASS, "Index instances of this class in C."},
    {"_attach", (PyCFunction)heuristics_attach, METH_O, "Whether to compute values in C."},
    {NULL, NULL, 0, NULL}};
static PyMemberDef heuristics_members[] = {
    {"fn", T_OBJECT_EX, offsetof(Heuristics, fn), 0, "The kernel."},
    {"values", T_OBJECT_EX, offsetof(Heuristics, values), 0, "Parameter name to function."},
    {"arg_names", T_OBJECT_EX, offsetof(Heuristics, arg_names), 0, "The kernel's parameters in order."},
    {NULL, 0, 0, 0, NULL}};
static PyTypeObject HeuristicsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.HeuristicsBase",
    .tp_doc = "What makes `heuristics` over a tuned kernel fast.", .tp_basicsize = sizeof(Heuristics),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, .tp_new = PyType_GenericNew,
    .tp_setattro = heuristics_setattro, .tp_dealloc = (destructor)heuristics_dealloc, .tp_traverse = (traverseproc)heuristics_traverse,
    .tp_clear = (inquiry)heuristics_clear, .tp_methods = heuristics_methods, .tp_members = heuristics_members};
