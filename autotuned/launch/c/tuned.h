/* `Base`, the base of `Tuned`: a call of a kernel, from its arguments to the launch or to the Python path.
 *
 * Part of `module.c`, after `submit.h` and `gridded.h`. */

typedef struct Best { unsigned long thread; PyObject *config, *nargs; struct Best *next; } Best;

typedef struct {
  PyObject_HEAD
  Table *table;          /* strong or NULL: then every call takes the Python path */
  PyObject *configs;     /* strong: the live list */
  PyObject *theirs, *their_fn; /* strong or NULL: the other tuner that it launches for, and that one's kernel */
  PyObject *seen;        /* strong: the list that the table was built for, and its length */
  Py_ssize_t seen_length;
  uint64_t generation;   /* the shared one when `_still_ours` last returned true */
  int replaced;          /* whether this instance has its own `run` */
  char is_left;          /* whether Triton launches it, see `dropin/c/front.h` */
  unsigned run_tag;      /* version of the class when its `run` was last found unreplaced; 0: unknown */
  Best *best;            /* per thread, newest first: the config of its last launch, and its call's `nargs` */
} Base;

/* hot path. This thread's slot, created if missing; NULL with an error set. */
static Best *slot_of_thread(Base *b) {
  unsigned long me = PyThread_get_thread_ident();
  Best *slot = b->best;
  while (slot && slot->thread != me) slot = slot->next;
  if (!slot) {
    slot = PyMem_Malloc(sizeof *slot);
    if (!slot) { PyErr_NoMemory(); return NULL; }
    *slot = (Best){me, NULL, NULL, b->best};
    b->best = slot;
  }
  return slot;
}

/* hot path. Set the config of this thread's last launch. */
static int set_best(Base *b, PyObject *config) {
  Best *slot = slot_of_thread(b);
  if (!slot) return -1;
  if (slot->config != config) {
    PyObject *old = slot->config;
    Py_INCREF(config);
    slot->config = config;
    Py_XDECREF(old);
  }
  return 0;
}

/* Call Python's `_slow_run(args, kwargs, grid, warmup)`; NULL for an absent grid or warmup. New reference. */
static PyObject *slow_run(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid,
                          PyObject *warmup) {
  PyObject *result = NULL, *tuple = PyTuple_New(positional), *keywords = PyDict_New();
  if (!tuple || !keywords) goto done;
  for (Py_ssize_t i = 0; i < positional; i++) { Py_INCREF(args[i]); PyTuple_SET_ITEM(tuple, i, args[i]); }
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    if (is_named(name, s_grid) || is_named(name, s_warmup)) continue;
    if (PyDict_SetItem(keywords, name, args[positional + i])) goto done;
  }
  result = PyObject_CallMethodObjArgs(self, s_slow_run, tuple, keywords, grid ? grid : Py_Ellipsis,
                                      warmup ? warmup : Py_False, NULL);
done:
  Py_XDECREF(tuple);
  Py_XDECREF(keywords);
  return result;
}

static PyObject *own_run; /* strong: `run` of `Base` */

/* Whether `run` of this instance or of its class was replaced; -1 on error. */
static int run_is_replaced(Base *b) {
  if (b->replaced) return 1;
  if (b->run_tag && Py_TYPE(b)->tp_version_tag == b->run_tag) return 0;
  PyObject *run = PyObject_GetAttr((PyObject *)Py_TYPE(b), s_run); /* assigns the class a version */
  if (!run) return -1;
  Py_DECREF(run);
  b->run_tag = run == own_run ? Py_TYPE(b)->tp_version_tag : 0;
  return run != own_run;
}

/* Call `self.run(*args, **keywords, grid=grid, warmup=False)`, as Triton's `[]` does. New reference. Runs Python
 * code. */
static PyObject *run_by_name(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid) {
  PyObject *result = NULL, *run = PyObject_GetAttr(self, s_run), *keywords = PyDict_New(), *tuple = tuple_of(args, (int)positional);
  if (!run || !keywords || !tuple) goto done;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
    if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), args[positional + i])) goto done;
  if (PyDict_SetItem(keywords, s_grid, grid) || PyDict_SetItem(keywords, s_warmup, Py_False) || enter_python()) goto done;
  result = PyObject_Call(run, tuple, keywords);
  leave_python();
done:
  Py_XDECREF(run);
  Py_XDECREF(keywords);
  Py_XDECREF(tuple);
  return result;
}

/* Set an attribute; an instance's own `run` invalidates its guards, and `[]` calls it. */
static int set_attribute(PyObject *self, PyObject *name, PyObject *value, uint64_t *asked, int *replaced) {
  if (PyObject_GenericSetAttr(self, name, value)) return -1;
  if (PyUnicode_Compare(name, s_run) == 0) { *asked = 0; *replaced = value != NULL; }
  return 0;
}

static int base_setattro(PyObject *self, PyObject *name, PyObject *value) {
  return set_attribute(self, name, value, &((Base *)self)->generation, &((Base *)self)->replaced);
}

/* hot path. Arguments in parameter order with defaults, all borrowed: in `values`, or `args` itself if all are
 * positional; NULL if they do not match the parameters. */
static PyObject *const *order_arguments(const Table *t, PyObject *const *args, Py_ssize_t positional, PyObject *names,
                                        PyObject **values) {
  if (positional > t->places) return NULL;
  Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  if (positional == t->n && !keywords) return args;
  memcpy(values, args, sizeof *values * (size_t)positional);
  memset(values + positional, 0, sizeof *values * (size_t)(t->n - positional));
  int next = (int)positional; /* keywords are mostly in parameter order */
  for (Py_ssize_t k = 0; k < keywords; k++) {
    PyObject *name = PyTuple_GET_ITEM(names, k);
    if (name == s_grid || name == s_warmup) continue;
    int i = next < t->n && t->names[next] == name ? next : -1;
    for (int j = (int)positional; i < 0 && j < t->n; j++) if (t->names[j] == name) i = j;
    if (i < 0) {
      if (is_named(name, s_grid) || is_named(name, s_warmup)) continue;
      for (int j = (int)positional; i < 0 && j < t->n; j++) if (PyUnicode_Compare(t->names[j], name) == 0) i = j;
    }
    if (i < 0 || values[i]) return NULL;
    values[i] = args[positional + k];
    next = i + 1;
  }
  for (int i = (int)positional; i < t->n; i++)
    if (!values[i] && !(values[i] = t->defaults[i])) return NULL;
  return values;
}

/* Whether class and list of configs are unchanged since the table was built; -1 on error. */
static int base_holds(Base *b) {
  if (b->configs != b->seen || !PyList_CheckExact(b->configs) || PyList_GET_SIZE(b->configs) != b->seen_length) return 0;
  if (look_at_types()) return -1;
  if (b->generation == generation) return 1;
  uint64_t now = generation;
  int replaced = run_is_replaced(b);
  if (replaced) return replaced < 0 ? -1 : 0;
  PyObject *ours = PyObject_CallMethodNoArgs((PyObject *)b, s_still_ours);
  if (!ours) return -1;
  int yes = PyObject_IsTrue(ours);
  Py_DECREF(ours);
  b->generation = yes == 1 ? now : 0;
  return yes;
}

static PyObject *call_left(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid);

#define BY_RUN ((Py_ssize_t)1 << (8 * sizeof(Py_ssize_t) - 2)) /* added to `positional` if `run` was called */

/* hot path. A call of the kernel, by `[]` or, with `BY_RUN`, by `run`. New reference. */
static PyObject *call_kernel(PyObject *self, PyObject *const *args, Py_ssize_t flags, PyObject *names, PyObject *grid) {
  Base *b = (Base *)self;
  Py_ssize_t positional = flags & ~BY_RUN;
  PyObject *ordered[MAX_ARGS], *const *values;
  Words w;
  int ours = b->table ? base_holds(b) : 0;
  Table *t = b->table; /* read now: `base_holds`, or another thread, may have attached another */
  if (ours < 0) return NULL;
  if (!ours && !(flags & BY_RUN) && (ours = run_is_replaced(b)))
    return ours < 0 ? NULL : run_by_name(self, args, positional, names, grid);
  if (!ours || !t) return slow_run(self, args, positional, names, grid, Py_False);
  if (b->is_left) return call_left(self, args, positional, names, grid);
  Py_INCREF(t);
  if (!(values = order_arguments(t, args, positional, names, ordered))) goto slow;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR && clear_exception()) { Py_DECREF(t); return NULL; } /* `_slow_run` raises others again */
  Entry *e = result ? NULL : find_entry(t, &w);
  if (!e) goto slow;
  t->hits++;
  e->references++;
  PyObject *launched = set_best(b, e->config) ? NULL : launch_entry(t, e, &w, values, grid);
  release(e);
  Py_DECREF(t);
  return launched;
slow:
  Py_DECREF(t);
  return slow_run(self, args, positional, names, grid, Py_False);
}

static PyObject *base_run(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names) {
  PyObject *grid = NULL, *warmup = NULL;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    if (is_named(name, s_grid)) grid = args[positional + i];
    else if (is_named(name, s_warmup)) warmup = args[positional + i];
  }
  if (!grid || (warmup && warmup != Py_False)) return slow_run(self, args, positional, names, grid, warmup);
  return call_kernel(self, args, positional | BY_RUN, names, grid);
}

static PyObject *base_subscript(PyObject *self, PyObject *grid) { return gridded(&tuner_index, self, grid, call_kernel); }

static PyObject *base_attach(Base *b, PyObject *table) {
  if (table != Py_None && !PyObject_TypeCheck(table, &TableType)) {
    PyErr_SetString(PyExc_TypeError, "_attach: expected a Table or None");
    return NULL;
  }
  Table *old = b->table;
  PyObject *seen = b->seen;
  b->table = table == Py_None || !b->configs ? NULL : (Table *)table;
  Py_XINCREF(b->table);
  Py_XINCREF(b->configs);
  b->seen = b->configs;
  b->seen_length = b->configs && PyList_Check(b->configs) ? PyList_GET_SIZE(b->configs) : -1;
  b->generation = 0;
  Py_XDECREF(old);
  Py_XDECREF(seen);
  Py_RETURN_NONE;
}

static PyObject *get_configs(Base *b, void *c) {
  if (!b->configs) { PyErr_SetString(PyExc_AttributeError, "configs"); return NULL; }
  Py_INCREF(b->configs);
  return b->configs;
}
static int set_configs(Base *b, PyObject *value, void *c) {
  PyObject *old = b->configs;
  Py_XINCREF(value);
  b->configs = value;
  Py_XDECREF(old);
  return 0;
}
static PyObject *get_best(Base *b, void *c) {
  for (Best *slot = b->best; slot; slot = slot->next)
    if (slot->thread == PyThread_get_thread_ident() && slot->config) return Py_NewRef(slot->config);
  PyErr_SetString(PyExc_AttributeError, "best_config: nothing was launched on this thread yet");
  return NULL;
}
static int set_best_config(Base *b, PyObject *value, void *c) {
  if (!value) { PyErr_SetString(PyExc_AttributeError, "best_config cannot be deleted"); return -1; }
  return set_best(b, value);
}
static PyObject *get_nargs(Base *b, void *c) {
  Best *slot = slot_of_thread(b);
  return slot ? Py_NewRef(slot->nargs ? slot->nargs : Py_None) : NULL;
}
static int set_nargs(Base *b, PyObject *value, void *c) {
  Best *slot = slot_of_thread(b);
  if (!slot) return -1;
  PyObject *old = slot->nargs;
  slot->nargs = Py_XNewRef(value);
  Py_XDECREF(old);
  return 0;
}

static int base_traverse(Base *b, visitproc visit, void *arg) {
  Py_VISIT(b->table); Py_VISIT(b->configs); Py_VISIT(b->seen); Py_VISIT(b->theirs); Py_VISIT(b->their_fn);
  for (Best *slot = b->best; slot; slot = slot->next) { Py_VISIT(slot->config); Py_VISIT(slot->nargs); }
  return 0;
}
static int base_clear(Base *b) {
  Py_CLEAR(b->table); Py_CLEAR(b->configs); Py_CLEAR(b->seen); Py_CLEAR(b->theirs); Py_CLEAR(b->their_fn);
  while (b->best) {
    Best *slot = b->best;
    b->best = slot->next;
    Py_XDECREF(slot->config);
    Py_XDECREF(slot->nargs);
    PyMem_Free(slot);
  }
  return 0;
}
static void base_dealloc(Base *b) {
  PyObject_GC_UnTrack(b);
  base_clear(b);
  Py_TYPE(b)->tp_free((PyObject *)b);
}

static PyMethodDef base_methods[] = {
    {"run", (PyCFunction)(void (*)(void))base_run, METH_FASTCALL | METH_KEYWORDS,
     "run($self, /, *args, grid, warmup=False, **kwargs)\n--\n\nLaunch with the config chosen for these arguments."},
    {"_attach", (PyCFunction)base_attach, METH_O, "Use this table for the current list of configs; None for no table."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef base_fields[] = {
    {"configs", (getter)get_configs, (setter)set_configs, "The live list of configs.", NULL},
    {"best_config", (getter)get_best, (setter)set_best_config, "The config of this thread's last launch.", NULL},
    {"nargs", (getter)get_nargs, (setter)set_nargs, "The positional arguments, by name, of this thread's call.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef base_members[] = {
    {"theirs", T_OBJECT_EX, offsetof(Base, theirs), 0, "The other tuner that it launches for."},
    {"their_fn", T_OBJECT_EX, offsetof(Base, their_fn), 0, "That tuner's kernel."},
    {"is_left", T_BOOL, offsetof(Base, is_left), 0, "Whether Triton launches it."}, {NULL, 0, 0, 0, NULL}};
static PyMappingMethods base_mapping = {.mp_subscript = base_subscript};
static PyTypeObject BaseType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Base", .tp_doc = "What makes `kernel[grid](...)` fast.",
    .tp_basicsize = sizeof(Base), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew, .tp_setattro = base_setattro, .tp_dealloc = (destructor)base_dealloc, .tp_traverse = (traverseproc)base_traverse,
    .tp_clear = (inquiry)base_clear, .tp_methods = base_methods, .tp_members = base_members, .tp_getset = base_fields, .tp_as_mapping = &base_mapping};
