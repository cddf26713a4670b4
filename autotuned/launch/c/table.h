/* `Table`: from argument values to the object bound for them.
 *
 * Part of `module.c`, after `entries.h`. */

static void table_forget(Table *t) {
  size_t used = t->used;
  Entry **order = t->order, **slots = t->slots;
  t->used = t->capacity = 0;
  t->slots = NULL;
  t->last = NULL;
  t->order = PyMem_Calloc(LIMIT, sizeof *t->order);
  for (size_t i = 0; i < used; i++) release(order[i]);
  PyMem_Free(order);
  PyMem_Free(slots);
}

static int fill_table(Table *t, PyObject *names, PyObject *defaults, PyObject *roles, PyObject *buckets) {
  size_t n = (size_t)t->n;
  t->names = PyMem_Calloc(n + 1, sizeof *t->names);
  t->defaults = PyMem_Calloc(n + 1, sizeof *t->defaults);
  t->buckets = PyMem_Calloc(n + 1, sizeof *t->buckets);
  t->order = PyMem_Calloc(LIMIT, sizeof *t->order);
  if (!t->names || !t->defaults || !t->buckets || !t->order) { PyErr_NoMemory(); return -1; }
  for (int i = 0; i < t->n; i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    Py_INCREF(name);
    PyUnicode_InternInPlace(&name);
    t->names[i] = name;
    t->defaults[i] = PyDict_GetItemWithError(defaults, name);
    t->buckets[i] = PyDict_GetItemWithError(buckets, name);
    Py_XINCREF(t->defaults[i]);
    Py_XINCREF(t->buckets[i]);
    t->roles[i] = (uint8_t)PyLong_AsLong(PyTuple_GET_ITEM(roles, i));
    if (PyErr_Occurred()) return -1;
  }
  return 0;
}

/* Unusable until `table_init` has succeeded. */
static PyObject *table_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  Table *t = (Table *)PyType_GenericNew(type, args, keywords);
  if (t) t->places = -1;
  return (PyObject *)t;
}

static int table_init(Table *t, PyObject *args, PyObject *keywords) {
  PyObject *names, *defaults, *roles, *buckets, *functions, *device;
  int places;
  static char *list[] = {"names", "places", "defaults", "roles", "buckets", "functions", "device", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!iO!O!O!O!O", list, &PyTuple_Type, &names, &places,
                                   &PyDict_Type, &defaults, &PyTuple_Type, &roles, &PyDict_Type, &buckets,
                                   &PyTuple_Type, &functions, &device))
    return -1;
  if (t->names) { PyErr_SetString(PyExc_TypeError, "Table: initialised already"); return -1; }
  t->n = (int)PyTuple_GET_SIZE(names);
  if (t->n > MAX_ARGS || PyTuple_GET_SIZE(roles) != t->n || places < 0 || places > t->n) {
    t->n = 0;
    PyErr_Format(PyExc_ValueError, "Table: expected at most %d names, one role each, and as many places or fewer", MAX_ARGS);
    return -1;
  }
  if (fill_table(t, names, defaults, roles, buckets)) return -1;
  t->asks = PyDict_GET_SIZE(buckets) || PyTuple_GET_SIZE(functions);
  Py_INCREF(functions); t->functions = functions; /* last: marks a complete table */
  Py_INCREF(device); t->device = device;
  t->places = places;
  return 0;
}

/* A config's hook, or the object it is a method of, may refer back to the table. */
static int direct_traverse(const Direct *d, visitproc visit, void *arg) {
  Py_VISIT(d->kernel); Py_VISIT(d->cache); Py_VISIT(d->pre_run); Py_VISIT(d->entering); Py_VISIT(d->leaving);
  Py_VISIT(d->holds); Py_VISIT(d->constants); Py_VISIT(d->hook); Py_VISIT(d->hook_constants);
#if !HAVE_WATCHERS
  Py_VISIT(d->watched);
#endif
  return 0;
}

static int table_traverse(Table *t, visitproc visit, void *arg) {
  Py_VISIT(t->functions);
  Py_VISIT(t->device);
  Py_VISIT(t->judge);
  for (int i = 0; t->buckets && i < t->n; i++) { Py_VISIT(t->buckets[i]); Py_VISIT(t->defaults[i]); }
  for (size_t i = 0; i < t->used; i++) {
    Entry *e = t->order[i];
    if (e->references != 1) continue; /* also held by a running call */
    for (int o = 0; o < e->objects; o++) Py_VISIT(e->object[o]);
    Py_VISIT(e->bound); Py_VISIT(e->config); Py_VISIT(e->before); Py_VISIT(e->fields);
    int stop = e->direct ? direct_traverse(e->direct, visit, arg) : 0;
    if (stop) return stop;
  }
  return 0;
}

/* The garbage collector may clear a table before its kernel, and before a destructor that calls this kernel: with
 * places -1 no call matches any more. */
static int table_clear_references(Table *t) {
  t->places = -1;
  if (t->order) table_forget(t);
  Py_CLEAR(t->functions);
  Py_CLEAR(t->device);
  for (int i = 0; t->buckets && i < t->n; i++) { Py_CLEAR(t->buckets[i]); Py_CLEAR(t->defaults[i]); }
  Py_CLEAR(t->judge);
  return 0;
}

static void table_dealloc(Table *t) {
  PyObject_GC_UnTrack(t);
  table_clear_references(t);
  for (int i = 0; t->names && i < t->n; i++) Py_XDECREF(t->names[i]);
  PyMem_Free(t->names); PyMem_Free(t->defaults); PyMem_Free(t->buckets); PyMem_Free(t->order);
  PyTypeObject *type = Py_TYPE(t);
  type->tp_free((PyObject *)t);
}

/* A call's values as an array; 0 if their number differs from the parameters', or the table is not initialised. */
static int as_values(const Table *t, PyObject *tuple, PyObject ***out) {
  if (!t->functions || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != t->n) return 0;
  *out = ((PyTupleObject *)tuple)->ob_item;
  return 1;
}

static PyObject *table_find(Table *t, PyObject *tuple) {
  PyObject **values;
  Words w;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR && clear_exception()) return NULL; /* else the Python path meets the same error and raises it */
  Entry *e = result ? NULL : find_entry(t, &w);
  if (!e) Py_RETURN_NONE;
  t->hits++;
  Py_INCREF(e->bound);
  return e->bound;
}

/* An attribute of the bound object, NULL for None; -1 on error. */
static int optional(PyObject *bound, const char *name, PyObject **out) {
  *out = PyObject_GetAttrString(bound, name);
  if (!*out) return -1;
  if (*out == Py_None) Py_CLEAR(*out);
  return 0;
}

/* Make a new `direct` if `bound.direct` is another tuple: Triton has chosen another kernel. -1 on error. Calls with
 * host memory are left to Triton's launcher, which accepts pinned memory only; words do not distinguish the two. */
static int take_direct(Entry *e, PyObject *const *values, int n) {
  PyObject *fields = NULL;
  if (optional(e->bound, "direct", &fields)) return -1;
  if (fields == e->fields) { Py_XDECREF(fields); return 0; }
  Direct *made = fields && cu_launch && stream_of && (!e->on_host || takes_host_memory) ? direct_of(fields, values, n) : NULL;
  if (PyErr_Occurred()) { Py_XDECREF(fields); return -1; }
  if (made) made->device_type = e->device_type;
  Direct *old = e->direct;
  PyObject *old_fields = e->fields;
  e->direct = made;
  e->fields = fields;
  release_direct(old); /* last: destructors may launch */
  Py_XDECREF(old_fields);
  return 0;
}

/* A new entry. Without values its first launch is in Python, which then makes `direct`. */
static Entry *new_entry(const Table *t, const Words *w, PyObject *const *values, PyObject *bound) {
  Entry *e = PyMem_Calloc(1, sizeof *e);
  if (!e) { PyErr_NoMemory(); return NULL; }
  e->references = 1;
  e->hash = hash_words(w);
  e->count = w->count;
  e->device_type = device_type_in(t, w, &e->on_host);
  e->words = PyMem_Malloc(sizeof(uint64_t) * (size_t)(w->count + 1));
  e->object = PyMem_Calloc((size_t)w->objects + 1, sizeof *e->object);
  if (!e->words || !e->object) { PyErr_NoMemory(); release(e); return NULL; }
  memcpy(e->words, w->word, sizeof(uint64_t) * (size_t)w->count);
  for (; e->objects < w->objects; e->objects++) { e->object[e->objects] = w->object[e->objects]; Py_INCREF(e->object[e->objects]); }
  Py_INCREF(bound);
  e->bound = bound;
  e->config = PyObject_GetAttr(bound, s_config);
  if (!e->config || optional(bound, "before", &e->before) || (values && take_direct(e, values, t->n))) { release(e); return NULL; }
  return e;
}

/* Whether a constexpr is a tensor: Triton compiles its values in, which the signature does not cover. */
static int compiles_a_tensor(const Table *t, PyObject *const *values) {
  for (int i = 0; i < t->n; i++)
    if (t->roles[i] & ROLE_CONSTEXPR && tensor_type && (Py_TYPE(values[i]) == tensor_type || Py_TYPE(values[i]) == parameter_type)) return 1;
  return 0;
}

/* Whether user code runs between look-up and launch, which may set a descriptor's block for the config. */
static int may_set_blocks(const Table *t, PyObject *bound) {
  PyObject *before = NULL;
  if (optional(bound, "before", &before)) PyErr_Clear();
  Py_XDECREF(before);
  return before || t->asks;
}

static PyObject *table_bind(Table *t, PyObject *args) {
  PyObject *tuple, *bound, **values;
  Words w;
  if (!PyArg_ParseTuple(args, "OO", &tuple, &bound)) return NULL;
  if (find_torch()) return NULL;
  find_driver();
  if (!as_values(t, tuple, &values) || compiles_a_tensor(t, values)) Py_RETURN_FALSE;
  find_descriptors();
  for (int i = 0; i < t->n; i++) compare_shims(values[i]);
  int result = make_words(t, &w, values);
  if (result == WORDS_OK && w.blocks && !t->sets_blocks && may_set_blocks(t, bound)) {
    t->sets_blocks = 1;
    table_forget(t);
    if (!t->order) return PyErr_NoMemory();
    result = make_words(t, &w, values);
  }
  if (result == WORDS_ERROR && clear_exception()) return NULL;
  if (result) Py_RETURN_FALSE;
  Entry *e = new_entry(t, &w, values, bound);
  if (!e) return NULL;
  if (insert(t, e, &w)) { release(e); return NULL; }
  Py_RETURN_TRUE;
}

static PyObject *table_bounds(Table *t, PyObject *unused) {
  PyObject *list = PyList_New(0);
  for (size_t i = 0; list && i < t->used; i++)
    if (PyList_Append(list, t->order[i]->bound)) Py_CLEAR(list);
  return list;
}

/* Replace an entry by one with another bound object; a launch in progress keeps the old entry. */
static PyObject *table_swap(Table *t, PyObject *args) {
  PyObject *old, *bound;
  Words w;
  if (!PyArg_ParseTuple(args, "OO", &old, &bound)) return NULL;
  size_t at = 0;
  while (at < t->used && t->order[at]->bound != old) at++;
  if (at == t->used) Py_RETURN_FALSE;
  Entry *present = t->order[at];
  w.count = present->count;
  w.objects = present->objects;
  memcpy(w.word, present->words, sizeof(uint64_t) * (size_t)w.count);
  memcpy(w.object, present->object, sizeof *w.object * (size_t)w.objects);
  present->references++; /* it owns the objects of the signature */
  Entry *e = new_entry(t, &w, NULL, bound);
  int stands = e && look_up(t, &w, present->hash) == present; /* `new_entry` may have run code that cleared the table */
  int failed = !e || (stands && insert(t, e, &w));
  if (e && (failed || !stands)) release(e);
  release(present);
  if (failed) return NULL;
  return PyBool_FromLong(stands);
}

static PyObject *table_signature(Table *t, PyObject *tuple) {
  PyObject **values;
  Words w;
  if (find_torch()) return NULL;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) return NULL;
  if (result) Py_RETURN_NONE;
  return PyBytes_FromStringAndSize((const char *)w.word, (Py_ssize_t)sizeof(uint64_t) * w.count);
}

/* hot path of plain callables. The words of tensors as bytes, one role each; None if one cannot be read. Uses DLPack,
 * not the shim, which ignores layouts: sparse and wrapped tensors are not errors here. */
static PyObject *tensor_words(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  Table t;
  Words w;
  if (!count-- || !PyBytes_Check(*args) || PyBytes_GET_SIZE(*args) != count)
    return PyErr_Format(PyExc_TypeError, "tensor_words: expected as many roles as tensors");
  if (count > MAX_ARGS) Py_RETURN_NONE;
  if (find_torch()) return NULL;
  memcpy(t.roles, PyBytes_AS_STRING(*args++), (size_t)count);
  w.count = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    int known = w.count <= MAX_WORDS && (Py_TYPE(args[i]) == tensor_type || Py_TYPE(args[i]) == parameter_type);
    if (!known || words_by_dlpack(&t, &w, i, i, args[i])) Py_RETURN_NONE;
  }
  return PyBytes_FromStringAndSize((const char *)w.word, (Py_ssize_t)sizeof(uint64_t) * w.count);
}

static PyObject *table_passed(Table *t, PyObject *args), *table_launch(Table *t, PyObject *args); /* in `submit.h` */

static PyObject *table_judge_by(Table *t, PyObject *judge) {
  Py_INCREF(judge);
  Py_XSETREF(t->judge, judge);
  t->asks = 1;
  Py_RETURN_NONE;
}

static PyObject *table_clear(Table *t, PyObject *unused) {
  table_forget(t);
  if (!t->order) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static Py_ssize_t table_length(Table *t) { return (Py_ssize_t)t->used; }
static PyObject *get_hits(Table *t, void *c) { (void)c; return PyLong_FromUnsignedLongLong(t->hits); }
static PyObject *get_evictions(Table *t, void *c) { (void)c; return PyLong_FromUnsignedLongLong(t->evictions); }
static PyObject *get_computed(Table *t, void *c) { (void)c; return PyLong_FromUnsignedLongLong(t->computed); }
static PyObject *get_name(Table *t, void *c) { (void)t; (void)c; return PyUnicode_FromString("c"); }

static PyMethodDef table_methods[] = {
    {"find", (PyCFunction)table_find, METH_O, "The bound object for these argument values, or None."},
    {"bind", (PyCFunction)table_bind, METH_VARARGS, "Bind argument values; False if they have no signature."},
    {"bounds", (PyCFunction)table_bounds, METH_NOARGS, "The bound objects, oldest first."},
    {"swap", (PyCFunction)table_swap, METH_VARARGS, "Replace a bound object; False if it is no longer bound."},
    {"signature", (PyCFunction)table_signature, METH_O, "The signature of these argument values as bytes, or None; for tests."},
    {"passed", (PyCFunction)table_passed, METH_VARARGS, "What a launch of these values with this grid would pass to the driver, or None."},
    {"launch", (PyCFunction)table_launch, METH_VARARGS, "Launch the object bound for these values with this grid; None if nothing is bound."},
    {"judge_by", (PyCFunction)table_judge_by, METH_O, "Call this with what each launch would pass; if it returns false, launch through Triton."},
    {"clear", (PyCFunction)table_clear, METH_NOARGS, "Forget everything bound."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef table_fields[] = {{"hits", (getter)get_hits, NULL, "Calls answered.", NULL},
                                     {"evictions", (getter)get_evictions, NULL, "Entries dropped for room.", NULL},
                                     {"computed", (getter)get_computed, NULL, "Grid callables computed, not called.", NULL},
                                     {"name", (getter)get_name, NULL, "Which launcher this is.", NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};
static PySequenceMethods table_sequence = {.sq_length = (lenfunc)table_length};
static PyTypeObject TableType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Table",
    .tp_doc = "Table(names, places, defaults, roles, buckets, functions, device): signatures of calls to bound kernels.",
    .tp_basicsize = sizeof(Table), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = table_new,
    .tp_init = (initproc)table_init, .tp_dealloc = (destructor)table_dealloc, .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_clear_references, .tp_methods = table_methods, .tp_getset = table_fields,
    .tp_as_sequence = &table_sequence};
