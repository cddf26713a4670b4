/* Whether all is still as it was when a kernel was bound, told without a look at each thing: watchers or versions.
 *
 * Part of `_launch.c`, after `_launch_entries.h`. What is watched is one for the process: the shared `generation`. */

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
static int dict_watcher = -1, type_watcher = -1;
static int on_dict(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value) {
  (void)event; (void)dict; (void)key; (void)value;
  generation++;
  return 0;
}
static int on_type(PyTypeObject *type) { (void)type; generation++; return 0; }

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
static inline __attribute__((always_inline)) int guards_hold(Direct *d, PyObject **kernel) {
  if (PyList_GET_SIZE(d->pre_run) || PyList_GET_SIZE(d->entering) || PyList_GET_SIZE(d->leaving)) return 0;
  if (!(*kernel = referent(d->kernel))) return 0;
  int yes = d->generation == generation && versions_hold(d) ? 1 : compare_watched(d, *kernel);
  if (yes != 1) Py_CLEAR(*kernel);
  return yes;
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
