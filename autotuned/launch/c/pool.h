/* The pool of outputs of `autotuned.experimental`: reuses tensors made by torch once nobody else holds them. Decision
 * 0017 says why torch's objects are compared byte for byte, and what is checked against torch first.
 *
 * Part of `module.c`, after `tensors.h`. */
#ifdef __linux__
#include <malloc.h>
#else
#define malloc_usable_size(block) ((size_t)POOL_BYTES) /* unknown: nothing is kept */
#endif

enum { POOL_LAYOUTS = 128, POOL_PROBES = 4, POOL_TENSORS = 8, POOL_DIMS = 5, POOL_WORDS = 6 + 2 * POOL_DIMS };
enum { POOL_BYTES = 512, STORAGE_COUNT = 8, CU_CAPTURE_IMPLICIT = 906 };
enum { IMPL_COUNT = 8, IMPL_STORAGE = 16, IMPL_AUTOGRAD = 24, IMPL_EXTRA = 32 }; /* the last two are NULL for a plain tensor */
#define POOL_LARGEST (INT64_C(32) << 20) /* most bytes of one tensor */
#define POOL_LIMIT (INT64_C(256) << 20)  /* most bytes of all */

/* A tensor, with the bytes of its `TensorImpl` and `StorageImpl` when only its Python object held them: counts, memory,
 * deleter, shape, flags, and no gradient. */
typedef struct {
  PyObject *tensor; /* strong */
  int64_t bytes;    /* of its memory */
  size_t impl_size, storage_size;
  uint8_t was[POOL_BYTES];
} Pooled;

typedef struct {
  uint64_t word[POOL_WORDS]; /* dtype and device, stream, dispatch state, rank, class, shape and strides */
  int count;                 /* number of words */
  unsigned next;             /* the tensor to replace next */
  Pooled *tensors[POOL_TENSORS];
} Layout;

static Layout pool[POOL_LAYOUTS];
static int64_t pool_held;          /* bytes */
static uint64_t pool_allowed[2];   /* bits of the dispatch state that do not change `torch.empty_like` */
static PyObject *pool_modes[2];    /* strong; callables: whether function modes, deterministic algorithms are on */
static __thread const uint64_t *dispatch_state; /* of this thread; NULL until first needed, or if unknown */

static void *impl_of(PyObject *x) { void *impl; memcpy(&impl, (char *)x + sizeof(PyObject), sizeof impl); return impl; }
static void *part_of(void *impl, int where) { void *part; memcpy(&part, (char *)impl + where, sizeof part); return part; }
static void *storage_of(void *impl) { return part_of(impl, IMPL_STORAGE); }

/* This thread's dispatch state in torch: two words, 0 if no mode, transform or tracing is active. */
static const uint64_t *find_dispatch_state(void) {
  if (!dispatch_state) {
    void *library = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) dispatch_state = dlsym(library, "_ZN3c104impl26raw_local_dispatch_key_setE");
  }
  return dispatch_state;
}

/* Free a tensor. May run Python code. */
static void pool_drop(Pooled **where) {
  Pooled *one = *where;
  *where = NULL;
  if (!one) return;
  pool_held -= one->bytes;
  Py_DECREF(one->tensor);
  PyMem_Free(one);
}

/* Free all tensors, or those with this storage. May run Python code. */
static void pool_drop_all(const void *storage) {
  for (int l = 0; l < POOL_LAYOUTS; l++)
    for (int i = 0; i < POOL_TENSORS; i++) {
      Pooled **one = &pool[l].tensors[i];
      if (*one && (!storage || storage_of(impl_of((*one)->tensor)) == storage)) pool_drop(one);
    }
}

/* Whether the result of `torch.empty_like` depends on its argument alone. */
static int usual_modes(const uint64_t *state) {
  if (!state || state[0] & ~pool_allowed[0] || state[1] & ~pool_allowed[1] || !pool_modes[0]) return 0;
  for (int i = 0; i < 2; i++) {
    PyObject *said = PyObject_CallNoArgs(pool_modes[i]);
    int active = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    PyErr_Clear();
    if (active) return 0;
  }
  return 1;
}

/* hot path. Make the words that identify the layout of `torch.empty_like(x)`; returns their number, 0 if torch must
 * make the tensor. */
static int pool_words(PyObject *x, uint64_t *word) {
  const uint64_t *state = find_dispatch_state();
  View v;
  if (!tensor_type || Py_TYPE(x) != tensor_type || !usual_modes(state) || !view(x, &v) || v.ndim > POOL_DIMS) return 0;
  if (part_of(impl_of(x), IMPL_EXTRA)) return 0; /* such as names */
  int32_t type = device_type_of(v.kind), capturing = 0, error = 0;
  void *stream = NULL;
  if (type == DL_CUDA) {
    if (!cu_capturing || stream_of(type, (uint8_t)(v.kind >> 24), &stream)) { PyErr_Clear(); return 0; }
    error = cu_capturing(stream, &capturing);
    if (capturing || error == CU_CAPTURE_IMPLICIT) pool_drop_all(NULL); /* a graph may use tensors that were handed out */
    if (capturing || error) return 0;
  } else if (type != DL_CPU) return 0;
  word[0] = v.kind;
  word[1] = address_of(&(View){.data = stream});
  word[2] = state[0];
  word[3] = state[1];
  word[4] = (uint64_t)v.ndim;
  word[5] = (uint64_t)(uintptr_t)part_of(impl_of(x), 0); /* the C++ class: wrappers have others */
  memcpy(word + 6, v.shape, sizeof *word * (size_t)v.ndim);
  if (!v.strides) return 6 + (int)v.ndim;
  memcpy(word + 6 + v.ndim, v.strides, sizeof *word * (size_t)v.ndim);
  return 6 + 2 * (int)v.ndim;
}

static int pool_is(const Layout *layout, const uint64_t *word, int count) {
  return layout->count == count && !memcmp(layout->word, word, sizeof *word * (size_t)count);
}

/* The layout with these words, or the one to replace by it. */
static Layout *pool_layout(const uint64_t *word, int count) {
  uint64_t hash = UINT64_C(1469598103934665603);
  for (int i = 0; i < count; i++) hash = (hash ^ word[i]) * UINT64_C(1099511628211);
  hash ^= hash >> 32;
  for (int i = 0; i < POOL_PROBES; i++) {
    Layout *layout = &pool[(hash + (uint64_t)i) % POOL_LAYOUTS];
    if (pool_is(layout, word, count)) return layout;
  }
  return &pool[(hash + hash / POOL_LAYOUTS % POOL_PROBES) % POOL_LAYOUTS];
}

/* Copy the bytes of a tensor's C++ objects; 0 if their sizes are unknown or too large. */
static int pool_look(PyObject *x, Pooled *one) {
  void *impl = impl_of(x), *storage = storage_of(impl);
  one->impl_size = malloc_usable_size(impl);
  one->storage_size = malloc_usable_size(storage);
  if (one->impl_size + one->storage_size > sizeof one->was) return 0;
  memcpy(one->was, impl, one->impl_size);
  memcpy(one->was + one->impl_size, storage, one->storage_size);
  return 1;
}

/* hot path. Whether a tensor has no attributes, and its dict at most so many owners. May create the dict, which may
 * start the garbage collector and so run Python code that uses the pool: the caller must hold the tensor. */
static int no_attributes(PyObject *x, Py_ssize_t owners) {
  PyObject *dict = PyObject_GenericGetDict(x, NULL);
  int none = dict && !PyDict_GET_SIZE(dict) && Py_REFCNT(dict) <= owners + 1;
  Py_XDECREF(dict);
  PyErr_Clear();
  return none;
}

/* Free tensors with attributes or an autograd graph. They cannot be reused, and the pool must neither keep alive what
 * they refer to nor hide a cycle from the garbage collector. May run Python code. */
static void pool_drop_marked(void) {
  for (int l = 0; l < POOL_LAYOUTS; l++)
    for (int i = 0; i < POOL_TENSORS; i++) {
      Pooled **one = &pool[l].tensors[i];
      if (!*one) continue;
      PyObject *x = Py_NewRef((*one)->tensor);
      if (part_of(impl_of(x), IMPL_AUTOGRAD) || !no_attributes(x, PY_SSIZE_T_MAX - 1)) pool_drop(one);
      Py_DECREF(x);
    }
}

/* hot path. Whether a tensor is as torch made it, held only by its Python object: no weak references, and the same
 * bytes; those of the `TensorImpl` say where the storage is. */
static int pool_unchanged(const Pooled *one) {
  PyObject *x = one->tensor, *weak;
  memcpy(&weak, (char *)x + tensor_type->tp_weaklistoffset, sizeof weak);
  if (Py_TYPE(x) != tensor_type || weak) return 0;
  if (memcmp(one->was, impl_of(x), one->impl_size)) return 0;
  int same = !memcmp(one->was + one->impl_size, storage_of(impl_of(x)), one->storage_size);
  __atomic_thread_fence(__ATOMIC_ACQUIRE); /* pairs with the release of other threads' last reference */
  return same;
}

/* hot path. pool_take(x): an unused tensor like those of `torch.empty_like(x)`; None if there is none. */
static PyObject *pool_take(PyObject *module, PyObject *x) {
  uint64_t word[POOL_WORDS];
  int count = pool_words(x, word);
  if (!count) Py_RETURN_NONE;
  Layout *layout = pool_layout(word, count);
  if (!pool_is(layout, word, count)) Py_RETURN_NONE;
  for (int i = 0; i < POOL_TENSORS; i++) {
    Pooled *one = layout->tensors[i];
    if (!one || Py_REFCNT(one->tensor) != 1) continue;
    PyObject *found = Py_NewRef(one->tensor);
    if (pool_unchanged(one) && no_attributes(found, 1)) return found;
    one = layout->tensors[i];
    if (one && one->tensor == found) pool_drop(&layout->tensors[i]); /* changed, or held in C++ or weakly */
    Py_DECREF(found);
    break; /* Python code may have run and used the pool */
  }
  Py_RETURN_NONE;
}

/* pool_give(x, made): keep the new result of `torch.empty_like(x)`; returns whether it is kept. */
static PyObject *pool_give(PyObject *module, PyObject *args) {
  PyObject *x, *made;
  uint64_t word[POOL_WORDS];
  View v;
  if (!PyArg_ParseTuple(args, "OO", &x, &made)) return NULL;
  if (Py_TYPE(made) == tensor_type) compare_shim(made);
  int count = pool_words(x, word);
  if (!count || Py_TYPE(made) != tensor_type || !view(made, &v) || !v.data) Py_RETURN_FALSE;
  int64_t bytes = (int64_t)element_bytes_of(v.kind);
  for (int64_t d = 0; d < v.ndim; d++) bytes *= v.shape[d];
  if (bytes > POOL_LARGEST) Py_RETURN_FALSE;
  pool_drop_marked();
  if (pool_held + bytes > POOL_LIMIT) pool_drop_all(NULL);
  Pooled *one = PyMem_Malloc(sizeof *one);
  if (!one) return PyErr_NoMemory();
  if (!pool_look(made, one)) { PyMem_Free(one); Py_RETURN_FALSE; }
  one->tensor = Py_NewRef(made);
  one->bytes = bytes;
  pool_held += bytes;
  Layout *layout = pool_layout(word, count), before = {0};
  Pooled **place = &layout->tensors[layout->next++ % POOL_TENSORS];
  if (!pool_is(layout, word, count)) {
    before = *layout;
    memset(layout->tensors, 0, sizeof layout->tensors);
    memcpy(layout->word, word, sizeof *word * (size_t)count);
    layout->count = count;
  } else before.tensors[0] = *place;
  *place = one;
  for (int i = 0; i < POOL_TENSORS; i++) pool_drop(&before.tensors[i]);
  Py_RETURN_TRUE;
}

/* pool_release(tensor, None or False): free those that share a tensor's storage, all, or those with attributes or a
 * graph. For a tensor of a subclass, whose storage is unknown, free all. */
static PyObject *pool_release(PyObject *module, PyObject *x) {
  if (x == Py_False) pool_drop_marked();
  else pool_drop_all(Py_TYPE(x) == tensor_type || Py_TYPE(x) == parameter_type ? storage_of(impl_of(x)) : NULL);
  Py_RETURN_NONE;
}

/* pool_counts(x, storage): reference counts of a tensor and its storage, as this file reads them; None if the storage
 * is not at that address. */
static PyObject *pool_counts(PyObject *module, PyObject *args) {
  PyObject *x;
  unsigned long long storage;
  uint32_t own, shared;
  if (!PyArg_ParseTuple(args, "OK", &x, &storage)) return NULL;
  if (find_torch()) return NULL;
  if (Py_TYPE(x) != tensor_type || !tensor_lies_in_object(x)) Py_RETURN_NONE;
  if ((uint64_t)(uintptr_t)storage_of(impl_of(x)) != storage) Py_RETURN_NONE;
  memcpy(&own, (char *)impl_of(x) + IMPL_COUNT, sizeof own);
  memcpy(&shared, (char *)(uintptr_t)storage + STORAGE_COUNT, sizeof shared);
  return Py_BuildValue("II", own, shared);
}

/* pool_state(): the words of the dispatch state, or None. */
static PyObject *pool_state(PyObject *module, PyObject *unused) {
  const uint64_t *state = find_dispatch_state();
  if (!state) Py_RETURN_NONE;
  return Py_BuildValue("KK", (unsigned long long)state[0], (unsigned long long)state[1]);
}

/* pool_begin(bits, bits, modes, deterministic): serve from now on, also under these bits of the dispatch state. */
static PyObject *pool_begin(PyObject *module, PyObject *args) {
  unsigned long long included, excluded;
  PyObject *modes, *deterministic;
  if (!PyArg_ParseTuple(args, "KKOO", &included, &excluded, &modes, &deterministic)) return NULL;
  find_driver();
  pool_allowed[0] |= included;
  pool_allowed[1] |= excluded;
  Py_XSETREF(pool_modes[0], Py_NewRef(modes));
  Py_XSETREF(pool_modes[1], Py_NewRef(deterministic));
  Py_RETURN_NONE;
}
