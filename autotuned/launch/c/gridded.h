/* `kernel[grid]` of a tuned kernel and of `heuristics` over one: the object to call next.
 *
 * Part of `module.c`; relies on no other part. */

/* A call with positional, then keyword arguments; names may include `grid` and `warmup`. New reference. */
typedef PyObject *(*Caller)(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid);

/* `kernel[grid]`. Most live for one call, so they are reused from a free list, which owns those in it. They stay
 * tracked by the garbage collector, since `k.mine = k[grid]` is a cycle. */
typedef struct { PyObject_HEAD vectorcallfunc vectorcall; PyObject *kernel, *grid; Caller call; int condemned; } Gridded;
static PyTypeObject GriddedType;
static Gridded *spare[64];
static int spares = 0;

/* hot path. Whether a keyword has this name: lengths mostly differ, and a comparison takes 40 instructions. */
static inline int is_named(PyObject *name, PyObject *text) {
  return name == text || (PyUnicode_GET_LENGTH(name) == PyUnicode_GET_LENGTH(text) && !PyUnicode_Compare(name, text));
}

static PyObject *gridded_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  Gridded *g = (Gridded *)self;
  Py_ssize_t positional = PyVectorcall_NARGS(flags);
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
    if (is_named(PyTuple_GET_ITEM(names, i), s_grid) || is_named(PyTuple_GET_ITEM(names, i), s_warmup)) {
      PyErr_Format(PyExc_TypeError, "kernel[grid](...): got %R again by name", PyTuple_GET_ITEM(names, i));
      return NULL;
    }
  if (!g->kernel) { /* called by a destructor of the same garbage */
    PyErr_SetString(PyExc_ReferenceError, "kernel[grid](...): the kernel was collected");
    return NULL;
  }
  return g->call(g->kernel, args, positional, names, g->grid);
}

/* A class that our `[]` imitates, and its own method: a replaced method, also of a base class, applies to our kernels
 * too. */
typedef struct {
  PyTypeObject *type;   /* strong or NULL */
  PyObject *original;   /* strong */
  unsigned tag;         /* version of the class when its method was last found unreplaced; 0: unknown */
} Indexed;
static Indexed tuner_index, heuristics_index;

/* hot path. Whether `[]` of the class was replaced; -1 on error. */
static int index_is_replaced(Indexed *of) {
  if (!of->type || (of->tag && of->type->tp_version_tag == of->tag)) return 0;
  PyObject *now = PyObject_GetAttr((PyObject *)of->type, s_getitem); /* assigns the class a version */
  if (!now) return -1;
  int replaced = now != of->original;
  Py_DECREF(now);
  of->tag = replaced ? 0 : of->type->tp_version_tag;
  return replaced;
}

/* hot path. New reference. */
static PyObject *gridded(Indexed *of, PyObject *kernel, PyObject *grid, Caller call) {
  Gridded *g;
  int replaced = index_is_replaced(of);
  if (replaced) return replaced < 0 ? NULL : PyObject_CallMethod((PyObject *)of->type, "__getitem__", "OO", kernel, grid);
  if (spares) {
    g = spare[--spares];
  } else {
    if (!(g = PyObject_GC_New(Gridded, &GriddedType))) return NULL;
    g->vectorcall = gridded_call;
    g->kernel = g->grid = NULL;
    g->condemned = 0;
    PyObject_GC_Track((PyObject *)g);
  }
  Py_INCREF(kernel);
  Py_INCREF(grid);
  g->kernel = kernel;
  g->grid = grid;
  g->call = call;
  return (PyObject *)g;
}

static int gridded_traverse(Gridded *g, visitproc visit, void *arg) { Py_VISIT(g->kernel); Py_VISIT(g->grid); return 0; }
static int gridded_clear(Gridded *g) { Py_CLEAR(g->kernel); Py_CLEAR(g->grid); return 0; }

/* The collector will clear it: it must not be reused. */
static void gridded_finalize(PyObject *g) { ((Gridded *)g)->condemned = 1; }

static void gridded_dealloc(Gridded *g) {
  if (!g->condemned && spares < (int)(sizeof spare / sizeof *spare)) {
    PyObject *kernel = g->kernel, *grid = g->grid;
    g->kernel = g->grid = NULL;
    Py_SET_REFCNT((PyObject *)g, 1); /* the free list's */
    spare[spares++] = g;
    Py_XDECREF(kernel); /* last: destructors may take `g` from the list */
    Py_XDECREF(grid);
    return;
  }
  PyObject_GC_UnTrack(g);
  gridded_clear(g);
  PyObject_GC_Del(g);
}

static PyMemberDef gridded_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gridded, vectorcall), READONLY, NULL}, {NULL, 0, 0, 0, NULL}};
static PyTypeObject GriddedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Gridded", .tp_basicsize = sizeof(Gridded),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC, .tp_dealloc = (destructor)gridded_dealloc,
    .tp_traverse = (traverseproc)gridded_traverse, .tp_clear = (inquiry)gridded_clear, .tp_finalize = gridded_finalize,
    .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Gridded, vectorcall), .tp_members = gridded_members};

static int take_index(Indexed *of, PyObject *type) {
  PyObject *method = PyObject_GetAttr(type, s_getitem);
  if (!method) return -1;
  Py_INCREF(type);
  Py_XSETREF(of->type, (PyTypeObject *)type);
  Py_XSETREF(of->original, method);
  of->tag = 0;
  return 0;
}

static PyObject *index_like(PyObject *module, PyObject *args) {
  PyObject *tuner, *heuristics;
  if (!PyArg_ParseTuple(args, "O!O!", &PyType_Type, &tuner, &PyType_Type, &heuristics)) return NULL;
  if (take_index(&tuner_index, tuner) || take_index(&heuristics_index, heuristics)) return NULL;
  Py_RETURN_NONE;
}
