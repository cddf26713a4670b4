/* The parameters of a launch: converts a call's values to what the driver is passed.
 *
 * Part of `module.c`, after `entries.h`. */

/* hot path. Convert a double to a float in its low bytes. */
static inline void narrow(uint64_t *raw) {
  double wide;
  float low;
  memcpy(&wide, raw, sizeof wide);
  low = (float)wide;
  memcpy(raw, &low, sizeof low);
}

/* Convert an integer for its parameter; 0 if it does not fit. */
static __attribute__((noinline)) int convert_int(char step, char kind, uint64_t *raw) {
  int64_t least, most, value = (int64_t)*raw;
  if (step == IF_IT_FITS) return range_of(kind, &least, &most) && value >= least && value <= most;
  double wide = step == FROM_SIGNED ? (double)value : (double)*raw;
  memcpy(raw, &wide, sizeof wide);
  if (kind == FP32) narrow(raw);
  return 1;
}

/* hot path. Convert the values for the kernel; 0 if Triton's own launcher must. Narrower integers need no conversion on
 * little-endian machines. */
static inline int convert_all(const Direct *d, uint64_t *raw) {
  for (int s = 0; s < d->stepped_count; s++) {
    int i = d->stepped[s];
    if (d->steps[i] == FROM_DOUBLE) narrow(&raw[i]);
    else if (!convert_int(d->steps[i], d->kinds[i], &raw[i])) return 0;
  }
  return 1;
}

/* The parameters of a launch with descriptors; `bytes`: the least size of each. */
#define MAX_PARAMS (MAX_SLOTS + MAX_BLOCKS * (3 + 4 * MAX_RANK) + 2)
typedef struct {
  TensorMap map[MAX_BLOCKS];
  void *params[MAX_PARAMS];
  uint8_t bytes[MAX_PARAMS];
  int count;
} Parameters;

static void add(Parameters *p, const void *where, size_t bytes) {
  p->params[p->count] = (void *)(uintptr_t)where;
  p->bytes[p->count++] = (uint8_t)bytes;
}

/* Add a descriptor as Triton's launcher does: the map, or the fields it is made from; then shape and strides. 0 if that
 * launcher must do it. */
static int add_block(Parameters *p, const Encoding *e, const Block *b, TensorMap *map) {
  if (!fits(e, b) || (e->form == ENCODED && !encode(e, b, map))) return 0;
  if (e->form == ENCODED) {
    add(p, map, sizeof *map);
  } else {
    add(p, &b->address, 8);
    for (int i = 0; i < e->rank; i++) add(p, &b->shape[i], 8);
    for (int i = 0; i < e->rank; i++) add(p, &b->strides[i], 8);
    add(p, &b->nan, 1);
    if (e->flags == 2) add(p, &b->rounds, 1);
  }
  for (int i = 0; i < e->rank; i++) add(p, &b->shape[i], 4);
  for (int i = 0; i < e->rank; i++) add(p, &b->strides[i], 8);
  return 1;
}

/* Add all parameters of a launch, whose values are converted, except the scratch memory that follows; 0 if Triton's own
 * launcher must. */
static int add_all(const Direct *d, const Words *w, Parameters *p) {
  p->count = 0;
  for (int i = 0; i < d->passed_count; i++) {
    int slot = d->passed[i];
    if (d->kinds[slot] != BLOCK) add(p, &w->raw[slot], 8);
    else if (!add_block(p, &d->encodings[(int)d->steps[slot]], &w->block[w->raw[slot]], &p->map[(int)d->steps[slot]])) return 0;
  }
  return 1;
}

/* The bytes of each parameter, 8 or 128 for a map, as a tuple (new reference); None if Triton's launcher must make
 * them, NULL with an error set. */
static PyObject *written_of(const Direct *d, Words *w) {
  Parameters p;
  uint64_t raw[MAX_SLOTS];
  memcpy(raw, w->raw, sizeof *raw * (size_t)w->slots);
  int done = convert_all(d, w->raw) && add_all(d, w, &p);
  PyObject *all = done ? PyTuple_New(p.count) : Py_NewRef(Py_None);
  for (int i = 0; done && all && i < p.count; i++) {
    PyObject *one = PyBytes_FromStringAndSize(p.params[i], p.bytes[i]);
    if (!one) Py_CLEAR(all);
    else PyTuple_SET_ITEM(all, i, one);
  }
  memcpy(w->raw, raw, sizeof *raw * (size_t)w->slots);
  return all;
}
