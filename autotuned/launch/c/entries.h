/* Entries of a table: a signature, its bound object, and how to launch that directly; the hash table that holds them.
 *
 * Part of `module.c`, after `signature.h`. */

/* How a value is written into the kernel's parameter buffer: the letters of Python's `struct`; SKIP: compiled in. */
enum { SKIP = '-', POINTER = 'P', BLOCK = 'T',  BOOL = '?', INT8 = 'b', UINT8 = 'B', INT16 = 'h', UINT16 = 'H', INT32 = 'i', UINT32 = 'I',
       INT64 = 'q', UINT64 = 'Q', FP32 = 'f', FP64 = 'd' };

/* Conversion, at each launch, of a value that is not passed as `Words.raw` has it, as Triton's launcher does it: an
 * integer or double to a floating-point parameter, or a range check if the parameter is narrower than the signature's
 * integer class. Triton truncates or refuses what does not fit, depending on its version. */
enum { AS_IT_IS, FROM_SIGNED, FROM_UNSIGNED, FROM_DOUBLE, IF_IT_FITS, UNLIKE };

/* How to launch without Python. Reference-counted: Python code within a launch may replace its entry's. */
typedef struct {
  int references;
  PyObject *kernel;    /* strong weak reference: Triton's cache owns the kernel; evicting it there unloads it */
  void *function;
  int32_t device, device_type; /* index of the device it was loaded on, whose context is part of the signature */
  unsigned threads, shared_bytes, ctas; /* threads per block, bytes of shared memory, blocks per cluster */
  char kinds[MAX_SLOTS], steps[MAX_SLOTS];       /* by slot; the step of a descriptor is the index of its encoding */
  uint8_t passed[MAX_SLOTS], stepped[MAX_SLOTS]; /* slots that are not compiled in, in order; slots with a step */
  int passed_count, stepped_count;
  Encoding encodings[MAX_BLOCKS];
  int blocks, tuples; /* number of descriptors passed; whether a value is a tuple */
  CuAttribute attributes[4];
  unsigned attribute_count;
  PyObject *cache, *cache_key;        /* strong: Triton's own look-up must still find the kernel here */
  PyObject *pre_run, *entering, *leaving; /* strong lists; if one is not empty, Triton launches */
  PyObject *holds;     /* strong callable: compares everything that is watched */
  PyObject *constants; /* strong dict for grid callables: None for each free parameter, then the config's values */
  PyObject *hook, *hook_constants; /* strong, or NULL: the config's hook, and a dict like `constants` for it */
  uint8_t zeroed[MAX_ARGS];        /* which parameters are zeroed before every launch */
  int zeroes;                      /* their number */
  uint64_t generation; /* the shared one when `holds` last returned true */
#if !HAVE_WATCHERS
  PyObject *watched;                   /* strong tuple of dicts */
  const uint64_t *versions[VERSIONS];  /* of the first dicts; unused ones point to a constant 0 */
  uint64_t seen;                       /* sum of all dicts' versions when `holds` last returned true */
#endif
} Direct;

typedef struct Entry {
  int references;
  uint64_t hash;
  int count, objects, on_host; /* on_host: whether a tensor is in host memory */
  int32_t device_type;         /* of its tensors, DLPack's number */
  uint64_t *words;
  PyObject **object; /* strong: objects compared by identity must stay alive */
  PyObject *bound;   /* strong: launches in Python if `direct` is NULL or its guards fail */
  PyObject *config;  /* strong */
  PyObject *before;  /* strong or NULL: zeroing and the config's hook */
  PyObject *fields;  /* strong or NULL: the tuple that `direct` was made from */
  Direct *direct;    /* counted, or NULL */
} Entry;

static __attribute__((noinline)) void free_direct(Direct *d) {
  Py_XDECREF(d->kernel); Py_XDECREF(d->cache); Py_XDECREF(d->cache_key); Py_XDECREF(d->pre_run);
  Py_XDECREF(d->entering); Py_XDECREF(d->leaving); Py_XDECREF(d->holds); Py_XDECREF(d->constants);
  Py_XDECREF(d->hook); Py_XDECREF(d->hook_constants);
#if !HAVE_WATCHERS
  Py_XDECREF(d->watched);
#endif
  PyMem_Free(d);
}

/* Dropping the last reference may run Python code (destructors). */
static inline void release_direct(Direct *d) { if (d && !--d->references) free_direct(d); }

/* Dropping the last reference may run Python code (destructors). */
static void release(Entry *e) {
  if (--e->references) return;
  for (int i = 0; i < e->objects; i++) Py_DECREF(e->object[i]);
  Py_XDECREF(e->bound); Py_XDECREF(e->config); Py_XDECREF(e->before); Py_XDECREF(e->fields);
  release_direct(e->direct);
  PyMem_Free(e->words);
  PyMem_Free(e->object);
  PyMem_Free(e);
}

static int equal_words(const Entry *e, const Words *w, uint64_t hash) {
  return e->hash == hash && e->count == w->count && !memcmp(e->words, w->word, sizeof(uint64_t) * (size_t)w->count);
}

/* hot path. Borrowed entry, or NULL. */
static Entry *look_up(const Table *t, const Words *w, uint64_t hash) {
  if (!t->used) return NULL;
  for (size_t i = hash & (t->capacity - 1);; i = (i + 1) & (t->capacity - 1)) {
    Entry *e = t->slots[i];
    if (!e || equal_words(e, w, hash)) return e;
  }
}

/* hot path. The same, but first compares the previous call's entry, which needs no hash. */
static inline Entry *find_entry(Table *t, const Words *w) {
  Entry *e = t->last;
  if (e && e->count == w->count && !memcmp(e->words, w->word, sizeof(uint64_t) * (size_t)w->count)) return e;
  if ((e = look_up(t, w, hash_words(w)))) t->last = e;
  return e;
}

static void place(Entry **slots, size_t capacity, Entry *e) {
  size_t i = e->hash & (capacity - 1);
  while (slots[i]) i = (i + 1) & (capacity - 1);
  slots[i] = e;
}

/* Rebuild the slots from `order`; -1 with MemoryError set. */
static int rehash(Table *t, size_t capacity) {
  Entry **slots = PyMem_Calloc(capacity, sizeof *slots);
  if (!slots) { PyErr_NoMemory(); return -1; }
  for (size_t i = 0; i < t->used; i++) place(slots, capacity, t->order[i]);
  PyMem_Free(t->slots);
  t->slots = slots;
  t->capacity = capacity;
  return 0;
}

static int make_room(Table *t) {
  if (t->used == LIMIT) {
    size_t gone = LIMIT / 2;
    Entry *old[LIMIT / 2];
    memcpy(old, t->order, sizeof old);
    memmove(t->order, t->order + gone, sizeof *t->order * (t->used - gone));
    t->used -= gone;
    t->last = NULL;
    t->evictions += gone;
    if (rehash(t, t->capacity)) return -1;
    for (size_t i = 0; i < gone; i++) release(old[i]); /* last: destructors may call into this table */
  }
  return 2 * (t->used + 1) > t->capacity ? rehash(t, t->capacity ? 2 * t->capacity : 16) : 0;
}

static int insert(Table *t, Entry *e, const Words *w) {
  Entry *present = look_up(t, w, e->hash);
  if (present) {
    t->last = NULL;
    for (size_t i = 0; i < t->capacity; i++) if (t->slots[i] == present) t->slots[i] = e;
    for (size_t i = 0; i < t->used; i++) if (t->order[i] == present) t->order[i] = e;
    release(present);
    return 0;
  }
  if (!t->order && !(t->order = PyMem_Calloc(LIMIT, sizeof *t->order))) { PyErr_NoMemory(); return -1; }
  if (make_room(t)) return -1;
  t->order[t->used++] = e;
  place(t->slots, t->capacity, e);
  return 0;
}

/* A field of a tuple, as a new reference. */
static PyObject *kept(PyObject *tuple, int i) { PyObject *o = PyTuple_GET_ITEM(tuple, i); Py_INCREF(o); return o; }

/* The range of an integer parameter; 0 for others. UINT64 ends at INT64_MAX, since larger values have a separate
 * signature. */
static int range_of(char kind, int64_t *least, int64_t *most) {
  *least = 0;
  switch (kind) {
    case BOOL: *most = 1; return 1;
    case INT8: *least = INT8_MIN; *most = INT8_MAX; return 1;
    case UINT8: *most = UINT8_MAX; return 1;
    case INT16: *least = INT16_MIN; *most = INT16_MAX; return 1;
    case UINT16: *most = UINT16_MAX; return 1;
    case INT32: *least = INT32_MIN; *most = INT32_MAX; return 1;
    case UINT32: *most = UINT32_MAX; return 1;
    case INT64: *least = INT64_MIN; *most = INT64_MAX; return 1;
    case UINT64: case POINTER: *most = INT64_MAX; return 1;
    default: return 0;
  }
}

/* The step for an integer, valid for all integers of its width. */
static char step_of_int(char kind, PyObject *x) {
  int64_t least, most;
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
  int wide = value < INT32_MIN || value > INT32_MAX;
  if (kind == FP32 || kind == FP64) return overflow ? FROM_UNSIGNED : FROM_SIGNED;
  if (overflow) return kind == UINT64 || kind == POINTER ? AS_IT_IS : UNLIKE;
  if (!range_of(kind, &least, &most)) return UNLIKE;
  if (wide && most <= INT32_MAX) return UNLIKE;
  return least <= (wide ? INT64_MIN : INT32_MIN) && most >= (wide ? INT64_MAX : INT32_MAX) ? AS_IT_IS : IF_IT_FITS;
}

/* The step for a value and all others of its signature, for a parameter of this kind; UNLIKE if Triton's launcher must
 * convert or refuse it. An enum member that is an int is passed as one. */
static char step_of(char kind, PyObject *x) {
  PyTypeObject *type = Py_TYPE(x);
  int64_t least, most;
  if (tensor_type && (type == tensor_type || type == parameter_type)) return kind == POINTER ? AS_IT_IS : UNLIKE;
  if (kind == SKIP) return AS_IT_IS;
  if (type == &PyFloat_Type) return kind == FP64 ? AS_IT_IS : kind == FP32 ? FROM_DOUBLE : UNLIKE;
  if (type == &PyBool_Type) return range_of(kind, &least, &most) ? AS_IT_IS : FROM_SIGNED;
  if (type == &PyLong_Type || (PyLong_Check(x) && kind != FP32 && kind != FP64)) return step_of_int(kind, x);
  return x == Py_None && kind == POINTER ? AS_IT_IS : UNLIKE;
}

/* Read one descriptor's encoding: (form, rank, flags, swizzle, bytes, type, rounded type, clears bit, block, box); 0
 * with an error set. */
static int take_encoding(Encoding *e, PyObject *tuple) {
  int64_t box[MAX_RANK];
  PyObject *block, *sizes;
  if (!PyArg_ParseTuple(tuple, "iiiiiiiiOO", &e->form, &e->rank, &e->flags, &e->swizzle, &e->element_bytes, &e->element_type,
                        &e->rounded_type, &e->clears_bit, &block, &sizes))
    return 0;
  if (e->rank < 1 || e->flags > 2 || read_sizes(block, e->block) != e->rank || read_sizes(sizes, box) != e->rank) {
    PyErr_SetString(PyExc_ValueError, "Bound.direct: an encoding of a descriptor is not as expected");
    return 0;
  }
  for (int i = 0; i < e->rank; i++) e->box[e->rank - 1 - i] = (uint32_t)box[i];
  return 1;
}

static int take_kind(Direct *d, const char **kinds, PyObject *encodings, PyObject *x, int slot, int *slots);

/* Match the kinds of a tuple's items, whose slots follow in order; in a compiled-in tuple all are compiled in. */
static int take_items(Direct *d, const char **kinds, PyObject *encodings, PyObject *x, char kind, int *slots) {
  d->tuples = 1;
  if (kind != SKIP && kind != '(') return 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(x); k++) {
    const char *skipped = "-", **next = kind == SKIP ? &skipped : kinds;
    if (!take_kind(d, next, encodings, PyTuple_GET_ITEM(x, k), (*slots)++, slots)) return 0;
  }
  return kind == SKIP || *(*kinds)++ == ')';
}

/* Match the next kind with a value of the call being bound; 0 if they do not match, or with an error set. */
static int take_kind(Direct *d, const char **kinds, PyObject *encodings, PyObject *x, int slot, int *slots) {
  char kind = **kinds;
  if (!kind || slot >= MAX_SLOTS) return 0;
  ++*kinds;
  d->kinds[slot] = SKIP;
  if (PyTuple_Check(x)) return take_items(d, kinds, encodings, x, kind, slots);
  d->kinds[slot] = kind;
  if (is_descriptor(x) || kind == BLOCK) {
    if (kind != BLOCK || !is_descriptor(x) || d->blocks == MAX_BLOCKS || d->blocks >= PyTuple_GET_SIZE(encodings)) return 0;
    if (!take_encoding(&d->encodings[d->blocks], PyTuple_GET_ITEM(encodings, d->blocks))) return 0;
    d->steps[slot] = (char)d->blocks++;
  } else {
    if ((d->steps[slot] = step_of(kind, x)) == UNLIKE) return 0;
    if (d->steps[slot]) d->stepped[d->stepped_count++] = (uint8_t)slot;
  }
  if (kind != SKIP) d->passed[d->passed_count++] = (uint8_t)slot;
  return 1;
}

/* The same for all parameters. */
static int take_kinds(Direct *d, const char *kinds, PyObject *encodings, PyObject *const *values, int n) {
  int slots = n;
  for (int i = 0; i < n; i++)
    if (!take_kind(d, &kinds, encodings, values[i], i, &slots)) return 0;
  if (*kinds) PyErr_SetString(PyExc_ValueError, "Bound.direct: expected one kind a parameter");
  return !*kinds;
}

/* Make a `Direct` from `Bound.direct`, for a call with these values: a tuple (kernel's weak reference, function,
 * threads, shared bytes, kinds, attributes, cache, cache key, pre-run hooks, enter hooks, leave hooks, holds,
 * constants, watched dicts, ctas, hook, its constants, indexes of zeroed parameters, device, encodings of descriptors).
 * NULL with an error set, or without one if a value does not match its parameter's kind. */
static Direct *direct_of(PyObject *tuple, PyObject *const *values, int n) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 20 || !PyTuple_Check(PyTuple_GET_ITEM(tuple, 19))) {
    PyErr_SetString(PyExc_TypeError, "Bound.direct: expected a tuple of 20 fields");
    return NULL;
  }
  Direct *d = PyMem_Calloc(1, sizeof *d);
  if (!d) { PyErr_NoMemory(); return NULL; }
  d->references = 1;
  d->kernel = kept(tuple, 0);
  d->function = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(tuple, 1));
  d->threads = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, 2));
  d->shared_bytes = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, 3));
  d->hook = kept(tuple, 15);
  if (d->hook == Py_None) Py_CLEAR(d->hook);
  d->hook_constants = kept(tuple, 16);
  PyObject *zeroed = PyTuple_GET_ITEM(tuple, 17);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(zeroed); i++, d->zeroes++) {
    long index = PyLong_AsLong(PyTuple_GET_ITEM(zeroed, i));
    if (index < 0 || index >= n) PyErr_SetString(PyExc_ValueError, "Bound.direct: a zeroed index is out of range");
    else d->zeroed[index] = 1;
  }
  d->ctas = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, 14));
  d->device = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(tuple, 18));
  const char *kinds = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, 4));
  int alike = kinds && take_kinds(d, kinds, PyTuple_GET_ITEM(tuple, 19), values, n);
  PyObject *attributes = PyTuple_GET_ITEM(tuple, 5); /* tuple of (id, x, y, z) */
  for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyTuple_GET_SIZE(attributes) && i < 4; i++) {
    CuAttribute *a = &d->attributes[d->attribute_count++];
    PyArg_ParseTuple(PyTuple_GET_ITEM(attributes, i), "iIII", &a->id, &a->value.dims[0], &a->value.dims[1],
                     &a->value.dims[2]);
  }
  d->cache = kept(tuple, 6); d->cache_key = kept(tuple, 7); d->pre_run = kept(tuple, 8);
  d->entering = kept(tuple, 9); d->leaving = kept(tuple, 10); d->holds = kept(tuple, 11); d->constants = kept(tuple, 12);
  if (!PyErr_Occurred() && !(PyDict_Check(d->cache) && PyList_Check(d->pre_run) && PyList_Check(d->entering) &&
                             PyList_Check(d->leaving) && PyDict_Check(d->constants) && PyWeakref_Check(d->kernel)))
    PyErr_SetString(PyExc_TypeError, "Bound.direct: expected a dict, three lists and a dict of constants");
#if !HAVE_WATCHERS
  static const uint64_t none = 0;
  d->watched = kept(tuple, 13);
  for (Py_ssize_t i = 0; i < VERSIONS; i++)
    d->versions[i] = i < PyTuple_GET_SIZE(d->watched) ? &((PyDictObject *)PyTuple_GET_ITEM(d->watched, i))->ma_version_tag : &none;
#endif
  if (PyErr_Occurred() || !alike) { release_direct(d); return NULL; }
  return d;
}
