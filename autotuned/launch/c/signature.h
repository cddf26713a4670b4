/* The signature of a call: all properties of its arguments that decide which bound kernel it gets, as 64-bit words.
 *
 * Part of `module.c`, after `tensors.h`. `Table` is defined here, since it says which properties of each parameter
 * count. */

enum { ROLE_SHAPE = 1, ROLE_VALUE = 2, ROLE_CONSTEXPR = 4, ROLE_INTEGER = 8, ROLE_STRIDES = 16 }; /* what counts */
enum { FLOAT_IS_WORD = ROLE_VALUE | ROLE_CONSTEXPR };
enum { WORDS_OK = 0, WORDS_NONE = 1, WORDS_ERROR = -1 };

typedef struct {
  Py_ssize_t count;
  int objects, slots, blocks;
  uint64_t word[MAX_WORDS + SPARE_WORDS];
  uint64_t raw[MAX_SLOTS];        /* for the launch: address or number of each argument, then of each item of tuples;
                                   * for a descriptor its index in `block` */
  PyObject *object[MAX_SLOTS];    /* borrowed: arguments compared by identity, and classes of tuples */
  Block block[MAX_BLOCKS];
  void *stream;                   /* torch's current stream, if `has_stream` */
  int has_stream;
} Words;

typedef struct {
  PyObject_HEAD
  Py_ssize_t n, places;   /* number of free parameters, and of those that may be positional; -1 for an unusable table */
  PyObject **names;       /* strong, interned */
  PyObject **defaults;    /* strong or NULL */
  PyObject **buckets;     /* strong or NULL */
  uint8_t roles[MAX_ARGS];
  PyObject *functions;    /* tuple of key callables */
  int asks;               /* whether calls run Python code, which may move tensors: buckets, key callables, `judge` */
  int sets_blocks;        /* whether hooks may set descriptors' blocks after the look-up: then signatures omit them */
  PyObject *judge;        /* strong or NULL: called with what each launch would pass; see `launch/verify.py` */
  PyObject *device;       /* callable returning the device's index, used without libcuda */
  struct Entry **slots;   /* open addressing, a power of two */
  struct Entry **order;   /* oldest first, LIMIT long */
  struct Entry *last;     /* borrowed or NULL: the entry in `order` that was found last */
  size_t capacity, used;
  unsigned long long hits, evictions, computed; /* calls answered, entries dropped, grid callables not called */
} Table;

static inline void put(Words *w, uint64_t value) { w->word[w->count++] = value; }

/* Append a stride to a stride pattern: two bits, 1 for stride 0, 2 for stride 1, 3 for any other. */
static inline uint64_t with_stride(uint64_t pattern, int64_t stride) {
  return pattern * 4 + 1 + ((uint64_t)stride < 2 ? (uint64_t)stride : 2);
}

/* The pattern of a view with sizes 0 or 1, whose strides count as contiguous, or without strides. Passed by value, so
 * that the caller's view stays in registers. */
static __attribute__((noinline)) uint64_t normal_pattern(View v) {
  uint64_t pattern = 0;
  int64_t dense = 1;
  int empty = 0;
  for (int64_t d = 0; d < v.ndim; d++) empty |= v.shape[d] == 0;
  for (int64_t d = v.ndim - 1; d >= 0; d--) {
    pattern = with_stride(pattern, (v.shape[d] == 1 || empty || !v.strides) ? dense : v.strides[d]);
    dense *= v.shape[d] > 1 ? v.shape[d] : 1;
  }
  return pattern;
}

/* hot path. The stride pattern, two bits per dimension, of a view that has strides. */
static inline __attribute__((always_inline)) uint64_t stride_pattern(const View *v) {
  uint64_t pattern = 0;
  for (int64_t d = v->ndim - 1; d >= 0; d--) {
    if (v->shape[d] <= 1) return normal_pattern(*v);
    pattern = with_stride(pattern, v->strides[d]);
  }
  return pattern;
}

/* The first word of a tensor: dtype and alignment, for which a kernel is compiled, rank and device. */
static inline uint64_t memory_word(const View *v) {
  uint64_t aligned = ((address_of(v) & 15) - 1) & 1 << 7; /* 0 - 1 has all bits set */
  return aligned | (uint64_t)v->ndim << 8 | v->kind;
}

/* Whether two such words are equal for a compiled kernel: the rank may change the config, but not the binary. */
static inline int same_memory(uint64_t one, uint64_t other) { return !((one ^ other) & ~(UINT64_C(0xff) << 8)); }

/* Exact strides, for a tensor that a pruner reads. */
static __attribute__((noinline)) void put_strides(Words *w, const View *v) {
  int64_t dense = 1;
  for (int64_t d = v->ndim - 1; d >= 0; d--) {
    w->word[w->count + d] = (uint64_t)(v->strides ? v->strides[d] : dense);
    dense *= v->shape[d];
  }
  w->count += v->ndim;
}

/* Shape and strides, if they count. */
static __attribute__((noinline)) void put_sizes(const Table *t, Words *w, Py_ssize_t i, View v) {
  int role = t->roles[i];
  for (int d = 0; role & ROLE_SHAPE && d < v.ndim; d++) put(w, (uint64_t)v.shape[d]);
  if (role & ROLE_STRIDES) put_strides(w, &v);
}

/* hot path. Words of a tensor from its view. */
static inline __attribute__((always_inline)) int words_of_view(const Table *t, Words *w, Py_ssize_t i, Py_ssize_t slot,
                                                               const View *v, uint64_t pattern) {
  Py_ssize_t count = w->count;
  w->raw[slot] = address_of(v);
  w->word[count] = memory_word(v);
  w->word[count + 1] = pattern;
  w->count = count + 2;
  if (t->roles[i] & (ROLE_SHAPE | ROLE_STRIDES)) put_sizes(t, w, i, *v);
  return WORDS_OK;
}

static __attribute__((noinline)) int words_by_dlpack(const Table *t, Words *w, Py_ssize_t i, Py_ssize_t slot, PyObject *x) {
  View v;
  if (!view_by_dlpack(x, &v) || v.ndim > MAX_DIMS) return WORDS_NONE; /* no memory, as in functorch */
  return words_of_view(t, w, i, slot, &v, v.strides ? stride_pattern(&v) : normal_pattern(v));
}

/* hot path. Words of an exact torch.Tensor or Parameter. Takes a pointer to the object, since the shim's calls leave no
 * register for the object itself: saves 11 instructions per tensor (tests/bench/host.py). */
static inline __attribute__((always_inline)) int words_of_tensor(const Table *t, Words *w, Py_ssize_t i, Py_ssize_t slot,
                                                                 PyObject *const *x) {
  View v;
  if (!view_by_shim(*x, &v)) return words_by_dlpack(t, w, i, slot, *x);
  if (v.ndim > MAX_DIMS) return WORDS_NONE;
  return words_of_view(t, w, i, slot, &v, stride_pattern(&v));
}

/* Whether an integer's value is a word. A bucketed constexpr is compiled in with its exact value. */
static inline int int_is_word(const Table *t, Py_ssize_t i, int role) {
  return role & ROLE_CONSTEXPR || (!t->buckets[i] && role & (ROLE_VALUE | ROLE_INTEGER));
}

/* The integer class: whether it is 1, whether it is divisible by 16, its width. */
static inline uint64_t int_word(uint64_t raw, uint64_t width) {
  return TAG_INT | width << 8 | (uint64_t)(raw == 1) << 16 | (uint64_t)((raw & 15) == 0) << 17;
}

/* Words of an integer of more than 63 bits, or with a bucket. May run Python code (the bucket). */
static __attribute__((noinline)) int words_of_odd_int(const Table *t, Words *w, int i, int slot, PyObject *x) {
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
  uint64_t raw = overflow > 0 ? PyLong_AsUnsignedLongLong(x) : (uint64_t)value;
  if (overflow < 0) return WORDS_NONE;
  if (PyErr_Occurred()) { PyErr_Clear(); return WORDS_NONE; }
  w->raw[slot] = raw;
  put(w, int_word(raw, overflow ? 65 : value < INT32_MIN || value > INT32_MAX ? 64 : 32));
  if (t->buckets[i]) {
    PyObject *bucket = call_one(t->buckets[i], x);
    if (!bucket) return WORDS_ERROR;
    int known = PyLong_CheckExact(bucket) || PyBool_Check(bucket); /* True and 1 differ, as in the key */
    long long edge = known ? PyLong_AsLongLongAndOverflow(bucket, &overflow) : (overflow = 1, 0);
    uint64_t tag = TAG_INT | (uint64_t)PyBool_Check(bucket) << 8;
    Py_DECREF(bucket);
    if (overflow) return WORDS_NONE;
    put(w, tag);
    put(w, (uint64_t)edge);
  }
  if (int_is_word(t, i, t->roles[i])) put(w, w->raw[slot]);
  return WORDS_OK;
}

/* hot path. Words of an integer. May run Python code (a bucket). */
static inline __attribute__((always_inline)) int words_of_int(const Table *t, Words *w, Py_ssize_t i, Py_ssize_t slot,
                                                              PyObject *x) {
  int overflow = 0;
  long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
  if (overflow || t->buckets[i]) return words_of_odd_int(t, w, (int)i, (int)slot, x);
  w->raw[slot] = (uint64_t)value;
  put(w, int_word((uint64_t)value, value == (int32_t)value ? 32 : 64));
  if (int_is_word(t, i, t->roles[i])) put(w, (uint64_t)value);
  return WORDS_OK;
}

static int words_of_float(Words *w, int slot, PyObject *x, int role) {
  double value = PyFloat_AS_DOUBLE(x);
  memcpy(&w->raw[slot], &value, sizeof value);
  put(w, TAG_FLOAT);
  if (role & FLOAT_IS_WORD) put(w, value != value ? UINT64_C(0x7ff8000000000000) : w->raw[slot]);
  return WORDS_OK;
}

static PyTypeObject *enum_type; /* strong: `enum.Enum` */

/* Words of a value compared by identity: a string, dtype or enum member; anything else has no signature. */
static int words_of_object(Words *w, int slot, PyObject *x) {
  const char *kind = Py_TYPE(x)->tp_name;
  const char *dot = strrchr(kind, '.');
  int overflow = 0, known = PyUnicode_CheckExact(x) || !strcmp(dot ? dot + 1 : kind, "dtype") || PyType_IsSubtype(Py_TYPE(x), enum_type);
  if (!known || w->objects == MAX_SLOTS) return WORDS_NONE;
  put(w, TAG_OBJECT);
  put(w, (uint64_t)(uintptr_t)x);
  w->raw[slot] = PyLong_Check(x) ? (uint64_t)PyLong_AsLongLongAndOverflow(x, &overflow) : 0;
  w->object[w->objects++] = x;
  return overflow ? WORDS_NONE : WORDS_OK;
}

/* hot path. Words of a tensor descriptor: those of its tensor, its own shape and strides, and its block. Padding and
 * rounding are passed, not compiled in. The second word has the number of words. */
static int words_of_descriptor(const Table *t, Words *w, int i, int slot, PyObject *x) {
  View v;
  Block *b = &w->block[w->blocks];
  if (t->roles[i] & ROLE_CONSTEXPR || w->blocks == MAX_BLOCKS) return WORDS_NONE;
  if (!read_descriptor(x, b, &v)) return WORDS_NONE;
  View own = {.shape = b->shape, .strides = b->strides, .ndim = b->rank};
  int rank = b->rank;
  Py_ssize_t start = w->count;
  put(w, (memory_word(&v) & ~(uint64_t)(TAG_MASK | 0xff << 8)) | TAG_BLOCK | (uint64_t)rank << 8);
  put(w, stride_pattern(&own) | (uint64_t)t->sets_blocks << 16);
  put_sizes(t, w, i, own);
  for (int d = 0; !t->sets_blocks && d < rank; d++) put(w, (uint64_t)b->block[d]);
  w->word[start + 1] |= (uint64_t)(w->count - start) << 32;
  w->raw[slot] = (uint64_t)w->blocks++;
  return WORDS_OK;
}

/* Whether tuples of this class iterate and index like plain tuples, as named tuples do. */
static int is_plain_tuple(PyTypeObject *type) {
  const PyTypeObject *plain = &PyTuple_Type;
  return type == plain || (type->tp_iter == plain->tp_iter && type->tp_as_mapping->mp_subscript == plain->tp_as_mapping->mp_subscript &&
                           !PyType_IsSubtype(type, enum_type));
}

static int words_of_argument(const Table *t, Words *w, int i, int slot, PyObject *x);

/* Words of a tuple: the numbers of items and words, the class unless it is `tuple`, then the items' words. Words do not
 * cover the values of a compiled-in tensor. */
static int words_of_tuple(const Table *t, Words *w, int i, PyObject *x) {
  PyTypeObject *type = Py_TYPE(x);
  Py_ssize_t count = PyTuple_GET_SIZE(x), start = w->count;
  int named = type != &PyTuple_Type;
  if (t->buckets[i] || !is_plain_tuple(type) || count > MAX_SLOTS || w->objects == MAX_SLOTS) return WORDS_NONE;
  put(w, TAG_TUPLE | (uint64_t)count << 8);
  put(w, named ? (uint64_t)(uintptr_t)type : 0);
  if (named) w->object[w->objects++] = (PyObject *)type;
  for (Py_ssize_t k = 0; k < count; k++) {
    PyObject *item = PyTuple_GET_ITEM(x, k);
    if (w->slots == MAX_SLOTS || (t->roles[i] & ROLE_CONSTEXPR && tensor_type && PyObject_TypeCheck(item, tensor_type))) return WORDS_NONE;
    int result = words_of_argument(t, w, i, w->slots++, item);
    if (result) return result;
  }
  w->word[start] |= (uint64_t)(w->count - start) << 32;
  return WORDS_OK;
}

/* Words of a descriptor, a tuple or an object. */
static __attribute__((noinline)) int words_of_other(const Table *t, Words *w, int i, int slot, PyObject *x) {
  if (is_descriptor(x)) return words_of_descriptor(t, w, i, slot, x);
  return PyTuple_Check(x) ? words_of_tuple(t, w, i, x) : words_of_object(w, slot, x);
}

/* hot path. Words of a parameter's value, or of an item of it, whose slot follows those of the parameters. */
static inline __attribute__((always_inline)) int words_of_value(const Table *t, Words *w, Py_ssize_t i, Py_ssize_t slot,
                                                                PyObject *const *where) {
  PyObject *x = *where;
  PyTypeObject *type = Py_TYPE(x);
  if (w->count > MAX_WORDS) return WORDS_NONE;
  if (type == tensor_type || type == parameter_type) return words_of_tensor(t, w, i, slot, where);
  if (type == &PyLong_Type) return words_of_int(t, w, i, slot, x);
  if (type == &PyBool_Type) {
    put(w, TAG_BOOL | (uint64_t)(x == Py_True) << 8);
    w->raw[slot] = x == Py_True;
    return WORDS_OK;
  }
  if (type == &PyFloat_Type) return words_of_float(w, (int)slot, x, t->roles[i]);
  if (x == Py_None) { put(w, TAG_NONE); w->raw[slot] = 0; return WORDS_OK; }
  return words_of_other(t, w, (int)i, (int)slot, x);
}

static int words_of_argument(const Table *t, Words *w, int i, int slot, PyObject *x) { return words_of_value(t, w, i, slot, &x); }

/* The number of words of an argument or item, from its first two. */
static int length_of(const Table *t, int i, const uint64_t *words) {
  int role = t->roles[i];
  uint64_t first = *words;
  switch (first & TAG_MASK) {
    case TAG_TENSOR: return 2 + (role & ROLE_SHAPE ? (int)(first >> 8 & 0xff) : 0) + (role & ROLE_STRIDES ? (int)(first >> 8 & 0xff) : 0);
    case TAG_BLOCK: return (int)(words[1] >> 32);
    case TAG_TUPLE: return (int)(first >> 32);
    case TAG_INT: return 1 + (t->buckets[i] ? 2 : 0) + int_is_word(t, i, role);
    case TAG_FLOAT: return 1 + (role & FLOAT_IS_WORD ? 1 : 0);
    case TAG_OBJECT: return 2;
    default: return 1;
  }
}

/* cold path. The device type, DLPack's number, of a signature's last tensor on a GPU; sets `on_host` to 1 if a tensor
 * is in host memory. */
static int32_t device_type_in(const Table *t, const Words *w, int *on_host) {
  int32_t found = DL_CUDA;
  for (int i = 0, at = t->device != Py_None, end; i < t->n; i++) {
    for (end = at + length_of(t, i, &w->word[at]); at < end;) {
      int tag = w->word[at] & TAG_MASK;
      int32_t type = tag == TAG_TENSOR || tag == TAG_BLOCK ? device_type_of(w->word[at]) : 0;
      if (type == DL_CPU) *on_host = 1;
      else if (type) found = type;
      at += tag == TAG_TUPLE ? 2 : length_of(t, i, &w->word[at]);
    }
  }
  return found;
}

/* cold path. Words of the key callables' results; other results than int and bool have no signature. Runs Python
 * code. */
static int words_of_functions(const Table *t, Words *w, PyObject *const *values) {
  Py_ssize_t count = PyTuple_GET_SIZE(t->functions);
  if (!count) return WORDS_OK;
  PyObject *arguments = PyDict_New();
  if (!arguments) return WORDS_ERROR;
  int result = WORDS_OK;
  for (int i = 0; i < t->n && result == WORDS_OK; i++)
    if (PyDict_SetItem(arguments, t->names[i], values[i])) result = WORDS_ERROR;
  for (Py_ssize_t f = 0; f < count && result == WORDS_OK; f++) {
    PyObject *value = call_one(PyTuple_GET_ITEM(t->functions, f), arguments);
    int overflow = 0;
    if (!value) { result = WORDS_ERROR; break; }
    if (w->count > MAX_WORDS || !(PyLong_CheckExact(value) || PyBool_Check(value))) {
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

/* hot path. The current device: its context, or without libcuda its index. May run Python code. */
static inline int device_word(const Table *t, uint64_t *out) {
  if (cu_context) {
    void *context = NULL;
    if (cu_context(&context)) return WORDS_NONE;
    *out = (uint64_t)(uintptr_t)context;
    return WORDS_OK;
  }
  PyObject *index = PyObject_CallNoArgs(t->device);
  if (!index) return WORDS_ERROR;
  *out = (uint64_t)PyLong_AsLongLong(index);
  Py_DECREF(index);
  return PyErr_Occurred() ? WORDS_ERROR : WORDS_OK;
}

/* hot path. The signature of a call. WORDS_ERROR leaves a Python error set. May run Python code. */
static int make_words(const Table *t, Words *w, PyObject *const *values) {
  w->count = w->objects = w->has_stream = w->blocks = 0;
  w->slots = (int)t->n;
  if (t->device != Py_None) {
    int result = device_word(t, &w->word[w->count++]);
    if (result) return result;
  }
  for (Py_ssize_t i = 0; i < t->n; i++) {
    int result = words_of_value(t, w, i, i, &values[i]);
    if (result) return result;
  }
  return words_of_functions(t, w, values);
}

/* hot path. FNV-1a over words in four lanes, since a single lane would wait for each multiplication. */
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
