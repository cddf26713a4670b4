/* Launches a found entry: prologue (zeroed accumulators, the config's hook), grid, submission.
 *
 * Part of `module.c`, after `guards.h`, `table.h` and `grids.h`. */

/* Check a size converted from Python, which may have set an error; -1 with an error set if it is out of range. */
static long checked_size(long value) {
  if (value >= 0 && value <= INT32_MAX) return value;
  if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "grid: expected sizes from 0 to 2147483647, got %ld", value);
  return -1;
}

/* One size of a grid; -1 with an error set. May run Python code. */
static long grid_size(PyObject *x) {
  if (PyLong_Check(x)) return checked_size(PyLong_AsLong(x));
  if (!PyIndex_Check(x)) {
    PyErr_Format(PyExc_TypeError, "grid: expected sizes that are integers, got %.60R of type %s", x, Py_TYPE(x)->tp_name);
    return -1;
  }
  PyObject *index = PyNumber_Index(x); /* NumPy integers, tl.constexpr */
  if (!index) return -1;
  long value = PyLong_AsLong(index);
  Py_DECREF(index);
  return checked_size(value);
}

/* A dict of all arguments by name: a copy of `constants`, which has every name already, so that it is not resized. */
static PyObject *arguments_by_name(const Table *t, PyObject *constants, PyObject *const *values) {
  PyObject *all = PyDict_Copy(constants);
  for (int i = 0; all && i < t->n; i++)
    if (PyDict_SetItem(all, t->names[i], values[i])) Py_CLEAR(all);
  return all;
}

/* hot path. Read a tuple of 1 to 3 plain sizes; 0 for anything else, which `evaluate_grid` handles. */
static inline __attribute__((always_inline)) int plain_grid(PyObject *grid, long out[3]) {
  if (!PyTuple_CheckExact(grid)) return 0;
  Py_ssize_t count = PyTuple_GET_SIZE(grid);
  if (count < 1 || count > 3) return 0;
  out[1] = out[2] = 1;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *size = PyTuple_GET_ITEM(grid, i);
    int overflow = 0;
    if (size == one) { out[i] = 1; continue; } /* as in most grids */
    if (!PyLong_CheckExact(size)) return 0;
    out[i] = PyLong_AsLongAndOverflow(size, &overflow);
    if (overflow || out[i] < 0 || out[i] > INT32_MAX) return 0;
  }
  return 1;
}

/* Read any other grid as Triton does: `len(grid)` and `grid[0]` to `grid[2]`, all before any is converted, since an
 * `__index__` may change the grid. -1 with an error set. Runs Python code. */
static int any_grid(PyObject *grid, long out[3]) {
  PyObject *sizes[3] = {NULL, NULL, NULL};
  Py_ssize_t count = PyObject_Size(grid), read = 0;
  if (count < 0 && PyErr_ExceptionMatches(PyExc_TypeError))
    PyErr_Format(PyExc_TypeError, "grid: expected a tuple or list of 1 to 3 sizes, or a callable returning one, got %.60R", grid);
  else if (!count)
    PyErr_SetString(PyExc_IndexError, "grid: expected 1 to 3 sizes, got none");
  for (; read < count && read < 3; read++) {
    PyObject *place = PyLong_FromSsize_t(read);
    sizes[read] = place ? PyObject_GetItem(grid, place) : NULL;
    Py_XDECREF(place);
    if (!sizes[read]) break;
  }
  out[0] = out[1] = out[2] = 1;
  for (Py_ssize_t i = 0; i < read && !PyErr_Occurred(); i++) out[i] = grid_size(sizes[i]);
  for (Py_ssize_t i = 0; i < read; i++) Py_DECREF(sizes[i]);
  return PyErr_Occurred() ? -1 : 0;
}

/* Whether a grid callable has replaced an argument: Triton launches with the new value. */
static int has_changed(const Table *t, PyObject *meta, PyObject *const *values) {
  for (int i = 0; i < t->n; i++)
    if (PyDict_GetItemWithError(meta, t->names[i]) != values[i]) return 1;
  return 0;
}

/* Evaluate any other grid to three sizes; a callable is computed, or called with all arguments by name. 0, or 1 if
 * Python code has run, 2 if a callable has replaced an argument, -1 with an error set. `returned` becomes a callable's
 * result (new reference) if there is a judge. */
static __attribute__((noinline)) int evaluate_grid(Table *t, const Direct *d, PyObject *grid, PyObject *const *values,
                                                   long out[3], PyObject **returned) {
  PyObject *owned = NULL;
  if (!PyTuple_CheckExact(grid) && PyCallable_Check(grid)) {
    int computed = compute_grid(t, d->constants, grid, values, out);
    if (computed) return computed < 0 ? -1 : 0;
    PyObject *meta = arguments_by_name(t, d->constants, values);
    if (!meta) return -1;
    owned = call_one(grid, meta);
    int changed = owned ? has_changed(t, meta, values) : 0;
    Py_DECREF(meta);
    if (!owned) return -1;
    if (changed) { Py_DECREF(owned); return 2; }
    if (t->judge) *returned = Py_NewRef(owned);
    if (plain_grid(owned, out)) { Py_DECREF(owned); return 1; }
    grid = owned;
  }
  int failed = any_grid(grid, out);
  Py_XDECREF(owned);
  return failed ? -1 : 1;
}

static int raise_cuda(int error) {
  const char *text = NULL;
  if (cu_error) cu_error(error, &text);
  PyErr_Format(PyExc_RuntimeError, "Triton Error [CUDA]: %s", text ? text : "unknown error");
  return -1;
}

/* hot path. Set `w->stream` to torch's current stream of the device; -1 with an error set. */
static int find_stream(const Direct *d, Words *w) {
  if (w->has_stream) return 0;
  w->has_stream = 1;
  return stream_of(d->device_type, d->device, &w->stream) ? -1 : 0;
}

static uint64_t no_scratch = 0;

/* hot path. Call the driver's launch without the GIL, since a full queue blocks. 1, or -1 with an error set. */
static inline __attribute__((always_inline)) int call_driver(const Direct *d, const Words *w, const long grid[3], void **params) {
  CuLaunchConfig c = {(unsigned)grid[0] * d->ctas, (unsigned)grid[1], (unsigned)grid[2], d->threads, 1, 1, d->shared_bytes, w->stream,
                      d->attribute_count ? (CuAttribute *)d->attributes : NULL, d->attribute_count};
  int error;
  Py_BEGIN_ALLOW_THREADS
  error = cu_launch(&c, d->function, params, NULL);
  Py_END_ALLOW_THREADS
  return error ? raise_cuda(error) : 1;
}

/* `submit` for a launch with tensor descriptors, whose maps are encoded now. */
static __attribute__((noinline)) int submit_blocks(const Direct *d, Words *w, const long grid[3]) {
  Parameters p;
  if (!add_all(d, w, &p)) return 0;
  add(&p, &no_scratch, 8);
  add(&p, &no_scratch, 8);
  return call_driver(d, w, grid, p.params);
}

/* hot path. Submit on torch's current stream. 1: done, 0: Triton's own launcher must do it, 2: the grid is empty, -1:
 * error. Inlining at both calls saves 43 instructions per launch (tests/bench/host.py). */
static inline __attribute__((always_inline)) int submit(const Direct *d, Words *w, const long grid[3]) {
  void *params[MAX_SLOTS + 2];
  if (!convert_all(d, w->raw)) return 0;
  if (!grid[0] || !grid[1] || !grid[2]) return 2;
  if (find_stream(d, w)) return -1;
  if (__builtin_expect(d->blocks, 0)) return submit_blocks(d, w, grid);
  int count = d->passed_count;
#pragma GCC unroll 4
  for (int i = 0; i < count; i++) params[i] = &w->raw[d->passed[i]];
  params[count] = params[count + 1] = &no_scratch; /* global and profile scratch */
  return call_driver(d, w, grid, params);
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
  PyObject *result = NULL;
  if (!enter_python()) {
    result = PyObject_CallMethodObjArgs(e->bound, s_run, tuple, grid, NULL);
    leave_python();
  }
  Py_DECREF(tuple);
  if (result && take_direct(e, values, n)) Py_CLEAR(result);
  return result;
}

typedef struct { uint64_t start, end, bytes; int zeroed; } Span; /* bytes: 0 unless the tensor is contiguous */

/* The span of a tensor's memory; 0 if unknown. */
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
  uint64_t size = element_bytes_of(v.kind);
  s->start = address_of(&v);
  s->end = s->start + (uint64_t)(reach + 1) * size;
  s->bytes = contiguous && reach >= 0 ? (uint64_t)dense * size : 0;
  return size > 0;
}

/* Zero accumulators with the driver's memset: 1 done; 0 if Python must, which handles all layouts and raises the error
 * for an alias of an input; -1 with an error set. */
static int zero_directly(const Direct *d, const Table *t, Words *w, PyObject *const *values) {
  Span spans[MAX_ARGS];
  int count = 0;
  if (d->blocks | d->tuples) return 0; /* their tensors may be aliases */
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
  Py_BEGIN_ALLOW_THREADS /* a full queue blocks */
  for (int i = 0; i < count && !error; i++)
    if (spans[i].zeroed && spans[i].bytes) error = cu_memset(spans[i].start, 0, spans[i].bytes, w->stream);
  Py_END_ALLOW_THREADS
  return error ? raise_cuda(error) : 1;
}

/* Zeroing and the config's hook, in Python; -1 with an error set. */
static int run_prologue(const Entry *e, PyObject *const *values, int n) {
  PyObject *tuple = tuple_of(values, n);
  PyObject *done = tuple ? call_one(e->before, tuple) : NULL;
  Py_XDECREF(tuple);
  Py_XDECREF(done);
  return done ? 0 : -1;
}

/* The prologue: zero accumulators, then call the config's hook. 0, or 1 if Python code has run, -1 with an error
 * set. */
static int prepare(const Entry *e, const Direct *d, const Table *t, Words *w, PyObject *const *values) {
  int zeroed = d->zeroes ? zero_directly(d, t, w, values) : 1;
  if (zeroed <= 0) return zeroed || run_prologue(e, values, t->n) ? -1 : 1;
  if (!d->hook) return 0;
  PyObject *all = arguments_by_name(t, d->hook_constants, values);
  PyObject *done = all ? call_one(d->hook, all) : NULL;
  Py_XDECREF(all);
  Py_XDECREF(done);
  return done ? 1 : -1;
}

/* Read the memory of a value, or of an item of it, again; 0 if it now needs another kernel. All else in a signature is
 * immutable. `at`: index of its first word, then of the first one after it. */
static int read_value_again(const Table *t, Words *w, int i, int slot, PyObject *x, int *at) {
  View v;
  uint64_t first = w->word[*at];
  int tag = first & TAG_MASK, end = *at + length_of(t, i, &w->word[*at]);
  *at += 2; /* the first item of a tuple */
  for (Py_ssize_t k = 0; tag == TAG_TUPLE && k < PyTuple_GET_SIZE(x); k++)
    if (!read_value_again(t, w, i, w->slots++, PyTuple_GET_ITEM(x, k), at)) return 0;
  *at = end;
  if (tag == TAG_TENSOR) {
    if (!view(x, &v) || !same_memory(memory_word(&v), first)) return 0;
    w->raw[slot] = address_of(&v);
  } else if (tag == TAG_BLOCK) { /* `fits` compares rank and block later */
    const uint64_t not_memory = TAG_MASK | 1 << 7;
    return read_descriptor(x, &w->block[w->raw[slot]], &v) && same_memory(memory_word(&v) & ~not_memory, first & ~not_memory);
  }
  return 1;
}

/* Python code has run since the signature was made: a hook, a grid callable, a size's `__index__`, a bucket. Read what
 * it may have changed, tensors' addresses and the stream, and check the guards again. 1: the kernel is still right for
 * these arguments and this device; 0: Triton must find another or raise an error; -1: error. */
static __attribute__((noinline)) int read_again(const Table *t, Direct *d, Words *w, PyObject *const *values, PyObject **kernel) {
  uint64_t device;
  int at = 0;
  if (t->device != Py_None) {
    int result = device_word(t, &device);
    if (result == WORDS_ERROR) return -1;
    if (result || device != w->word[at++]) return 0;
  }
  w->slots = (int)t->n;
  for (int i = 0; i < t->n; i++)
    if (!read_value_again(t, w, i, i, values[i], &at)) return 0;
  w->has_stream = 0;
  Py_CLEAR(*kernel);
  return guards_hold(d, kernel);
}

/* Launch through Triton's own look-up with the entry's config, after the prologue. New reference. */
static PyObject *launch_through_triton(Entry *e, PyObject *const *values, int n, PyObject *grid) {
  PyObject *tuple = tuple_of(values, n);
  PyObject *result = NULL;
  if (tuple && !enter_python()) {
    result = PyObject_CallMethodObjArgs(e->bound, s_fallback, tuple, grid, NULL);
    leave_python();
  }
  Py_XDECREF(tuple);
  return result;
}

/* The same with three sizes as the grid. New reference. */
static __attribute__((noinline)) PyObject *launch_as_sized(Entry *e, PyObject *const *values, int n, const long sizes[3]) {
  PyObject *grid = Py_BuildValue("(lll)", sizes[0], sizes[1], sizes[2]);
  PyObject *result = grid ? launch_through_triton(e, values, n, grid) : NULL;
  Py_XDECREF(grid);
  return result;
}

/* What a launch would pass to the driver: function, grid or None, threads, bytes of shared memory, stream, attributes
 * as (id, x, y, z), and the bytes of each parameter. New reference; None if Triton's launcher must convert a value. */
static PyObject *passed_of(const Direct *d, Words *w, const long *grid) {
  PyObject *parameters = written_of(d, w);
  if (!parameters || parameters == Py_None) return parameters;
  if (find_stream(d, w)) { Py_DECREF(parameters); return NULL; }
  PyObject *attributes = PyTuple_New(d->attribute_count);
  PyObject *sizes = grid ? Py_BuildValue("(lll)", grid[0] * (long)d->ctas, grid[1], grid[2]) : Py_NewRef(Py_None);
  for (unsigned i = 0; attributes && i < d->attribute_count; i++) {
    const CuAttribute *a = &d->attributes[i];
    PyTuple_SET_ITEM(attributes, i, Py_BuildValue("(iIII)", a->id, a->value.dims[0], a->value.dims[1], a->value.dims[2]));
  }
  if (PyErr_Occurred()) { Py_XDECREF(attributes); Py_XDECREF(parameters); Py_XDECREF(sizes); return NULL; }
  return Py_BuildValue("(KNIIKNN)", (unsigned long long)(uintptr_t)d->function, sizes, d->threads, d->shared_bytes,
                       (unsigned long long)(uintptr_t)w->stream, attributes, parameters);
}

/* What a launch of these values would pass to the driver, without launching; None if it would not call the driver. Its
 * grid is None if only Python code can evaluate it. */
static PyObject *table_passed(Table *t, PyObject *args) {
  PyObject *tuple, *grid, **values;
  Words w;
  long sizes[3];
  if (!PyArg_ParseTuple(args, "OO", &tuple, &grid)) return NULL;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) return NULL;
  Entry *e = result ? NULL : find_entry(t, &w);
  Direct *d = e ? e->direct : NULL;
  if (!d) Py_RETURN_NONE;
  d->references++; /* translating a grid callable runs Python code */
  unsigned long long computed = t->computed;
  int sized = plain_grid(grid, sizes) ? 1 : compute_grid(t, d->constants, grid, values, sizes);
  t->computed = computed;
  PyObject *passed = sized < 0 ? NULL : passed_of(d, &w, sized ? sizes : NULL);
  release_direct(d);
  return passed;
}

/* Call the judge with what would be passed; `grid`: the caller's, or a callable's result. 1: it equals what the Python
 * twin passes, 0: Triton must launch, -1: error. Runs Python code. */
static __attribute__((noinline)) int ask_judge(const Table *t, Entry *e, const Direct *d, Words *w, PyObject *const *values,
                                               PyObject *grid, const long sizes[3]) {
  PyObject *judge = Py_NewRef(t->judge);
  PyObject *passed = passed_of(d, w, sizes), *tuple = passed ? tuple_of(values, t->n) : NULL;
  PyObject *said = tuple ? PyObject_CallFunctionObjArgs(judge, e->bound, tuple, grid, passed, NULL) : NULL;
  int yes = said ? PyObject_IsTrue(said) : -1;
  Py_DECREF(judge);
  Py_XDECREF(passed);
  Py_XDECREF(tuple);
  Py_XDECREF(said);
  return yes;
}

/* The grid is empty for the entry's config: launch another config, if there is one. New reference. */
static PyObject *launch_nothing(Entry *e, PyObject *const *values, int n, PyObject *grid, PyObject *kernel) {
  PyObject *again = NULL;
  if (optional(e->bound, "again", &again)) { Py_DECREF(kernel); return NULL; }
  if (!again) return kernel;
  Py_DECREF(kernel);
  PyObject *tuple = tuple_of(values, n), *result = NULL;
  if (tuple && !enter_python()) {
    result = PyObject_CallFunctionObjArgs(again, tuple, grid, NULL);
    leave_python();
  }
  Py_XDECREF(tuple);
  Py_DECREF(again);
  return result;
}

/* Finish a launch that `submit` did not make; `done`: its result. New reference. */
static __attribute__((noinline)) PyObject *not_submitted(Entry *e, PyObject *const *values, int n, PyObject *grid,
                                                        const long sizes[3], PyObject *kernel, int done) {
  if (done == 2) return launch_nothing(e, values, n, grid, kernel);
  Py_CLEAR(kernel);
  return done ? NULL : launch_as_sized(e, values, n, sizes);
}

/* Finish a launch that has run Python code. New reference. */
static __attribute__((noinline)) PyObject *launch_after_python(Table *t, Entry *e, Direct *d, Words *w, PyObject *const *values,
                                                              PyObject *grid, PyObject *returned, const long sizes[3],
                                                              PyObject *kernel) {
  PyObject *shown = returned ? returned : grid;
  int done = read_again(t, d, w, values, &kernel), judged = done > 0 && t->judge ? ask_judge(t, e, d, w, values, shown, sizes) : 1;
  if (judged <= 0) {
    Py_CLEAR(kernel);
    return judged ? NULL : launch_through_triton(e, values, t->n, shown);
  }
  if (done > 0) done = submit(d, w, sizes);
  return done == 1 ? kernel : not_submitted(e, values, t->n, grid, sizes, kernel, done);
}

/* hot path. Launch a found entry. May run Python code: prologue, grid callable. New reference to the compiled
 * kernel. */
static PyObject *launch_entry(Table *t, Entry *e, Words *w, PyObject *const *values, PyObject *grid) {
  long sizes[3];
  PyObject *kernel = NULL;
  Direct *d = e->direct; /* Python code within this launch, or another thread, may replace the entry's */
  if (d) d->references++;
  int direct = d ? guards_hold(d, &kernel) : 0;
  if (direct <= 0) {
    release_direct(d);
    return direct ? NULL : run_in_python(e, values, t->n, grid);
  }
  PyObject *returned = NULL;
  int prepared = e->before ? prepare(e, d, t, w, values) : 0;
  int evaluated = prepared < 0 ? -1 : plain_grid(grid, sizes) ? 0 : evaluate_grid(t, d, grid, values, sizes, &returned);
  if (evaluated < 0) {
    Py_CLEAR(kernel);
  } else if (evaluated == 2) {
    Py_CLEAR(kernel);
    kernel = launch_through_triton(e, values, t->n, grid);
  } else if (t->asks | prepared | evaluated) {
    kernel = launch_after_python(t, e, d, w, values, grid, returned, sizes, kernel);
  } else {
    int done = submit(d, w, sizes);
    if (done != 1) kernel = not_submitted(e, values, t->n, grid, sizes, kernel, done);
  }
  Py_XDECREF(returned);
  release_direct(d);
  return kernel;
}

/* Launch the object bound for these values like a call, but without counting a hit; None if nothing is bound. Runs
 * Python code. */
static PyObject *table_launch(Table *t, PyObject *args) {
  PyObject *tuple, *grid, **values;
  Words w;
  if (!PyArg_ParseTuple(args, "OO", &tuple, &grid)) return NULL;
  if (!as_values(t, tuple, &values)) Py_RETURN_NONE;
  int result = make_words(t, &w, values);
  if (result == WORDS_ERROR) return NULL;
  Entry *e = result ? NULL : find_entry(t, &w);
  if (!e) Py_RETURN_NONE;
  e->references++;
  PyObject *launched = launch_entry(t, e, &w, values, grid);
  release(e);
  return launched;
}
