/* Guards: whether everything that a bound kernel depends on is unchanged, by watchers or versions of dicts and classes.
 *
 * Part of `module.c`, after `entries.h`. All watched objects of the process share one counter of changes,
 * `generation`. */

/* Watched classes, each with the version seen last: any change sets it to 0 until the next look-up in the class. A
 * class whose versions are used up (Python 3.13 assigns at most 1,000; every Python has a limit) counts as changed each
 * time: NO_VERSION equals no version. */
#define NO_VERSION UINT32_MAX
typedef struct { PyTypeObject *type; uint32_t tag; } Class; /* strong, never released: a handful of Triton's classes */
static Class *classes; /* those to compare come first */
static int class_count = 0, looked_at = 0;

/* A change of a class also changes its subclasses' versions, so a class with a subclass in the list need not be
 * compared. Called again whenever a class changes, since its bases may have changed. */
static void sort_classes(void) {
  looked_at = 0;
  for (int i = 0; i < class_count; i++) {
    int above = 0;
    for (int j = 0; j < class_count; j++) above |= j != i && PyType_IsSubtype(classes[j].type, classes[i].type);
    if (above) continue;
    Class one = classes[i];
    classes[i] = classes[looked_at];
    classes[looked_at++] = one;
  }
}

/* A class has changed, or may have; -1 with an error set. May run Python code, which may watch another class. */
static int note_tag(int i) {
  PyTypeObject *type = classes[i].type;
  generation++;
  PyObject *any = PyObject_GetAttr((PyObject *)type, s_run); /* assigns a version */
  if (!any && clear_exception()) return -1;
  Py_XDECREF(any);
  if (classes[i].type == type) classes[i].tag = type->tp_version_tag ? type->tp_version_tag : NO_VERSION;
  return 0;
}

static __attribute__((noinline)) int note_tags(void) {
  for (int i = 0; i < class_count; i++)
    if (classes[i].type->tp_version_tag != classes[i].tag && note_tag(i)) return -1;
  sort_classes();
  return 0;
}

/* hot path before Python 3.12. Increase the generation if a watched class has changed; -1 with an error set. */
static inline int look_at_tags(void) {
  for (const Class *c = classes, *end = c + looked_at; c < end; c++)
    if (c->type->tp_version_tag != c->tag) return note_tags();
  return 0;
}

/* Watch a class by its version; -1 with an error set. */
static int watch_tag(PyTypeObject *type) {
  for (int i = 0; i < class_count; i++) if (classes[i].type == type) return 0;
  Class *more = PyMem_Realloc(classes, ((size_t)class_count + 1) * sizeof *more);
  if (!more) { PyErr_NoMemory(); return -1; }
  Py_INCREF(type);
  classes = more;
  classes[class_count++] = (Class){type, NO_VERSION};
  sort_classes();
  generation++; /* also if a subclass is compared in its place */
  return 0;
}

#if !HAVE_WATCHERS
#define look_at_types look_at_tags

/* hot path. Versions only grow, so any change changes their sum. */
static inline uint64_t sum_of_versions(const Direct *d) {
  uint64_t sum = 0;
  for (int i = 0; i < VERSIONS; i++) sum += *d->versions[i];
  for (Py_ssize_t i = VERSIONS; i < PyTuple_GET_SIZE(d->watched); i++)
    sum += ((PyDictObject *)PyTuple_GET_ITEM(d->watched, i))->ma_version_tag;
  return sum;
}
static inline int versions_hold(const Direct *d) { return sum_of_versions(d) == d->seen; }
static void note_versions(Direct *d) { d->seen = sum_of_versions(d); }
static int watch_any(PyObject *what) { return PyType_Check(what) ? watch_tag((PyTypeObject *)what) : 0; }
#else
/* A process has eight watchers of each kind for all libraries. If none is left, versions of classes are compared at
 * each call as before Python 3.12, and the contents of dicts by Python code. */
static int dict_watcher = -1, type_watcher = -1;
static int unwatched_types = 0, unwatched_dicts = 0;
static int doubtful = 1; /* whether a class without a version, or a dict, may have changed unnoticed */

static int on_dict(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
  generation++;
  return 0;
}
static int on_type(PyTypeObject *type) { (void)type; generation++; doubtful = 1; return 0; }

/* Check for changes that no watcher reports; -1 with an error set. */
static __attribute__((noinline)) int look_at_doubtful(void) {
  doubtful = 0; /* a change meanwhile sets it again */
  generation += (uint64_t)unwatched_dicts;
  if (look_at_tags()) { doubtful = 1; return -1; }
  for (int i = 0; i < looked_at; i++) doubtful |= classes[i].tag == NO_VERSION;
  doubtful |= unwatched_types | unwatched_dicts;
  return 0;
}

/* hot path. Increase the generation if a watched class may have changed; -1 with an error set. */
static inline int look_at_types(void) { return doubtful ? look_at_doubtful() : 0; }
static int versions_hold(const Direct *d) { (void)d; return 1; }
static void note_versions(Direct *d) { (void)d; }

/* Python has refused a watcher: go on without it. -1 if its error is not an `Exception`. */
static int go_unwatched(int *flag) {
  if (clear_exception()) return -1;
  *flag = doubtful = 1;
  return 0;
}

static int watch_dict(PyObject *dict) {
  if (dict_watcher < 0) dict_watcher = PyDict_AddWatcher(on_dict);
  return dict_watcher < 0 || PyDict_Watch(dict_watcher, dict) ? go_unwatched(&unwatched_dicts) : 0;
}

static int watch_type(PyObject *type) {
  if (watch_tag((PyTypeObject *)type)) return -1;
  doubtful = 1; /* its version is not known yet */
  if (type_watcher < 0) type_watcher = PyType_AddWatcher(on_type);
  return type_watcher < 0 || PyType_Watch(type_watcher, type) ? go_unwatched(&unwatched_types) : 0;
}

static int watch_any(PyObject *what) { return PyType_Check(what) ? watch_type(what) : watch_dict(what); }
#endif

/* New reference to a weak reference's object; NULL without an error if it is gone. */
static PyObject *referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found = NULL;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear(); /* not a weak reference; `direct_of` checks that */
  return found;
#else
  PyObject *found = PyWeakref_GET_OBJECT(reference);
  if (found == Py_None) return NULL;
  Py_INCREF(found);
  return found;
#endif
}

/* Something watched has changed: compare everything. 1, 0 or -1 as below; runs Python code. */
static __attribute__((noinline)) int compare_watched(Direct *d, PyObject *kernel) {
  uint64_t now = generation;
  d->generation = 0; /* until everything compares equal */
  note_versions(d);
  PyObject *cached = PyDict_GetItemWithError(d->cache, d->cache_key);
  if (cached != kernel) return PyErr_Occurred() ? -1 : 0;
  PyObject *holds = PyObject_CallNoArgs(d->holds);
  int yes = holds ? PyObject_IsTrue(holds) : -1;
  Py_XDECREF(holds);
  if (yes == 1) d->generation = now;
  return yes;
}

/* hot path. 1: launch directly; `kernel` is a new reference, so that it survives this launch even if a hook changes
 * Triton's cache. 0: Triton must launch. -1: error. Triton's cache is watched too: while it is unchanged, Triton's own
 * look-up would find this kernel. Runs Python code only if something changed. */
static inline __attribute__((always_inline)) int guards_hold(Direct *d, PyObject **kernel) {
  if (PyList_GET_SIZE(d->pre_run) || PyList_GET_SIZE(d->entering) || PyList_GET_SIZE(d->leaving)) return 0;
  if (!(*kernel = referent(d->kernel))) return 0;
  int yes = d->generation == generation && versions_hold(d) ? 1 : compare_watched(d, *kernel);
  if (yes != 1) Py_CLEAR(*kernel);
  return yes;
}

static PyObject *watch(PyObject *module, PyObject *what) {
  if (!PyDict_Check(what) && !PyType_Check(what))
    return PyErr_Format(PyExc_TypeError, "watch: expected a dict or a class, got %R", what);
  if (watch_any(what)) return NULL;
  Py_RETURN_NONE;
}
