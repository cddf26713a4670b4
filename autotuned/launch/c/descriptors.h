/* Tensor descriptors: the fields of Triton's `TensorDescriptor`, and the driver's tensor map made from them.
 *
 * Part of `module.c`, after `tensors.h`. Nothing is cached: each launch encodes its maps, in 0.08 us each. */

#define MAX_RANK 5
#define MAX_BLOCKS 12 /* descriptors of one call; a call with more is not bound */

/* The fields of a descriptor; a launch's `params` may point into it. */
typedef struct {
  uint64_t address;
  int64_t shape[MAX_RANK], strides[MAX_RANK]; /* in elements */
  uint64_t nan, rounds;                       /* whether padding is NaN, whether fp32 is rounded to TF32 */
  int64_t block[MAX_RANK];
  int rank;
} Block;

/* How a kernel takes a descriptor; see `triton_compat/descriptors.py`. */
enum { ENCODED = 0, DECOMPOSED = 1 };
enum { CLEARED_UP_TO = 13010 }; /* the last driver version for which Triton clears the bit */
typedef struct {
  int form, rank;
  int flags;                     /* DECOMPOSED: how many of the flags padding and rounding are passed */
  int swizzle, element_bytes, element_type, rounded_type; /* the driver's numbers; rounded_type -1: never rounded */
  int clears_bit;                /* whether this Triton clears a bit of small maps for older drivers */
  int64_t block[MAX_RANK];       /* the block that the kernel was compiled for */
  uint32_t box[MAX_RANK];        /* the map's box, innermost dimension first */
} Encoding;

typedef struct { _Alignas(64) uint64_t words[16]; } TensorMap;

static PyTypeObject *descriptor_type; /* strong; NULL until Triton's module is imported */
static unsigned descriptor_tag;       /* version of the class at which no property hides a field */
static PyObject *s_base, *s_shape, *s_strides, *s_block_shape, *s_padding, *s_rounds;

/* cold path. Find Triton's class if its module is imported. */
static void find_descriptors(void) {
  if (descriptor_type) return;
  PyObject *module = PyDict_GetItemString(PyImport_GetModuleDict(), "triton.tools.tensor_descriptor");
  PyObject *type = module ? PyObject_GetAttrString(module, "TensorDescriptor") : NULL;
  PyObject *any = type && PyType_Check(type) ? PyObject_GetAttrString(type, "from_tensor") : NULL; /* assigns a version */
  if (any && (descriptor_tag = ((PyTypeObject *)type)->tp_version_tag)) descriptor_type = (PyTypeObject *)Py_NewRef(type);
  Py_XDECREF(any);
  Py_XDECREF(type);
  PyErr_Clear();
}

static inline int is_descriptor(PyObject *x) { return Py_TYPE(x) == descriptor_type && descriptor_type; }

/* cold path. `compare_shim` for all tensors in an argument. */
static void compare_shims(PyObject *x) {
  if (!tensor_type) return;
  if (Py_TYPE(x) == tensor_type || Py_TYPE(x) == parameter_type) compare_shim(x);
  for (Py_ssize_t i = 0; PyTuple_Check(x) && i < PyTuple_GET_SIZE(x); i++) compare_shims(PyTuple_GET_ITEM(x, i));
  PyObject *base = is_descriptor(x) ? PyObject_GetAttr(x, s_base) : NULL;
  if (base) compare_shims(base);
  else PyErr_Clear();
  Py_XDECREF(base);
}

/* hot path. Read the integers of a list or tuple; returns their number, 0 if it is anything else or too long. */
static int read_sizes(PyObject *sequence, int64_t out[MAX_RANK]) {
  if (!sequence || !(PyList_CheckExact(sequence) || PyTuple_Check(sequence))) return 0;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
  if (count > MAX_RANK) return 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *item = PySequence_Fast_GET_ITEM(sequence, i);
    int overflow = 0;
    if (!PyLong_CheckExact(item)) return 0;
    out[i] = PyLong_AsLongLongAndOverflow(item, &overflow);
    if (overflow) return 0;
  }
  return (int)count;
}

/* hot path. Read a descriptor's fields from its dict (borrowed); 0 if one is missing or of an unknown kind. */
static int read_fields(PyObject *fields, Block *b, View *v) {
  PyObject *base = PyDict_GetItemWithError(fields, s_base), *padding = PyDict_GetItemWithError(fields, s_padding);
  PyObject *rounds = PyDict_GetItemWithError(fields, s_rounds);
  if (!base || !padding || !PyUnicode_CheckExact(padding) || (rounds && !PyBool_Check(rounds))) return 0;
  if ((Py_TYPE(base) != tensor_type && Py_TYPE(base) != parameter_type) || !view(base, v)) return 0;
  b->address = address_of(v);
  b->nan = !PyUnicode_CompareWithASCIIString(padding, "nan");
  b->rounds = rounds == Py_True;
  b->rank = read_sizes(PyDict_GetItemWithError(fields, s_shape), b->shape);
  return b->rank && read_sizes(PyDict_GetItemWithError(fields, s_strides), b->strides) == b->rank &&
         read_sizes(PyDict_GetItemWithError(fields, s_block_shape), b->block) == b->rank;
}

/* cold path. The class has changed, as by `copy` and `pickle`, which cache its slots in it: whether an instance's dict
 * still has its fields. */
static __attribute__((noinline)) int note_descriptor_tag(void) {
  PyObject *names[] = {s_base, s_shape, s_strides, s_block_shape, s_padding, s_rounds};
  int plain = descriptor_type->tp_getattro == PyObject_GenericGetAttr;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    PyObject *found = PyObject_GetAttr((PyObject *)descriptor_type, names[i]); /* assigns the class a version */
    if (found && Py_TYPE(found)->tp_descr_set) plain = 0; /* a property hides the field */
    Py_XDECREF(found);
    PyErr_Clear();
  }
  if (plain) descriptor_tag = descriptor_type->tp_version_tag;
  return plain && descriptor_tag;
}

/* hot path. Read an exact `TensorDescriptor` and its tensor; 0 if a field is of an unknown kind. */
static int read_descriptor(PyObject *x, Block *b, View *v) {
  if (descriptor_type->tp_version_tag != descriptor_tag && !note_descriptor_tag()) return 0;
  PyObject *fields = PyObject_GenericGetDict(x, NULL);
  int known = fields && read_fields(fields, b, v);
  Py_XDECREF(fields);
  if (PyErr_Occurred()) { PyErr_Clear(); return 0; }
  return known;
}

/* Whether the kernel was compiled for such a descriptor, and its numbers fit into the parameters. */
static int fits(const Encoding *e, const Block *b) {
  if (b->rank != e->rank || b->strides[b->rank - 1] != 1) return 0;
  for (int i = 0; i < b->rank; i++)
    if (b->block[i] != e->block[i] || b->shape[i] < 1 || b->shape[i] > INT32_MAX) return 0;
  return 1;
}

/* Triton clears this bit in maps of tensors below 128 KiB; like Triton, this adds up bytes in 32 bits. */
static void clear_bit(TensorMap *map, const uint64_t *sizes, const uint64_t *steps, const Encoding *e) {
  uint32_t last = 0;
  for (int i = 0; i < e->rank; i++) last += (uint32_t)(sizes[i] - 1) * (uint32_t)(i ? steps[i - 1] : (uint64_t)e->element_bytes);
  if ((int32_t)last < 128 * 1024 - 1) map->words[1] &= ~(UINT64_C(1) << 21);
}

/* hot path. Encode the driver's map as Triton does; 0 if the driver refuses: Triton's launcher then raises the
 * error. */
static int encode(const Encoding *e, const Block *b, TensorMap *map) {
  static const uint32_t every[MAX_RANK] = {1, 1, 1, 1, 1};
  enum { NO_INTERLEAVE = 0, PROMOTE_128 = 2 };
  uint64_t sizes[MAX_RANK], steps[MAX_RANK];
  if (!cu_encode) return 0;
  for (int i = 0; i < e->rank; i++) {
    sizes[e->rank - 1 - i] = (uint64_t)b->shape[i];
    if (i + 1 < e->rank) steps[e->rank - 2 - i] = (uint64_t)e->element_bytes * (uint64_t)b->strides[i];
  }
  steps[e->rank - 1] = (uint64_t)b->shape[0] * (uint64_t)e->element_bytes * (e->rank == 1 ? 1 : (uint64_t)b->strides[0]);
  int type = b->rounds && e->rounded_type >= 0 ? e->rounded_type : e->element_type;
  if (cu_encode(map, type, (uint32_t)e->rank, (void *)(uintptr_t)b->address, sizes, steps, e->box, every, NO_INTERLEAVE,
                e->swizzle, PROMOTE_128, (int)b->nan))
    return 0;
  if (e->clears_bit && driver_version <= CLEARED_UP_TO) clear_bit(map, sizes, steps, e);
  return 1;
}
