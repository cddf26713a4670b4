/* The launch table and the launch itself in C; `_launch_py.py` is the specification.
 *
 * Differences from the Python twin:
 *  1. Words are 64-bit numbers. A tensor whose shape is not in the key contributes its rank and stride pattern only,
 *     so that a batch of varying length stays one entry; the Python twin uses exact shapes and strides.
 *  2. Strings, dtypes and enum members count by identity (the entry keeps them alive): equal text in two objects is
 *     bound twice, which costs one more miss and nothing else.
 *  3. NumPy arrays have no words here: plain callables use the Python twin.
 *  4. The current device is told by its CUDA context where libcuda is loaded.
 *  5. When the table is full, the older half goes at once.
 *
 * Reference conventions: "new" and "borrowed" have Python's meaning; a function that may run Python code says so.
 * Entries are counted by hand, because a grid callable or a hook may clear the table that a call is using. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include "_launch_abi.h"

#define MAX_ARGS 128   /* free parameters; a kernel with more uses the Python twin */
#define MAX_WORDS 1024 /* words of one call; a call with more is not bound */
#define MAX_DIMS 24    /* two bits a dimension in one word, beside the device */
#define LIMIT 4096     /* entries of one table, as in the Python twin */
#define WATCHED_TYPES 8 /* classes of Triton that are looked at, on Pythons without watchers */

#if PY_VERSION_HEX >= 0x030C0000
#define HAVE_WATCHERS 1
#else
#define HAVE_WATCHERS 0
#endif

/* ---- what is shared by all tables -------------------------------------------------------------------------- */

static PyTypeObject *tensor_type, *parameter_type; /* strong; NULL until torch is there */
static DlApi *dl;
static CuLaunchKernelEx cu_launch;
static CuCtxGetCurrent cu_context;
static CuGetErrorString cu_error;
static CuMemsetAsync cu_memset;
static int driver_sought;
static int (*stream_of)(int32_t type, int32_t id, void **out); /* torch's, or a test's stand-in */
static int takes_host_memory = 0; /* whether the driver is a stand-in to which memory of the host is as good as any */
static uint64_t generation = 1; /* grows when anything watched changes */
static PyObject *s_run, *s_config, *s_slow_run, *s_still_ours, *s_grid, *s_warmup, *s_getitem;

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* What a tensor is; shape and strides are the tensor's own and live as long as it does. */
typedef struct {
  uint64_t address;
  int64_t ndim;
  const int64_t *shape, *strides; /* in elements; strides may be NULL for a contiguous tensor */
  DlType dtype;
  DlDevice device;
} View;

/* torch's C shim tells what a tensor is in 15 ns, its DLPack export in 50, which converts the Python object first, with
 * the lock of the interpreter taken anew (tests/bench/host.py). The shim wants the `at::Tensor` in the object. That it
 * lies right behind the object's header is compared with `Tensor._cdata`, once; and of each dtype the shim's answers with
 * those of DLPack, whenever something is bound. What does not agree, or is not known yet, goes through DLPack. */
static TorchShim shim;
enum { SHIM_UNKNOWN, SHIM_AGREES, SHIM_REFUSED };
static int shim_state = SHIM_UNKNOWN;
static DlType shim_dtype[64]; /* by torch's number; bits are 0 until DLPack has told */

/* A tensor through DLPack; 0, and no error set, if it has no memory. */
static __attribute__((noinline)) int view_by_dlpack(PyObject *x, View *v) {
  DlTensor t;
  if (dl->borrow(x, &t)) { PyErr_Clear(); return 0; }
  *v = (View){(uint64_t)(uintptr_t)t.data + t.byte_offset, t.ndim, t.shape, t.strides, t.dtype, t.device};
  return 1;
}

/* hot path. A tensor through the shim; 0 if it does not know all of it. */
static inline int view_by_shim(PyObject *x, View *v) {
  const void *tensor = (const char *)x + sizeof(PyObject);
  void *data, *sizes, *strides;
  int32_t dtype, type, index;
  if (shim.data(tensor, &data) | shim.sizes(tensor, &sizes)) return 0; /* torch logs why, and Triton will raise it */
  if (shim.strides(tensor, &strides) | shim.dim(tensor, &v->ndim) | shim.dtype(tensor, &dtype)) return 0;
  if (shim.device_type(tensor, &type) | shim.device_index(tensor, &index)) return 0;
  if ((uint32_t)dtype >= 64 || !shim_dtype[dtype].bits || (type != TORCH_CUDA && type != TORCH_CPU)) return 0;
  v->address = (uint64_t)(uintptr_t)data;
  v->shape = sizes;
  v->strides = strides;
  v->dtype = shim_dtype[dtype];
  v->device = type == TORCH_CUDA ? (DlDevice){DL_CUDA, index} : (DlDevice){DL_CPU, 0};
  return 1;
}

/* hot path. What an exact torch.Tensor or Parameter is; 0 if it has no memory. */
static inline int view(PyObject *x, View *v) {
  return (shim_state == SHIM_AGREES && view_by_shim(x, v)) || view_by_dlpack(x, v);
}

static int same_numbers(const int64_t *one, const int64_t *other, int64_t count) {
  return !count || (one && other && !memcmp(one, other, sizeof *one * (size_t)count));
}

/* Whether the word behind the header of a tensor is what torch says it is; clears errors. */
static int tensor_lies_in_object(PyObject *x) {
  PyObject *address = PyObject_GetAttrString(x, "_cdata");
  uint64_t word, said = address ? PyLong_AsUnsignedLongLong(address) : 0;
  memcpy(&word, (const char *)x + sizeof(PyObject), sizeof word);
  Py_XDECREF(address);
  if (PyErr_Occurred()) PyErr_Clear();
  return said && word == said;
}

/* cold path. Let the shim be used for tensors of this one's dtype, if it says of this one what DLPack says. */
static void compare_shim(PyObject *x) {
  View by_shim, by_dlpack;
  int32_t dtype;
  if (shim_state == SHIM_REFUSED || !shim.data || !view_by_dlpack(x, &by_dlpack)) return;
  if (shim_state == SHIM_UNKNOWN && !tensor_lies_in_object(x)) { shim_state = SHIM_REFUSED; return; }
  if (shim.dtype((const char *)x + sizeof(PyObject), &dtype) || (uint32_t)dtype >= 64) return;
  DlType before = shim_dtype[dtype];
  shim_dtype[dtype] = by_dlpack.dtype;
  if (!view_by_shim(x, &by_shim)) { shim_dtype[dtype] = before; return; }
  int same = by_shim.address == by_dlpack.address && by_shim.ndim == by_dlpack.ndim &&
             same_numbers(by_shim.shape, by_dlpack.shape, by_shim.ndim) &&
             same_numbers(by_shim.strides, by_dlpack.strides, by_shim.ndim) &&
             by_shim.device.type == by_dlpack.device.type && by_shim.device.id == by_dlpack.device.id &&
             (!before.bits || !memcmp(&before, &by_dlpack.dtype, sizeof before));
  shim_state = same ? SHIM_AGREES : SHIM_REFUSED;
}

/* cold path. The same for all tensors among the values of a call. */
static void compare_shims(PyObject *const *values, int n) {
  for (int i = 0; tensor_type && i < n; i++)
    if (Py_TYPE(values[i]) == tensor_type || Py_TYPE(values[i]) == parameter_type) compare_shim(values[i]);
}

/* torch's library is loaded already; without these functions DLPack serves. */
static void find_shim(void) {
  void *library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  TorchShim found = {0};
  if (!library) return;
  found.data = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_data_ptr");
  found.sizes = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_sizes");
  found.strides = (ShimPointer)(uintptr_t)dlsym(library, "aoti_torch_get_strides");
  found.dim = (ShimInt64)(uintptr_t)dlsym(library, "aoti_torch_get_dim");
  found.dtype = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_dtype");
  found.device_type = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_type");
  found.device_index = (ShimInt32)(uintptr_t)dlsym(library, "aoti_torch_get_device_index");
  if (found.data && found.sizes && found.strides && found.dim && found.dtype && found.device_type && found.device_index)
    shim = found;
}

/* ---- words --------------------------------------------------------------------------------------------------- */

enum { TAG_TENSOR = 1, TAG_INT, TAG_BOOL, TAG_FLOAT, TAG_NONE, TAG_OBJECT };
enum { ROLE_SHAPE = 1, ROLE_VALUE = 2, ROLE_CONSTEXPR = 4, ROLE_INTEGER = 8 }; /* what of a parameter is in the key */
enum { WORDS_OK = 0, WORDS_NONE = 1, WORDS_ERROR = -1 };

typedef struct {
  int count, objects;
  uint64_t word[MAX_WORDS];
  uint64_t raw[MAX_ARGS];         /* address or integer of each argument, for the launch */
  PyObject *object[MAX_ARGS];     /* borrowed: arguments that count by identity */
  int32_t device_type;            /* of the last tensor on a GPU */
  void *stream;                   /* torch's current one, once it was asked for */
  int has_stream, on_host;        /* and whether a tensor lies in the host's memory */
} Words;

typedef struct {
  PyObject_HEAD
  int n, places;          /* free parameters, and how many of them may be passed by position */
  PyObject **names;       /* strong, interned */
  PyObject **defaults;    /* strong, NULL where there is none */
  uint8_t *roles;
  PyObject **buckets;     /* strong, NULL where there is none */
  PyObject *functions;    /* tuple of key callables */
  PyObject *device;       /* callable giving the device's index where there is no libcuda */
  struct Entry **slots;   /* open addressing, a power of two */
  struct Entry **order;   /* oldest first, LIMIT long */
  size_t capacity, used;
  unsigned long long hits, evictions, computed; /* calls answered, entries dropped, grid callables not called */
} Table;

static inline void put(Words *w, uint64_t value) { w->word[w->count++] = value; }

/* '0', '1' or '*' of a stride as two bits. */
static inline uint64_t stride_bits(int64_t stride) { return 1u + (stride != 0) + ((uint64_t)stride > 1); }

/* The pattern where sizes 0 and 1 occur, which count as in a contiguous tensor. */
static __attribute__((noinline)) uint64_t normal_pattern(const View *v) {
  uint64_t pattern = 0;
  int64_t dense = 1;
  int empty = 0;
  for (int64_t d = 0; d < v->ndim; d++) empty |= v->shape[d] == 0;
  for (int64_t d = v->ndim - 1; d >= 0; d--) {
    pattern = pattern << 2 | stride_bits((v->shape[d] == 1 || empty || !v->strides) ? dense : v->strides[d]);
    dense *= v->shape[d] > 1 ? v->shape[d] : 1;
  }
  return pattern;
}

/* hot path. The stride pattern, two bits a dimension. */
static inline uint64_t stride_pattern(const View *v) {
  uint64_t pattern = 0;
  if (!v->strides) return normal_pattern(v);
  for (int64_t d = v->ndim - 1; d >= 0; d--) {
    if (v->shape[d] <= 1) return normal_pattern(v);
    pattern = pattern << 2 | stride_bits(v->strides[d]);
  }
  return pattern;
}

/* hot path. Words of an exact torch.Tensor or Parameter. */
static inline int words_of_tensor(Words *w, int i, PyObject *x, int role) {
  View v;
  if (!view(x, &v)) return WORDS_NONE; /* functorch and others without memory */
  if (v.ndim > MAX_DIMS || w->count + v.ndim + 4 > MAX_WORDS) return WORDS_NONE;
  uint64_t *out = w->word + w->count;
  uint32_t dtype; /* code, bits and lanes, as they lie */
  memcpy(&dtype, &v.dtype, sizeof dtype);
  out[0] = TAG_TENSOR | (uint64_t)((v.address & 15) == 0) << 7 | (uint64_t)v.ndim << 8 |
           (uint64_t)(uint8_t)v.device.type << 16 | (uint64_t)(uint8_t)v.device.id << 24 | (uint64_t)dtype << 32;
  out[1] = stride_pattern(&v);
  int dims = role & ROLE_SHAPE ? (int)v.ndim : 0;
  for (int d = 0; d < dims; d++) out[2 + d] = (uint64_t)v.shape[d];
  w->count += 2 + dims;
  w->raw[i] = v.address;
  if (v.device.type == DL_CPU) w->on_host = 1;
  else w->device_type = v.device.type;
  return WORDS_OK;
}

/* Fills raw and the integer class: is it 1, is it divisible by 16, its width. May run Python code (a bucket). */
static int words_of_int(const Table *t, Words *w, int i, PyObject *x, int role) {
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
  uint64_t width = 32;
  if (overflow < 0) return WORDS_NONE;
  if (overflow > 0) {
    unsigned long long large = PyLong_AsUnsignedLongLong(x);
    if (PyErr_Occurred()) { PyErr_Clear(); return WORDS_NONE; }
    w->raw[i] = large;
    width = 65;
  } else {
    w->raw[i] = (uint64_t)value;
    if (value < INT32_MIN || value > INT32_MAX) width = 64;
  }
  put(w, TAG_INT | width << 8 | (uint64_t)(w->raw[i] == 1) << 16 | (uint64_t)((w->raw[i] & 15) == 0) << 17);
  if (t->buckets[i]) {
    PyObject *bucket = PyObject_CallOneArg(t->buckets[i], x);
    if (!bucket) return WORDS_ERROR;
    long long edge = PyLong_Check(bucket) ? PyLong_AsLongLongAndOverflow(bucket, &overflow) : (overflow = 1, 0);
    Py_DECREF(bucket);
    if (overflow) { PyErr_Clear(); return WORDS_NONE; }
    put(w, (uint64_t)edge);
  }
  /* A bucketed constexpr is compiled in with its true value. */
  if (role & ROLE_CONSTEXPR || (!t->buckets[i] && role & (ROLE_VALUE | ROLE_INTEGER))) put(w, w->raw[i]);
  return WORDS_OK;
}

static int words_of_float(Words *w, int i, PyObject *x, int role) {
  double value = PyFloat_AS_DOUBLE(x);
  memcpy(&w->raw[i], &value, sizeof value);
  put(w, TAG_FLOAT);
  if (role & (ROLE_VALUE | ROLE_CONSTEXPR)) put(w, value != value ? UINT64_C(0x7ff8000000000000) : w->raw[i]);
  return WORDS_OK;
}

/* A value that counts by identity: text, a dtype, a member of an enum; anything else has no words. */
static int words_of_object(Words *w, int i, PyObject *x) {
  const char *kind = Py_TYPE(x)->tp_name;
  const char *dot = strrchr(kind, '.');
  int known = PyUnicode_CheckExact(x) || !strcmp(dot ? dot + 1 : kind, "dtype");
  if (!known) return WORDS_NONE;
  put(w, TAG_OBJECT);
  put(w, (uint64_t)(uintptr_t)x);
  w->raw[i] = 0;
  w->object[w->objects++] = x;
  return WORDS_OK;
}

static int words_of_argument(const Table *t, Words *w, int i, PyObject *x) {
  PyTypeObject *type = Py_TYPE(x);
  int role = t->roles[i];
  if (w->count + 4 > MAX_WORDS) return WORDS_NONE;
  if (tensor_type && (type == tensor_type || type == parameter_type)) return words_of_tensor(w, i, x, role);
  if (type == &PyLong_Type) return words_of_int(t, w, i, x, role);
  if (type == &PyBool_Type) {
    put(w, TAG_BOOL | (uint64_t)(x == Py_True) << 8);
    w->raw[i] = x == Py_True;
    return WORDS_OK;
  }
  if (type == &PyFloat_Type) return words_of_float(w, i, x, role);
  if (x == Py_None) { put(w, TAG_NONE); w->raw[i] = 0; return WORDS_OK; }
  return words_of_object(w, i, x);
}

/* cold: the value of each key callable, which must be an int, bool, None or text. Runs Python code. */
static int words_of_functions(const Table *t, Words *w, PyObject *const *values) {
  Py_ssize_t count = PyTuple_GET_SIZE(t->functions);
  if (!count) return WORDS_OK;
  PyObject *arguments = PyDict_New();
  if (!arguments) return WORDS_ERROR;
  int result = WORDS_OK;
  for (int i = 0; i < t->n && result == WORDS_OK; i++)
    if (PyDict_SetItem(arguments, t->names[i], values[i])) result = WORDS_ERROR;
  for (Py_ssize_t f = 0; f < count && result == WORDS_OK; f++) {
    PyObject *value = PyObject_CallOneArg(PyTuple_GET_ITEM(t->functions, f), arguments);
    int overflow = 0;
    if (!value) { result = WORDS_ERROR; break; }
    if (w->count + 2 > MAX_WORDS || !(PyLong_CheckExact(value) || PyBool_Check(value))) {
      result = WORDS_NONE;
    } else {
      put(w, TAG_INT | (uint64_t)PyBool_Check(value) << 8);
      put(w, (uint64_t)PyLong_AsLongLongAndOverflow(value, &overflow));
      if (overflow) result = WORDS_NONE;
    }
    Py_DECREF(value);
  }
  Py_DECREF(arguments);
  return result;
}

/* hot path. The words of a call. WORDS_ERROR leaves a Python error set. May run Python code. */
static int make_words(const Table *t, Words *w, PyObject *const *values) {
  w->count = w->objects = w->has_stream = w->on_host = 0;
  w->device_type = DL_CUDA;
  if (t->device != Py_None && cu_context) {
    void *context = NULL;
    if (cu_context(&context)) return WORDS_NONE;
    put(w, (uint64_t)(uintptr_t)context);
  } else if (t->device != Py_None) {
    PyObject *index = PyObject_CallNoArgs(t->device);
    if (!index) return WORDS_ERROR;
    put(w, (uint64_t)PyLong_AsLongLong(index));
    Py_DECREF(index);
    if (PyErr_Occurred()) return WORDS_ERROR;
  }
  for (int i = 0; i < t->n; i++) {
    int result = words_of_argument(t, w, i, values[i]);
    if (result) return result;
  }
  return words_of_functions(t, w, values);
}

/* hot path. FNV-1a over words in four lanes: one lane would wait for its multiplication at every word. */
static uint64_t hash_words(const Words *w) {
  const uint64_t prime = UINT64_C(1099511628211);
  uint64_t lane[4] = {UINT64_C(1469598103934665603), 2, 3, 5};
  int i = 0;
  for (; i + 4 <= w->count; i += 4)
    for (int l = 0; l < 4; l++) lane[l] = (lane[l] ^ w->word[i + l]) * prime;
  for (; i < w->count; i++) lane[0] = (lane[0] ^ w->word[i]) * prime;
  uint64_t h = 0;
  for (int l = 0; l < 4; l++) {
    h = (h ^ lane[l] ^ lane[l] >> 29) * prime;
    h ^= h >> 32;
  }
  return h;
}

/* ---- entries ------------------------------------------------------------------------------------------------- */

/* How a value is written into the kernel's parameter buffer; SKIP is compiled in. */
enum { SKIP = '-', POINTER = 'p', INT1 = 'b', INT8 = '1', INT16 = '2', INT32 = '4', INT64 = '8', FP32 = 'f', FP64 = 'd' };

typedef struct {
  PyObject *kernel;    /* strong weak reference: Triton's cache owns the kernel, and whoever evicts it unloads it */
  void *function;
  int32_t device; /* index of the one it was loaded on, whose context is among the words */
  unsigned threads, shared_bytes, ctas; /* threads of a block, bytes of shared memory, blocks of a cluster */
  char kinds[MAX_ARGS];
  uint8_t passed[MAX_ARGS]; /* indexes of what is not compiled in, in order */
  int passed_count, narrowed; /* and how many; whether a float among them is passed as 32 bits */
  CuAttribute attributes[4];
  unsigned attribute_count;
  PyObject *cache, *cache_key;        /* strong: the kernel must still be what Triton's own look-up finds */
  PyObject *pre_run, *entering, *leaving; /* strong lists; anything in them sends the call to Triton */
  PyObject *holds;     /* strong callable: compares everything that is watched */
  PyObject *constants; /* strong dict: None for each free parameter, then the config's values; for grid callables */
  PyObject *hook, *hook_constants; /* strong, or NULL: the config's hook, and such a dict of all that it is given */
  uint8_t zeroed[MAX_ARGS];        /* which parameters are zeroed before every launch */
  int zeroes;                      /* how many of them */
  uint64_t generation; /* the shared one when `holds` last said yes */
#if !HAVE_WATCHERS
  PyObject *watched;  /* strong tuple of dicts */
  uint64_t *versions; /* owned; theirs when `holds` last said yes */
#endif
} Direct;

typedef struct Entry {
  int references;
  uint64_t hash;
  int count, objects, on_host;
  uint64_t *words;
  PyObject **object; /* strong: what counts by identity must stay alive */
  PyObject *bound;   /* strong: runs the launch in Python where `direct` is NULL or its guards say no */
  PyObject *config;  /* strong */
  PyObject *before;  /* strong or NULL: zeroing and the config's hook */
  PyObject *fields;  /* strong or NULL: the tuple that `direct` was made from */
  Direct *direct;    /* owned, or NULL */
} Entry;

static void free_direct(Direct *d) {
  if (!d) return;
  Py_XDECREF(d->kernel); Py_XDECREF(d->cache); Py_XDECREF(d->cache_key); Py_XDECREF(d->pre_run);
  Py_XDECREF(d->entering); Py_XDECREF(d->leaving); Py_XDECREF(d->holds); Py_XDECREF(d->constants);
  Py_XDECREF(d->hook); Py_XDECREF(d->hook_constants);
#if !HAVE_WATCHERS
  Py_XDECREF(d->watched);
  PyMem_Free(d->versions);
#endif
  PyMem_Free(d);
}

/* May run Python code (destructors) when the last reference goes. */
static void release(Entry *e) {
  if (--e->references) return;
  for (int i = 0; i < e->objects; i++) Py_DECREF(e->object[i]);
  Py_XDECREF(e->bound); Py_XDECREF(e->config); Py_XDECREF(e->before); Py_XDECREF(e->fields);
  free_direct(e->direct);
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

static void place(Entry **slots, size_t capacity, Entry *e) {
  size_t i = e->hash & (capacity - 1);
  while (slots[i]) i = (i + 1) & (capacity - 1);
  slots[i] = e;
}

/* Rebuild the slots from `order`; -1 with MemoryError. */
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
    t->evictions += gone;
    if (rehash(t, t->capacity)) return -1;
    for (size_t i = 0; i < gone; i++) release(old[i]); /* last: destructors may call into this table */
  }
  return 2 * (t->used + 1) > t->capacity ? rehash(t, t->capacity ? 2 * t->capacity : 16) : 0;
}

static int insert(Table *t, Entry *e, const Words *w) {
  Entry *present = look_up(t, w, e->hash);
  if (present) {
    for (size_t i = 0; i < t->capacity; i++) if (t->slots[i] == present) t->slots[i] = e;
    for (size_t i = 0; i < t->used; i++) if (t->order[i] == present) t->order[i] = e;
    release(present);
    return 0;
  }
  if (make_room(t)) return -1;
  t->order[t->used++] = e;
  place(t->slots, t->capacity, e);
  return 0;
}

/* Field of a tuple given by Python as a new reference to keep. */
static PyObject *kept(PyObject *tuple, int i) { PyObject *o = PyTuple_GET_ITEM(tuple, i); Py_INCREF(o); return o; }

static void take_kinds(Direct *d, const char *kinds, int n) {
  memcpy(d->kinds, kinds, (size_t)n);
  for (int i = 0; i < n; i++) {
    if (kinds[i] != SKIP) d->passed[d->passed_count++] = (uint8_t)i;
    d->narrowed |= kinds[i] == FP32;
  }
}

/* Take over `Bound.direct`: a tuple (kernel's weak reference, function, threads, shared bytes, kinds, attributes, cache,
 * cache key, pre-run hooks, enter hooks, leave hooks, holds, constants, watched dicts, ctas, hook, its constants, indexes
 * of zeroed parameters, device). NULL with an error set. */
static Direct *direct_of(PyObject *tuple, int n) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != 19) {
    PyErr_SetString(PyExc_TypeError, "Bound.direct: expected a tuple of 19 fields");
    return NULL;
  }
  Direct *d = PyMem_Calloc(1, sizeof *d);
  if (!d) { PyErr_NoMemory(); return NULL; }
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
  Py_ssize_t length = 0;
  const char *kinds = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, 4), &length);
  if (kinds && length == n) take_kinds(d, kinds, n);
  else if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "Bound.direct: expected one kind a parameter");
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
  d->watched = kept(tuple, 13);
  d->versions = PyMem_Calloc((size_t)PyTuple_GET_SIZE(d->watched) + 1, sizeof *d->versions);
  if (!d->versions) PyErr_NoMemory();
#endif
  if (PyErr_Occurred()) { free_direct(d); return NULL; }
  return d;
}

/* ---- guards -------------------------------------------------------------------------------------------------- */

#if !HAVE_WATCHERS
/* Types have no watchers before 3.12, but a version that is 0 from any change to the next look-up. */
static PyTypeObject *watched_types[WATCHED_TYPES];
static unsigned watched_tags[WATCHED_TYPES];
static int watched_type_count = 0;

/* hot path. Grow the generation if a watched type has changed. */
static void look_at_types(void) {
  for (int i = 0; i < watched_type_count; i++) {
    if (watched_types[i]->tp_version_tag == watched_tags[i] && watched_tags[i]) continue;
    generation++;
    PyObject *any = PyObject_GetAttr((PyObject *)watched_types[i], s_run); /* a look-up gives it a version again */
    if (!any) PyErr_Clear();
    Py_XDECREF(any);
    watched_tags[i] = watched_types[i]->tp_version_tag;
  }
}

static uint64_t version_of(const Direct *d, Py_ssize_t i) {
  return ((PyDictObject *)PyTuple_GET_ITEM(d->watched, i))->ma_version_tag;
}
static int versions_hold(const Direct *d) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(d->watched); i++) if (version_of(d, i) != d->versions[i]) return 0;
  return 1;
}
static void note_versions(Direct *d) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(d->watched); i++) d->versions[i] = version_of(d, i);
}
#else
static void look_at_types(void) {}
static int versions_hold(const Direct *d) { (void)d; return 1; }
static void note_versions(Direct *d) { (void)d; }
#endif

/* New reference to what a weak reference is to; NULL without an error if that is gone. */
static PyObject *referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found = NULL;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
  return found;
#else
  PyObject *found = PyWeakref_GET_OBJECT(reference);
  if (found == Py_None) return NULL;
  Py_INCREF(found);
  return found;
#endif
}

/* Something watched has changed: ask again. 1, 0 or -1 as below; runs Python code. */
static __attribute__((noinline)) int compare_watched(Direct *d, PyObject *kernel) {
  uint64_t now = generation;
  d->generation = 0; /* until all is found as it was */
  note_versions(d);
  PyObject *cached = PyDict_GetItemWithError(d->cache, d->cache_key);
  if (cached != kernel) return PyErr_Occurred() ? -1 : 0;
  PyObject *holds = PyObject_CallNoArgs(d->holds);
  int yes = holds ? PyObject_IsTrue(holds) : -1;
  Py_XDECREF(holds);
  if (yes == 1) d->generation = now;
  return yes;
}

/* hot path. 1: launch directly, with a new reference to the kernel, which lives through this launch whatever a hook does
 * to Triton's cache; 0: Triton must decide; -1: error. Triton's cache is among what is watched: while it is unchanged
 * the kernel is what Triton's own look-up would find. Runs Python code only if something changed. */
static int guards_hold(Direct *d, PyObject **kernel) {
  if (PyList_GET_SIZE(d->pre_run) || PyList_GET_SIZE(d->entering) || PyList_GET_SIZE(d->leaving)) return 0;
  if (!(*kernel = referent(d->kernel))) return 0;
  int yes = d->generation == generation && versions_hold(d) ? 1 : compare_watched(d, *kernel);
  if (yes != 1) Py_CLEAR(*kernel);
  return yes;
}

/* ---- grids that are arithmetic --------------------------------------------------------------------------------- */

/* What `arithmetic.py` has read off the code of a grid callable: steps of a machine with a stack of integers. A step that
 * looks compares what a name leads to with what it led to then, and where it does not, the callable is called. */
enum { G_INT, G_META, G_CELL, G_GLOBAL, G_ADD, G_SUB, G_MUL, G_FLOORDIV, G_MOD, G_MIN, G_MAX, G_NEG, G_IS_GLOBAL,
       G_NO_GLOBAL, G_IS_ITEM, G_IS_CODE };
#define MAX_STACK 16
#define MAX_PROGRAMS 1024 /* callables by their code, recognised or not; what is beyond is called */

typedef struct {
  int kind;
  long long number;
  PyObject *name, *of, *is; /* strong, NULL where there is none; names are interned */
} Step;

typedef struct {
  PyObject *code;   /* strong; NULL: a free place */
  int count, sizes; /* steps; how many sizes they leave, 0: not arithmetic */
  Step *steps;      /* owned */
} Program;

static Program programs[MAX_PROGRAMS];
static int program_count = 0;
static PyObject *reader; /* strong: gives the program of a callable, or None */

/* Fill a step from Python's tuple; 0 with an error set. */
static int take_step(Step *s, PyObject *tuple) {
  PyObject *name, *of, *is;
  if (!PyArg_ParseTuple(tuple, "iLOOO", &s->kind, &s->number, &name, &of, &is)) return 0;
  if (s->kind < G_INT || s->kind > G_IS_CODE) { PyErr_SetString(PyExc_ValueError, "a grid's program: unknown step"); return 0; }
  int named = s->kind == G_META || s->kind == G_GLOBAL || (s->kind >= G_IS_GLOBAL && s->kind <= G_IS_ITEM);
  if ((named && !PyUnicode_Check(name)) || (s->kind == G_IS_ITEM && !PyDict_Check(of)) || (s->kind == G_IS_CODE && !PyFunction_Check(of))) {
    PyErr_SetString(PyExc_TypeError, "a grid's program: a step lacks its name, dict or function");
    return 0;
  }
  s->name = name == Py_None ? NULL : Py_NewRef(name);
  s->of = of == Py_None ? NULL : Py_NewRef(of);
  s->is = is == Py_None ? NULL : Py_NewRef(is);
  return 1;
}

/* How far a step moves the top of the stack. */
static int growth(int kind) { return kind <= G_GLOBAL ? 1 : kind < G_NEG ? -1 : 0; }

/* Whether the steps never take what is not there, and leave as many numbers as there are sizes. */
static int is_sound(const Program *p) {
  int depth = 0;
  for (int i = 0; i < p->count; i++) {
    int kind = p->steps[i].kind, needs = kind >= G_ADD && kind <= G_MAX ? 2 : kind == G_NEG;
    if (depth < needs || (depth += growth(kind)) > MAX_STACK) return 0;
  }
  return depth == p->sizes && p->sizes >= 1 && p->sizes <= 3;
}

static void drop_steps(Program *p) {
  for (int i = 0; i < p->count; i++) { Py_XDECREF(p->steps[i].name); Py_XDECREF(p->steps[i].of); Py_XDECREF(p->steps[i].is); }
  PyMem_Free(p->steps);
  p->steps = NULL;
  p->count = p->sizes = 0;
}

/* Take over a program given by Python as (sizes, steps); without it, or with an unsound one, `sizes` stays 0. */
static void take_program(Program *p, PyObject *made) {
  PyObject *steps;
  int sizes;
  if (made == Py_None || !PyArg_ParseTuple(made, "iO!", &sizes, &PyTuple_Type, &steps)) { PyErr_Clear(); return; }
  p->steps = PyMem_Calloc((size_t)PyTuple_GET_SIZE(steps) + 1, sizeof *p->steps);
  if (!p->steps) return;
  p->sizes = sizes;
  for (; p->count < PyTuple_GET_SIZE(steps) && take_step(&p->steps[p->count], PyTuple_GET_ITEM(steps, p->count)); p->count++);
  if (p->count < PyTuple_GET_SIZE(steps) || !is_sound(p)) { PyErr_Clear(); drop_steps(p); }
}

static inline size_t program_place(PyObject *code) { return ((uintptr_t)code >> 5) % MAX_PROGRAMS; }

/* cold path. Read a callable's code; runs Python code, which may read another one meanwhile. */
static __attribute__((noinline)) void read_program(PyObject *grid, PyObject *code) {
  Program p = {0};
  PyObject *made = PyObject_CallOneArg(reader, grid);
  if (!made) { PyErr_Clear(); made = Py_NewRef(Py_None); } /* never asked again */
  size_t i = program_place(code);
  while (programs[i].code && programs[i].code != code) i = (i + 1) % MAX_PROGRAMS;
  if (!programs[i].code && program_count < MAX_PROGRAMS / 2) {
    take_program(&p, made);
    p.code = Py_NewRef(code);
    programs[i] = p;
    program_count++;
  }
  Py_DECREF(made);
}

/* hot path. The program of a callable, or NULL. */
static const Program *program_of(PyObject *grid) {
  PyObject *code = PyFunction_GET_CODE(grid);
  for (int again = 0; again < 2; again++) {
    for (size_t i = program_place(code); programs[i].code; i = (i + 1) % MAX_PROGRAMS)
      if (programs[i].code == code) return programs[i].sizes ? &programs[i] : NULL;
    if (again || !reader || program_count >= MAX_PROGRAMS / 2) return NULL;
    read_program(grid, code);
  }
  return NULL;
}

static inline int as_number(PyObject *x, long long *out) {
  int overflow = 0;
  if (!x || !PyLong_CheckExact(x)) return 0;
  *out = PyLong_AsLongLongAndOverflow(x, &overflow);
  return !overflow;
}

/* Borrowed value of a dict whose keys are text, NULL without an error if it is not there. */
static PyObject *item(PyObject *dict, PyObject *name) {
  PyObject *found = PyDict_GetItemWithError(dict, name);
  if (!found && PyErr_Occurred()) PyErr_Clear();
  return found;
}

/* Borrowed argument of the call, or parameter of the config, by name; NULL if there is none. */
static PyObject *argument(const Table *t, PyObject *constants, PyObject *const *values, PyObject *name) {
  for (int i = 0; i < t->n; i++) if (t->names[i] == name) return values[i];
  return item(constants, name);
}

/* The number or the comparison of a step that is no operation; 0 if there is none, or it does not hold. */
static inline int looked_up(const Step *s, PyObject *grid, const Table *t, PyObject *constants, PyObject *const *values,
                            long long *out) {
  PyObject *cells;
  switch (s->kind) {
    case G_INT: *out = s->number; return 1;
    case G_META: return as_number(argument(t, constants, values, s->name), out);
    case G_CELL:
      cells = PyFunction_GET_CLOSURE(grid);
      return cells && s->number >= 0 && s->number < PyTuple_GET_SIZE(cells) && as_number(PyCell_GET(PyTuple_GET_ITEM(cells, s->number)), out);
    case G_GLOBAL: return as_number(item(PyFunction_GET_GLOBALS(grid), s->name), out);
    case G_IS_GLOBAL: return item(PyFunction_GET_GLOBALS(grid), s->name) == s->is;
    case G_NO_GLOBAL: return !item(PyFunction_GET_GLOBALS(grid), s->name);
    case G_IS_ITEM: return item(s->of, s->name) == s->is;
    default: return PyFunction_GET_CODE(s->of) == s->is;
  }
}

/* Python's `//` and `%`; 0 if Python raises or 64 bits do not hold it. */
static int floor_divide(long long a, long long b, long long *quotient, long long *rest) {
  if (!b || (b == -1 && a == INT64_MIN)) return 0;
  *quotient = a / b;
  *rest = a % b;
  if (*rest && (*rest < 0) != (b < 0)) { --*quotient; *rest += b; }
  return 1;
}

static inline int operate(int kind, long long *a, long long b) {
  long long other;
  switch (kind) {
    case G_ADD: return !__builtin_add_overflow(*a, b, a);
    case G_SUB: return !__builtin_sub_overflow(*a, b, a);
    case G_MUL: return !__builtin_mul_overflow(*a, b, a);
    case G_FLOORDIV: return floor_divide(*a, b, a, &other);
    case G_MOD: return floor_divide(*a, b, &other, a);
    case G_MIN: *a = b < *a ? b : *a; return 1;
    default: *a = b > *a ? b : *a; return 1;
  }
}

/* Somebody watches calls: a debugger, a profiler, a measurement of coverage. They are to see this one. */
static int is_traced(void) {
  PyThreadState *state = PyThreadState_Get();
  return state->c_tracefunc || state->c_profilefunc;
}

/* hot path. The sizes of a grid callable that is arithmetic, without calling it; 0 if it must be called. Runs no Python
 * code but the reader, at the first sight of a callable. */
static int compute_grid(Table *t, PyObject *constants, PyObject *grid, PyObject *const *values, long out[3]) {
  long long stack[MAX_STACK + 1];
  const Program *p = PyFunction_Check(grid) && !is_traced() ? program_of(grid) : NULL;
  if (!p || !PyDict_CheckExact(PyFunction_GET_GLOBALS(grid))) return 0;
  int top = 0;
  for (int i = 0; i < p->count; i++) {
    const Step *s = &p->steps[i];
    if (s->kind >= G_ADD && s->kind <= G_MAX) {
      top--;
      if (!operate(s->kind, &stack[top - 1], stack[top])) return 0;
    } else if (s->kind == G_NEG) {
      if (__builtin_sub_overflow(0LL, stack[top - 1], &stack[top - 1])) return 0;
    } else {
      if (!looked_up(s, grid, t, constants, values, &stack[top])) return 0;
      top += growth(s->kind);
    }
  }
  out[1] = out[2] = 1;
  for (int i = 0; i < p->sizes; i++) {
    if (stack[i] < 0 || stack[i] > INT32_MAX) return 0;
    out[i] = (long)stack[i];
  }
  t->computed++;
  return 1;
}

/* ---- launching ----------------------------------------------------------------------------------------------- */

/* One size of a grid; -1 with an error set. */
static long grid_size(PyObject *x) {
  long value = PyLong_Check(x) ? PyLong_AsLong(x) : -1;
  if (PyLong_Check(x)) {
    if (value == -1 && PyErr_Occurred()) return -1;
    if (value < 0 || value > INT32_MAX) {
      PyErr_Format(PyExc_ValueError, "grid: expected sizes from 0 to 2147483647, got %ld", value);
      return -1;
    }
    return value;
  }
  PyObject *index = PyNumber_Index(x); /* NumPy integers, tl.constexpr */
  if (!index) return -1;
  value = PyLong_AsLong(index);
  Py_DECREF(index);
  if (value < 0 && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "grid: expected sizes of 0 or more, got %ld", value);
  return PyErr_Occurred() ? -1 : value;
}

/* A dict of all arguments by name: a copy of `constants`, which holds every name already, so that nothing is resized. */
static PyObject *arguments_by_name(const Table *t, PyObject *constants, PyObject *const *values) {
  PyObject *all = PyDict_Copy(constants);
  for (int i = 0; all && i < t->n; i++)
    if (PyDict_SetItem(all, t->names[i], values[i])) Py_CLEAR(all);
  return all;
}

/* hot path. A tuple of 1 to 3 ordinary sizes; 0 if it is anything else, which `evaluate_grid` takes or refuses. */
static int plain_grid(PyObject *grid, long out[3]) {
  if (!PyTuple_CheckExact(grid)) return 0;
  Py_ssize_t count = PyTuple_GET_SIZE(grid);
  if (count < 1 || count > 3) return 0;
  out[1] = out[2] = 1;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *size = PyTuple_GET_ITEM(grid, i);
    int overflow = 0;
    if (!PyLong_CheckExact(size)) return 0;
    out[i] = PyLong_AsLongAndOverflow(size, &overflow);
    if (overflow || out[i] < 0 || out[i] > INT32_MAX) return 0;
  }
  return 1;
}

/* The grid as three sizes; a callable is asked with all arguments by name, or computed. Runs Python code if it is one. */
static int evaluate_grid(Table *t, const Direct *d, PyObject *grid, PyObject *const *values, long out[3]) {
  PyObject *owned = NULL;
  if (plain_grid(grid, out)) return 0;
  if (!PyTuple_CheckExact(grid) && PyCallable_Check(grid)) {
    if (compute_grid(t, d->constants, grid, values, out)) return 0;
    PyObject *meta = arguments_by_name(t, d->constants, values);
    if (!meta) return -1;
    owned = PyObject_CallOneArg(grid, meta);
    Py_DECREF(meta);
    if (!owned) return -1;
    if (plain_grid(owned, out)) { Py_DECREF(owned); return 0; }
    grid = owned;
  }
  PyObject *sizes = PySequence_Fast(grid, "grid: expected a tuple or list of 1 to 3 sizes, or a callable returning one");
  Py_XDECREF(owned);
  if (!sizes) return -1;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(sizes);
  if (!count) PyErr_SetString(PyExc_IndexError, "grid: expected 1 to 3 sizes, got none");
  out[0] = out[1] = out[2] = 1;
  for (Py_ssize_t i = 0; i < count && i < 3 && !PyErr_Occurred(); i++) out[i] = grid_size(PySequence_Fast_GET_ITEM(sizes, i));
  Py_DECREF(sizes);
  return PyErr_Occurred() ? -1 : 0;
}

/* A double as a float, in the low bytes of its 64 bits. */
static void narrow(uint64_t *raw) {
  double wide;
  float low;
  memcpy(&wide, raw, sizeof wide);
  low = (float)wide;
  memcpy(raw, &low, sizeof low);
}

/* hot path. Point at the arguments as the kernel takes them; returns how many. A narrower integer is the low bytes of the
 * 64: little endian. */
static int pack(const Direct *d, int n, uint64_t *raw, void **params) {
  for (int i = 0; d->narrowed && i < n; i++) if (d->kinds[i] == FP32) narrow(&raw[i]);
  for (int i = 0; i < d->passed_count; i++) params[i] = &raw[d->passed[i]];
  return d->passed_count;
}

static int raise_cuda(int error) {
  const char *text = NULL;
  if (cu_error) cu_error(error, &text);
  PyErr_Format(PyExc_RuntimeError, "Triton Error [CUDA]: %s", text ? text : "unknown error");
  return -1;
}

/* hot path. torch's current stream of the device that is launched on, into the words; -1 with an error set. */
static int find_stream(const Direct *d, Words *w) {
  if (w->has_stream) return 0;
  w->has_stream = 1;
  return stream_of(w->device_type, d->device, &w->stream) ? -1 : 0;
}

/* hot path. Submit on torch's current stream; the GIL is released, since a full queue blocks. */
static int submit(const Direct *d, int n, Words *w, const long grid[3]) {
  static uint64_t no_scratch = 0;
  void *params[MAX_ARGS + 2];
  if (!grid[0] || !grid[1] || !grid[2]) return 0;
  if (find_stream(d, w)) return -1;
  int count = pack(d, n, w->raw, params);
  params[count] = params[count + 1] = &no_scratch; /* global and profile scratch */
  CuLaunchConfig c = {(unsigned)grid[0] * d->ctas, (unsigned)grid[1], (unsigned)grid[2], d->threads, 1, 1, d->shared_bytes, w->stream,
                      d->attribute_count ? (CuAttribute *)d->attributes : NULL, d->attribute_count};
  int error;
  Py_BEGIN_ALLOW_THREADS
  error = cu_launch(&c, d->function, params, NULL);
  Py_END_ALLOW_THREADS
  return error ? raise_cuda(error) : 0;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

static void table_forget(Table *t) {
  size_t used = t->used;
  Entry **order = t->order, **slots = t->slots;
  t->used = t->capacity = 0;
  t->slots = NULL;
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
  t->roles = PyMem_Calloc(n + 1, 1);
  t->order = PyMem_Calloc(LIMIT, sizeof *t->order);
  if (!t->names || !t->defaults || !t->buckets || !t->roles || !t->order) { PyErr_NoMemory(); return -1; }
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

static int table_init(Table *t, PyObject *args, PyObject *keywords) {
  PyObject *names, *defaults, *roles, *buckets, *functions, *device;
  static char *list[] = {"names", "places", "defaults", "roles", "buckets", "functions", "device", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!iO!O!O!O!O", list, &PyTuple_Type, &names, &t->places,
                                   &PyDict_Type, &defaults, &PyTuple_Type, &roles, &PyDict_Type, &buckets,
                                   &PyTuple_Type, &functions, &device))
    return -1;
  if (t->names) { PyErr_SetString(PyExc_TypeError, "Table: initialised already"); return -1; }
  t->n = (int)PyTuple_GET_SIZE(names);
  if (t->n > MAX_ARGS || PyTuple_GET_SIZE(roles) != t->n) {
    t->n = 0;
    PyErr_Format(PyExc_ValueError, "Table: expected at most %d names and one role each", MAX_ARGS);
    return -1;
  }
  Py_INCREF(functions); t->functions = functions;
  Py_INCREF(device); t->device = device;
  return fill_table(t, names, defaults, roles, buckets);
}

/* What a launch holds: through a config's hook, or what the hook is a method of, it may lead back to its own table. */
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
  for (int i = 0; t->buckets && i < t->n; i++) { Py_VISIT(t->buckets[i]); Py_VISIT(t->defaults[i]); }
  for (size_t i = 0; i < t->used; i++) {
    Entry *e = t->order[i];
    if (e->references != 1) continue; /* also held by a running call */
    Py_VISIT(e->bound); Py_VISIT(e->config); Py_VISIT(e->before); Py_VISIT(e->fields);
    int stop = e->direct ? direct_traverse(e->direct, visit, arg) : 0;
    if (stop) return stop;
  }
  return 0;
}

static int table_clear_references(Table *t) {
  if (t->order) table_forget(t);
  Py_CLEAR(t->functions);
  Py_CLEAR(t->device);
  return 0;
}

static void table_dealloc(Table *t) {
  PyObject_GC_UnTrack(t);
  table_clear_references(t);
  for (int i = 0; t->names && i < t->n; i++) { Py_XDECREF(t->names[i]); Py_XDECREF(t->defaults[i]); Py_XDECREF(t->buckets[i]); }
  PyMem_Free(t->names); PyMem_Free(t->defaults); PyMem_Free(t->buckets); PyMem_Free(t->roles); PyMem_Free(t->order);
  PyTypeObject *type = Py_TYPE(t);
  type->tp_free((PyObject *)t);
}

/* The values of a call as an array; 0 if they are not as many as the parameters. */
static int as_values(const Table *t, PyObject *tuple, PyObject ***out) {
  if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != t->n) return 0;
  *out = ((PyTupleObject *)tuple)->ob_item;
  return 1;
}

static PyObject *table_find(Table *t, PyObject *tuple) {
  PyObject **values;
  Words w;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) PyErr_Clear(); /* the safe path meets the same error and raises it */
  Entry *e = result ? NULL : look_up(t, &w, hash_words(&w));
  if (!e) Py_RETURN_NONE;
  t->hits++;
  Py_INCREF(e->bound);
  return e->bound;
}

/* Attribute of the bound object, None taken as absent; -1 on error. */
static int optional(PyObject *bound, const char *name, PyObject **out) {
  *out = PyObject_GetAttrString(bound, name);
  if (!*out) return -1;
  if (*out == Py_None) Py_CLEAR(*out);
  return 0;
}

/* Make `direct` anew if `bound.direct` is another tuple than before: Triton has chosen another kernel. -1 on error.
 * Memory of the host never goes to the driver from here: pinned memory may be launched with and other memory may not, in
 * words they are alike, and Triton's launcher tells them apart. */
static int take_direct(Entry *e, int n) {
  PyObject *fields = NULL;
  if (optional(e->bound, "direct", &fields)) return -1;
  if (fields == e->fields) { Py_XDECREF(fields); return 0; }
  Direct *made = fields && cu_launch && dl && (!e->on_host || takes_host_memory) ? direct_of(fields, n) : NULL;
  if (PyErr_Occurred()) { Py_XDECREF(fields); return -1; }
  free_direct(e->direct);
  Py_XDECREF(e->fields);
  e->direct = made;
  e->fields = fields;
  return 0;
}

static Entry *new_entry(const Table *t, const Words *w, PyObject *bound) {
  Entry *e = PyMem_Calloc(1, sizeof *e);
  if (!e) { PyErr_NoMemory(); return NULL; }
  e->references = 1;
  e->hash = hash_words(w);
  e->count = w->count;
  e->on_host = w->on_host;
  e->words = PyMem_Malloc(sizeof(uint64_t) * (size_t)(w->count + 1));
  e->object = PyMem_Calloc((size_t)w->objects + 1, sizeof *e->object);
  if (!e->words || !e->object) { PyErr_NoMemory(); release(e); return NULL; }
  memcpy(e->words, w->word, sizeof(uint64_t) * (size_t)w->count);
  for (; e->objects < w->objects; e->objects++) { e->object[e->objects] = w->object[e->objects]; Py_INCREF(e->object[e->objects]); }
  Py_INCREF(bound);
  e->bound = bound;
  e->config = PyObject_GetAttr(bound, s_config);
  if (!e->config || optional(bound, "before", &e->before) || take_direct(e, t->n)) { release(e); return NULL; }
  return e;
}

static int find_torch(void);
static void find_driver(void);

static PyObject *table_bind(Table *t, PyObject *args) {
  PyObject *tuple, *bound, **values;
  Words w;
  if (!PyArg_ParseTuple(args, "OO", &tuple, &bound)) return NULL;
  if (find_torch()) return NULL;
  find_driver();
  if (!as_values(t, tuple, &values)) Py_RETURN_FALSE;
  compare_shims(values, t->n);
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) PyErr_Clear();
  if (result) Py_RETURN_FALSE;
  Entry *e = new_entry(t, &w, bound);
  if (!e) return NULL;
  if (insert(t, e, &w)) { release(e); return NULL; }
  Py_RETURN_TRUE;
}

static PyObject *table_words(Table *t, PyObject *tuple) {
  PyObject **values;
  Words w;
  if (find_torch()) return NULL;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) return NULL;
  if (result) Py_RETURN_NONE;
  return PyBytes_FromStringAndSize((const char *)w.word, (Py_ssize_t)sizeof(uint64_t) * w.count);
}

static PyObject *table_clear(Table *t, PyObject *unused) {
  (void)unused;
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
    {"bind", (PyCFunction)table_bind, METH_VARARGS, "Bind argument values; False if they have no words."},
    {"words", (PyCFunction)table_words, METH_O, "The words of these argument values as bytes, or None; for tests."},
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
    .tp_doc = "Table(names, places, defaults, roles, buckets, functions, device): words of arguments to bound kernels.",
    .tp_basicsize = sizeof(Table), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, .tp_new = PyType_GenericNew,
    .tp_init = (initproc)table_init, .tp_dealloc = (destructor)table_dealloc, .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_clear_references, .tp_methods = table_methods, .tp_getset = table_fields,
    .tp_as_sequence = &table_sequence};

/* ---- the base of `Tuned` -------------------------------------------------------------------------------------- */

typedef struct Best { unsigned long thread; PyObject *config; struct Best *next; } Best;

typedef struct {
  PyObject_HEAD
  Table *table;          /* strong or NULL: then every call takes the Python path */
  PyObject *configs;     /* strong: the live list */
  PyObject *seen;        /* strong: the list that the table was built for, and its length */
  Py_ssize_t seen_length;
  uint64_t generation;   /* the shared one when `_still_ours` last said yes */
  Best *best;            /* config of each thread's last launch, most recent thread first */
} Base;

/* hot path. Note the config of this thread's launch. */
static int set_best(Base *b, PyObject *config) {
  unsigned long me = PyThread_get_thread_ident();
  Best *slot = b->best;
  while (slot && slot->thread != me) slot = slot->next;
  if (!slot) {
    slot = PyMem_Malloc(sizeof *slot);
    if (!slot) { PyErr_NoMemory(); return -1; }
    *slot = (Best){me, NULL, b->best};
    b->best = slot;
  }
  if (slot->config != config) {
    PyObject *old = slot->config;
    Py_INCREF(config);
    slot->config = config;
    Py_XDECREF(old);
  }
  return 0;
}

/* The call as Python's `_slow_run(args, kwargs, grid, warmup)`; grid or warmup NULL where absent. New reference. */
static PyObject *slow_run(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid,
                          PyObject *warmup) {
  PyObject *result = NULL, *tuple = PyTuple_New(positional), *keywords = PyDict_New();
  if (!tuple || !keywords) goto done;
  for (Py_ssize_t i = 0; i < positional; i++) { Py_INCREF(args[i]); PyTuple_SET_ITEM(tuple, i, args[i]); }
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    if (grid == args[positional + i] && PyUnicode_Compare(name, s_grid) == 0) continue;
    if (PyUnicode_Compare(name, s_warmup) == 0) continue;
    if (PyUnicode_Compare(name, s_grid) == 0) continue;
    if (PyDict_SetItem(keywords, name, args[positional + i])) goto done;
  }
  result = PyObject_CallMethodObjArgs(self, s_slow_run, tuple, keywords, grid ? grid : Py_Ellipsis,
                                      warmup ? warmup : Py_False, NULL);
done:
  Py_XDECREF(tuple);
  Py_XDECREF(keywords);
  return result;
}

/* hot path. Arguments in parameter order, defaults filled in (all borrowed), in `values`, or where they lie if all came
 * by place; NULL if they do not fit. */
static PyObject *const *order_arguments(const Table *t, PyObject *const *args, Py_ssize_t positional, PyObject *names,
                                        PyObject **values) {
  if (positional > t->places) return NULL;
  Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  if (positional == t->n && !keywords) return args;
  memcpy(values, args, sizeof *values * (size_t)positional);
  memset(values + positional, 0, sizeof *values * (size_t)(t->n - positional));
  int next = (int)positional; /* keywords mostly come in signature order */
  for (Py_ssize_t k = 0; k < keywords; k++) {
    PyObject *name = PyTuple_GET_ITEM(names, k);
    if (name == s_grid || name == s_warmup) continue;
    int i = next < t->n && t->names[next] == name ? next : -1;
    for (int j = (int)positional; i < 0 && j < t->n; j++) if (t->names[j] == name) i = j;
    if (i < 0) {
      if (PyUnicode_Compare(name, s_grid) == 0 || PyUnicode_Compare(name, s_warmup) == 0) continue;
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

/* Whether the base class and its list of configs are as when the table was built; -1 on error. */
static int base_holds(Base *b) {
  if (b->configs != b->seen || !PyList_CheckExact(b->configs) || PyList_GET_SIZE(b->configs) != b->seen_length) return 0;
  look_at_types();
  if (b->generation == generation) return 1;
  uint64_t now = generation;
  PyObject *ours = PyObject_CallMethodNoArgs((PyObject *)b, s_still_ours);
  if (!ours) return -1;
  int yes = PyObject_IsTrue(ours);
  Py_DECREF(ours);
  b->generation = yes == 1 ? now : 0;
  return yes;
}

static PyObject *tuple_of(PyObject *const *values, int n) {
  PyObject *tuple = PyTuple_New(n);
  for (int i = 0; tuple && i < n; i++) { Py_INCREF(values[i]); PyTuple_SET_ITEM(tuple, i, values[i]); }
  return tuple;
}

/* Launch in Python: `bound.run(values, grid)`, which includes the prologue. New reference. */
static PyObject *run_in_python(Entry *e, PyObject *const *values, int n, PyObject *grid) {
  PyObject *tuple = tuple_of(values, n);
  if (!tuple) return NULL;
  PyObject *result = PyObject_CallMethodObjArgs(e->bound, s_run, tuple, grid, NULL);
  Py_DECREF(tuple);
  if (result && take_direct(e, n)) Py_CLEAR(result);
  return result;
}

typedef struct { uint64_t start, end, bytes; int zeroed; } Span; /* bytes: 0 unless the tensor is contiguous */

/* Where a tensor lies; 0 if that cannot be told here. */
static int span_of(PyObject *x, Span *s) {
  View v;
  if (!view(x, &v)) return 0;
  int64_t reach = 0, dense = 1, contiguous = 1;
  for (int64_t d = v.ndim - 1; d >= 0; d--) {
    if (v.shape[d] == 0) { s->start = s->end = s->bytes = 0; return 1; }
    int64_t stride = v.strides ? v.strides[d] : dense;
    contiguous &= v.shape[d] == 1 || stride == dense;
    reach += (v.shape[d] - 1) * stride;
    dense *= v.shape[d];
  }
  uint64_t size = (uint64_t)v.dtype.bits * v.dtype.lanes / 8;
  s->start = v.address;
  s->end = s->start + (uint64_t)(reach + 1) * size;
  s->bytes = contiguous && reach >= 0 ? (uint64_t)dense * size : 0;
  return size > 0;
}

/* Zero what is to be zeroed by the driver: 1 done; 0 if Python must do it, which knows all layouts and has the error for
 * an alias of an input; -1 with an error set. */
static int zero_directly(const Direct *d, const Table *t, Words *w, PyObject *const *values) {
  Span spans[MAX_ARGS];
  int count = 0;
  if (!cu_memset || find_stream(d, w)) return cu_memset ? -1 : 0;
  for (int i = 0; i < t->n; i++) {
    if (Py_TYPE(values[i]) != tensor_type && Py_TYPE(values[i]) != parameter_type) {
      if (d->zeroed[i] && values[i] != Py_None) return 0;
      continue;
    }
    if (!span_of(values[i], &spans[count])) return 0;
    spans[count].zeroed = d->zeroed[i];
    if (spans[count].zeroed && spans[count].start != spans[count].end && !spans[count].bytes) return 0;
    count++;
  }
  for (int i = 0; i < count; i++)
    for (int j = 0; spans[i].zeroed && j < count; j++)
      if (!spans[j].zeroed && spans[i].start < spans[j].end && spans[j].start < spans[i].end) return 0;
  int error = 0;
  Py_BEGIN_ALLOW_THREADS /* a full queue blocks here as at a launch */
  for (int i = 0; i < count && !error; i++)
    if (spans[i].zeroed && spans[i].bytes) error = cu_memset(spans[i].start, 0, spans[i].bytes, w->stream);
  Py_END_ALLOW_THREADS
  return error ? raise_cuda(error) : 1;
}

/* Zeroing and the config's hook, in Python; -1 with an error set. */
static int run_prologue(const Entry *e, PyObject *const *values, int n) {
  PyObject *tuple = tuple_of(values, n);
  PyObject *done = tuple ? PyObject_CallOneArg(e->before, tuple) : NULL;
  Py_XDECREF(tuple);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* What comes before every launch: accumulators zeroed, then the config's hook; -1 with an error set. */
static int prepare(const Entry *e, const Table *t, Words *w, PyObject *const *values) {
  const Direct *d = e->direct;
  int zeroed = d->zeroes ? zero_directly(d, t, w, values) : 1;
  if (zeroed <= 0) return zeroed ? -1 : run_prologue(e, values, t->n);
  if (!d->hook) return 0;
  PyObject *all = arguments_by_name(t, d->hook_constants, values);
  PyObject *done = all ? PyObject_CallOneArg(d->hook, all) : NULL;
  Py_XDECREF(all);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* hot path. Launch a found entry. Runs Python code: prologue, grid callable. New reference to the compiled kernel. */
static PyObject *launch_entry(Table *t, Entry *e, Words *w, PyObject *const *values, PyObject *grid) {
  long sizes[3];
  PyObject *kernel = NULL;
  int direct = e->direct ? guards_hold(e->direct, &kernel) : 0;
  if (direct < 0) return NULL;
  if (!direct) return run_in_python(e, values, t->n, grid);
  if ((e->before && prepare(e, t, w, values)) || evaluate_grid(t, e->direct, grid, values, sizes) ||
      submit(e->direct, t->n, w, sizes))
    Py_CLEAR(kernel);
  return kernel;
}

/* hot path. One call of the kernel. New reference. */
static PyObject *call_kernel(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid) {
  Base *b = (Base *)self;
  PyObject *ordered[MAX_ARGS], *const *values;
  Words w;
  Table *t = b->table;
  int ours = t ? base_holds(b) : 0;
  if (ours < 0) return NULL;
  if (!ours || !(values = order_arguments(t, args, positional, names, ordered))) goto slow;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) PyErr_Clear();
  Entry *e = result ? NULL : look_up(t, &w, hash_words(&w));
  if (!e) goto slow;
  t->hits++;
  e->references++;
  Py_INCREF(t);
  PyObject *launched = set_best(b, e->config) ? NULL : launch_entry(t, e, &w, values, grid);
  release(e);
  Py_DECREF(t);
  return launched;
slow:
  return slow_run(self, args, positional, names, grid, Py_False);
}

static PyObject *base_run(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names) {
  PyObject *grid = NULL, *warmup = NULL;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    if (name == s_grid || (name != s_warmup && PyUnicode_Compare(name, s_grid) == 0)) grid = args[positional + i];
    else if (name == s_warmup || PyUnicode_Compare(name, s_warmup) == 0) warmup = args[positional + i];
  }
  if (!grid || (warmup && warmup != Py_False)) return slow_run(self, args, positional, names, grid, warmup);
  return call_kernel(self, args, positional, names, grid);
}

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

static PyObject *base_subscript(PyObject *self, PyObject *grid) { return gridded(self, grid, call_kernel); }

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

static PyObject *base_attach(Base *b, PyObject *table) {
  if (table != Py_None && !PyObject_TypeCheck(table, &TableType)) {
    PyErr_SetString(PyExc_TypeError, "_attach: expected a Table or None");
    return NULL;
  }
  Table *old = b->table;
  PyObject *seen = b->seen;
  b->table = table == Py_None ? NULL : (Table *)table;
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
  (void)c;
  if (!b->configs) { PyErr_SetString(PyExc_AttributeError, "configs"); return NULL; }
  Py_INCREF(b->configs);
  return b->configs;
}
static int set_configs(Base *b, PyObject *value, void *c) {
  (void)c;
  PyObject *old = b->configs;
  Py_XINCREF(value);
  b->configs = value;
  Py_XDECREF(old);
  return 0;
}
static PyObject *get_best(Base *b, void *c) {
  (void)c;
  for (Best *slot = b->best; slot; slot = slot->next)
    if (slot->thread == PyThread_get_thread_ident()) { Py_INCREF(slot->config); return slot->config; }
  PyErr_SetString(PyExc_AttributeError, "best_config: nothing was launched on this thread yet");
  return NULL;
}
static int set_best_config(Base *b, PyObject *value, void *c) {
  (void)c;
  if (!value) { PyErr_SetString(PyExc_AttributeError, "best_config cannot be deleted"); return -1; }
  return set_best(b, value);
}

static int base_traverse(Base *b, visitproc visit, void *arg) {
  Py_VISIT(b->table); Py_VISIT(b->configs); Py_VISIT(b->seen);
  for (Best *slot = b->best; slot; slot = slot->next) Py_VISIT(slot->config);
  return 0;
}
static int base_clear(Base *b) {
  Py_CLEAR(b->table); Py_CLEAR(b->configs); Py_CLEAR(b->seen);
  while (b->best) {
    Best *slot = b->best;
    b->best = slot->next;
    Py_XDECREF(slot->config);
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
    {"_attach", (PyCFunction)base_attach, METH_O, "Use this table for the present list of configs; None for none."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef base_fields[] = {
    {"configs", (getter)get_configs, (setter)set_configs, "The live list of configs.", NULL},
    {"best_config", (getter)get_best, (setter)set_best_config, "The config of this thread's last launch.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyMappingMethods base_mapping = {.mp_subscript = base_subscript};
static PyTypeObject BaseType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Base", .tp_doc = "What makes `kernel[grid](...)` fast.",
    .tp_basicsize = sizeof(Base), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew, .tp_dealloc = (destructor)base_dealloc, .tp_traverse = (traverseproc)base_traverse,
    .tp_clear = (inquiry)base_clear, .tp_methods = base_methods, .tp_getset = base_fields, .tp_as_mapping = &base_mapping};

/* ---- the base of `Heuristics` ---------------------------------------------------------------------------------- */

#define MAX_VALUES 16 /* values computed in C; more are computed in Python */

typedef struct {
  PyObject_HEAD
  PyObject *fn, *values, *arg_names; /* strong or NULL: as Triton's class sets them */
  PyObject *seen;          /* strong or NULL: the kernel for which `_still_ours` last said yes */
  PyObject *given, *every; /* strong or NULL: the last call's names of keywords, and these with the computed ones */
  uint64_t generation;     /* the shared one when `_still_ours` last said yes */
  int direct;              /* whether values are computed here at all */
} Heuristics;

/* The functions of one call, taken out of the live dict since a function may change it. */
typedef struct { PyObject *names[MAX_VALUES], *functions[MAX_VALUES]; int count; } Values; /* strong */

static PyTypeObject HeuristicsType;

/* 1 if the values are to be computed here, 0 if in Python, -1 on error. May run Python code. */
static int heuristics_hold(Heuristics *h) {
  if (!h->direct || !h->fn || !h->values || !PyDict_CheckExact(h->values) || !h->arg_names || !PyList_CheckExact(h->arg_names))
    return 0;
  look_at_types();
  if (h->generation == generation && h->fn == h->seen) return 1;
  uint64_t now = generation;
  PyObject *ours = PyObject_CallMethodNoArgs((PyObject *)h, s_still_ours);
  int yes = ours ? PyObject_IsTrue(ours) : -1;
  Py_XDECREF(ours);
  h->generation = yes == 1 ? now : 0;
  PyObject *old = h->seen;
  Py_INCREF(h->fn);
  h->seen = h->fn;
  Py_XDECREF(old);
  return yes;
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

/* Whether the names made for the last call are those of this one. */
static int names_fit(const Heuristics *h, PyObject *names, const Values *v) {
  Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0;
  if (!h->every || h->given != names || PyTuple_GET_SIZE(h->every) != given + v->count) return 0;
  for (int i = 0; i < v->count; i++) if (PyTuple_GET_ITEM(h->every, given + i) != v->names[i]) return 0;
  return 1;
}

/* The names of the keywords with those of the computed values behind them: a new reference; NULL with an error set, or
 * without one if the caller passes one of them by keyword itself. */
static PyObject *every_name(Heuristics *h, PyObject *names, const Values *v) {
  if (!names_fit(h, names, v)) {
    Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0;
    PyObject *every = PyTuple_New(given + v->count);
    if (!every) return NULL;
    for (Py_ssize_t i = 0; i < given + v->count; i++) {
      PyObject *name = i < given ? PyTuple_GET_ITEM(names, i) : v->names[i - given];
      int twice = i >= given && names ? PySequence_Contains(names, name) : 0;
      if (twice) { Py_DECREF(every); return NULL; }
      Py_INCREF(name);
      PyTuple_SET_ITEM(every, i, name);
    }
    PyObject *old_given = h->given, *old_every = h->every;
    Py_XINCREF(names);
    h->given = names;
    h->every = every;
    Py_XDECREF(old_given);
    Py_XDECREF(old_every);
  }
  Py_INCREF(h->every);
  return h->every;
}

/* What the caller passed, by name, grid and warm-up included. New reference. */
static PyObject *what_was_passed(const Heuristics *h, PyObject *const *args, Py_ssize_t positional, PyObject *names,
                                 PyObject *grid) {
  PyObject *passed = PyDict_New();
  for (Py_ssize_t i = 0; passed && i < positional; i++)
    if (PyDict_SetItem(passed, PyList_GET_ITEM(h->arg_names, i), args[i])) Py_CLEAR(passed);
  for (Py_ssize_t i = 0; passed && names && i < PyTuple_GET_SIZE(names); i++)
    if (PyDict_SetItem(passed, PyTuple_GET_ITEM(names, i), args[positional + i])) Py_CLEAR(passed);
  if (passed && (!PyDict_SetDefault(passed, s_grid, grid) || !PyDict_SetDefault(passed, s_warmup, Py_False))) Py_CLEAR(passed);
  return passed;
}

/* Fill `out` with the computed values, new references; returns how many, or -1 - how many with an error set. Each
 * function has a dict of its own, as in Triton. Runs Python code. */
static int compute_values(const Values *v, PyObject *passed, PyObject **out) {
  for (int i = 0; i < v->count; i++) {
    PyObject *own = i + 1 < v->count ? PyDict_Copy(passed) : passed;
    if (own == passed) Py_INCREF(own);
    out[i] = own ? PyObject_CallOneArg(v->functions[i], own) : NULL;
    Py_XDECREF(own);
    if (!out[i]) return -1 - i;
    if (i + 1 < v->count && PyDict_SetItem(passed, v->names[i], out[i])) return -2 - i;
  }
  return v->count;
}

static PyObject *call_inner(PyObject *fn, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid);

/* hot path. One call: the values computed, and all of it to the kernel. New reference. Runs Python code. */
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

/* `_still_ours` has seen to it that `fn` is one of the two. */
static PyObject *call_inner(PyObject *fn, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid) {
  Caller call = PyObject_TypeCheck(fn, &HeuristicsType) ? call_heuristics : call_kernel;
  return call(fn, args, positional, names, grid);
}

static PyObject *heuristics_subscript(PyObject *self, PyObject *grid) { return gridded(self, grid, call_heuristics); }
static PyObject *heuristics_attach(Heuristics *h, PyObject *direct) {
  h->direct = PyObject_IsTrue(direct) == 1;
  Py_RETURN_NONE;
}

static int heuristics_traverse(Heuristics *h, visitproc visit, void *arg) {
  Py_VISIT(h->fn); Py_VISIT(h->values); Py_VISIT(h->arg_names); Py_VISIT(h->seen);
  return 0;
}
static int heuristics_clear(Heuristics *h) {
  Py_CLEAR(h->fn); Py_CLEAR(h->values); Py_CLEAR(h->arg_names); Py_CLEAR(h->seen);
  Py_CLEAR(h->given); Py_CLEAR(h->every);
  return 0;
}
static void heuristics_dealloc(Heuristics *h) {
  PyObject_GC_UnTrack(h);
  heuristics_clear(h);
  Py_TYPE(h)->tp_free((PyObject *)h);
}

/* Only the slot is native: whoever asks the class for `__getitem__`, as torch's tracer does, finds the Python function. */
static PyObject *heuristics_native(PyObject *type, PyObject *unused) {
  (void)unused;
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
    .tp_dealloc = (destructor)heuristics_dealloc, .tp_traverse = (traverseproc)heuristics_traverse,
    .tp_clear = (inquiry)heuristics_clear, .tp_methods = heuristics_methods, .tp_members = heuristics_members};

/* ---- the module ------------------------------------------------------------------------------------------------ */

/* Find torch's tensor type and its exchange API, once torch is imported; -1 on error, 0 also if there is none yet. */
static int find_torch(void) {
  if (tensor_type) return 0;
  PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  PyObject *nn = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.nn.parameter");
  if (!torch || !nn) return 0;
  PyObject *tensor = PyObject_GetAttrString(torch, "Tensor"), *parameter = PyObject_GetAttrString(nn, "Parameter");
  PyObject *capsule = tensor ? PyObject_GetAttrString(tensor, "__dlpack_c_exchange_api__") : NULL;
  DlApi *api = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  Py_XDECREF(capsule);
  while (api && api->version.major > DL_MAJOR) api = api->older;
  if (!parameter || !api || api->version.major != DL_MAJOR || !api->borrow || !api->current_stream) {
    PyErr_Clear(); /* a torch without it: everything takes the safe path */
    Py_XDECREF(tensor);
    Py_XDECREF(parameter);
    return 0;
  }
  dl = api;
  if (!stream_of) stream_of = api->current_stream;
  parameter_type = (PyTypeObject *)parameter;
  tensor_type = (PyTypeObject *)tensor;
  find_shim();
  return 0;
}

#if HAVE_WATCHERS
static int dict_watcher = -1, type_watcher = -1;
static int on_dict(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
  (void)event; (void)dict; (void)key; (void)value;
  generation++;
  return 0;
}
static int on_type(PyTypeObject *type) { (void)type; generation++; return 0; }
#endif

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

static PyObject *watch(PyObject *module, PyObject *what) {
  (void)module;
#if HAVE_WATCHERS
  if (dict_watcher < 0 && (dict_watcher = PyDict_AddWatcher(on_dict)) < 0) return NULL;
  if (type_watcher < 0 && (type_watcher = PyType_AddWatcher(on_type)) < 0) return NULL;
  if (PyDict_Check(what) ? PyDict_Watch(dict_watcher, what) : PyType_Watch(type_watcher, what)) return NULL;
#else
  for (int i = 0; i < watched_type_count; i++) if ((PyObject *)watched_types[i] == what) Py_RETURN_NONE;
  if (PyType_Check(what) && watched_type_count < WATCHED_TYPES) {
    Py_INCREF(what); /* for good: there are as many as Triton has classes that we look at */
    watched_types[watched_type_count++] = (PyTypeObject *)what;
  }
#endif
  Py_RETURN_NONE;
}

static PyObject *ready(PyObject *module, PyObject *unused) {
  (void)module; (void)unused;
  if (find_torch()) return NULL;
  find_driver();
  if (!dl) return PyUnicode_FromString("this torch has no DLPack C exchange API");
  if (!cu_launch) return PyUnicode_FromString("libcuda has no cuLaunchKernelEx, or is not there");
  Py_RETURN_NONE;
}

static PyObject *use_driver(PyObject *module, PyObject *args) {
  unsigned long long launch, context, stream, memset;
  int host = 1;
  (void)module;
  if (!PyArg_ParseTuple(args, "KKKK|p", &launch, &context, &stream, &memset, &host)) return NULL;
  takes_host_memory = launch && host;
  driver_sought = 1;
  cu_memset = (CuMemsetAsync)(uintptr_t)memset;
  cu_launch = (CuLaunchKernelEx)(uintptr_t)launch;
  cu_context = (CuCtxGetCurrent)(uintptr_t)context;
  stream_of = stream ? (int (*)(int32_t, int32_t, void **))(uintptr_t)stream : dl ? dl->current_stream : NULL;
  Py_RETURN_NONE;
}

/* A hash over all environment variables as C code has them now; 1 us for 6 KB. */
static PyObject *environment(PyObject *module, PyObject *unused) {
  const uint64_t prime = UINT64_C(1099511628211);
  uint64_t h = UINT64_C(1469598103934665603), part;
  (void)module; (void)unused;
  for (char **variable = environ; variable && *variable; variable++) {
    const char *text = *variable;
    size_t length = strlen(text);
    for (h = (h ^ length) * prime; length; text += sizeof part) {
      size_t size = length < sizeof part ? length : sizeof part;
      part = 0;
      memcpy(&part, text, size);
      h = (h ^ part ^ h >> 29) * prime;
      length -= size;
    }
  }
  return PyLong_FromUnsignedLongLong(h);
}

static PyObject *read_grids(PyObject *module, PyObject *function) {
  (void)module;
  for (int i = 0; i < MAX_PROGRAMS; i++) {
    Program old = programs[i];
    programs[i] = (Program){0};
    drop_steps(&old);
    Py_XDECREF(old.code);
  }
  program_count = 0;
  Py_INCREF(function);
  Py_XSETREF(reader, function);
  Py_RETURN_NONE;
}

static PyObject *use_shim(PyObject *module, PyObject *whether) {
  (void)module;
  int before = shim_state, yes = PyObject_IsTrue(whether);
  if (yes < 0) return NULL;
  shim_state = yes ? SHIM_UNKNOWN : SHIM_REFUSED;
  memset(shim_dtype, 0, sizeof shim_dtype);
  return PyBool_FromLong(before == SHIM_AGREES);
}

static PyMethodDef module_methods[] = {
    {"environment", environment, METH_NOARGS, "A number that changes with any environment variable, also by C code."},
    {"index_like", index_like, METH_O, "Whoever replaces `[]` of this class is asked for that of `Base` too."},
    {"watch", watch, METH_O, "Validate entries again when this dict or type changes; nothing before Python 3.12."},
    {"ready", ready, METH_NOARGS, "None if kernels can be launched from C, else why not."},
    {"read_grids", read_grids, METH_O, "Ask this function, from now on, for the program of each grid callable; see `arithmetic.py`."},
    {"use_shim", use_shim, METH_O, "Whether torch's C shim may be used, from the next bind on, instead of DLPack; whether it was. For tests."},
    {"use_driver", use_driver, METH_VARARGS, "Addresses of stand-ins for the driver's launch, its current context, the stream and memset, and whether they take memory of the host; for tests."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "The launch path in C.", -1, module_methods,
                                        NULL, NULL, NULL, NULL};

/* At the first bind and not at the import: by then Triton has loaded the library, which takes milliseconds. Words made
 * before then, without a context, were looked up in empty tables only. */
static void find_driver(void) {
  if (driver_sought) return;
  driver_sought = 1;
  void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return;
  cu_launch = (CuLaunchKernelEx)(uintptr_t)dlsym(library, "cuLaunchKernelEx");
  cu_context = (CuCtxGetCurrent)(uintptr_t)dlsym(library, "cuCtxGetCurrent");
  cu_memset = (CuMemsetAsync)(uintptr_t)dlsym(library, "cuMemsetD8Async");
  cu_error = (CuGetErrorString)(uintptr_t)dlsym(library, "cuGetErrorString");
}

static int intern_names(void) {
  struct { PyObject **where; const char *text; } names[] = {
      {&s_run, "run"}, {&s_config, "config"}, {&s_slow_run, "_slow_run"},
      {&s_still_ours, "_still_ours"}, {&s_grid, "grid"}, {&s_warmup, "warmup"}, {&s_getitem, "__getitem__"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!(*names[i].where = PyUnicode_InternFromString(names[i].text))) return -1;
  return 0;
}

PyMODINIT_FUNC PyInit__launch(void) {
  if (intern_names() || PyType_Ready(&TableType) || PyType_Ready(&BaseType) || PyType_Ready(&GriddedType) ||
      PyType_Ready(&HeuristicsType))
    return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  if (PyModule_AddObjectRef(module, "Table", (PyObject *)&TableType) ||
      PyModule_AddObjectRef(module, "Base", (PyObject *)&BaseType) ||
      PyModule_AddObjectRef(module, "HeuristicsBase", (PyObject *)&HeuristicsType)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
