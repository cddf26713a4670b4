/* `kernel[grid]`, of a tuned kernel and of `heuristics` over one: what is called next.
 *
 * Part of `_launch.c`; relies on no other part. */

/* One call with arguments by place, then by name; names may hold `grid` and `warmup`. New reference. */
typedef PyObject *(*Caller)(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid);

/* `kernel[grid]`: what is called next, from a free list since one lives for one call. */
typedef struct { PyObject_HEAD vectorcallfunc vectorcall; PyObject *kernel, *grid; Caller call; } Gridded;
static PyTypeObject GriddedType;
static Gridded *spare[64];
static int spares = 0;

static PyObject *gridded_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  Gridded *g = (Gridded *)self;
  Py_ssize_t positional = PyVectorcall_NARGS(flags);
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), s_grid) == 0 || PyUnicode_Compare(PyTuple_GET_ITEM(names, i), s_warmup) == 0) {
      PyErr_Format(PyExc_TypeError, "kernel[grid](...): got %R again by name", PyTuple_GET_ITEM(names, i));
      return NULL;
    }
  return g->call(g->kernel, args, positional, names, g->grid);
}

/* The class whose `[]` ours stands for, and its own method: who replaces that method means our kernels too. */
static PyTypeObject *indexed_type;
static PyObject *indexed_original; /* strong */
static unsigned indexed_tag;       /* version of the class when its method was last seen to be its own */

/* hot path. Whether `[]` of the class was replaced; -1 on error. */
static int index_is_replaced(void) {
  if (!indexed_type || (indexed_tag && indexed_type->tp_version_tag == indexed_tag)) return 0;
  PyObject *now = PyObject_GetAttr((PyObject *)indexed_type, s_getitem); /* a look-up gives the class a version */
  if (!now) return -1;
  int replaced = now != indexed_original;
  Py_DECREF(now);
  indexed_tag = replaced ? 0 : indexed_type->tp_version_tag;
  return replaced;
}

static PyObject *gridded(PyObject *kernel, PyObject *grid, Caller call) {
  Gridded *g;
  int replaced = index_is_replaced();
  if (replaced) return replaced < 0 ? NULL : PyObject_CallMethod((PyObject *)indexed_type, "__getitem__", "OO", kernel, grid);
  if (spares) {
    g = spare[--spares];
    (void)PyObject_Init((PyObject *)g, &GriddedType);
  } else if (!(g = PyObject_New(Gridded, &GriddedType))) {
    return NULL;
  }
  g->vectorcall = gridded_call;
  Py_INCREF(kernel);
  Py_INCREF(grid);
  g->kernel = kernel;
  g->grid = grid;
  g->call = call;
  return (PyObject *)g;
}

static void gridded_dealloc(Gridded *g) {
  Py_CLEAR(g->kernel);
  Py_CLEAR(g->grid);
  if (spares < (int)(sizeof spare / sizeof *spare)) spare[spares++] = g;
  else PyObject_Free(g);
}

static PyMemberDef gridded_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gridded, vectorcall), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};
static PyTypeObject GriddedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Gridded", .tp_basicsize = sizeof(Gridded),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, .tp_dealloc = (destructor)gridded_dealloc,
    .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Gridded, vectorcall), .tp_members = gridded_members};

static PyObject *index_like(PyObject *module, PyObject *type) {
  (void)module;
  if (!PyType_Check(type)) return PyErr_Format(PyExc_TypeError, "index_like: expected a class, got %R", type);
  PyObject *method = PyObject_GetAttr(type, s_getitem);
  if (!method) return NULL;
  Py_INCREF(type);
  Py_XSETREF(indexed_type, (PyTypeObject *)type);
  Py_XSETREF(indexed_original, method);
  indexed_tag = 0;
  Py_RETURN_NONE;
}
