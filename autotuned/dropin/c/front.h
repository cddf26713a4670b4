/* `Autotuner.run` under `install()`: calls Triton's own function as long as it finds its choice.
 *
 * Part of `launch/c/module.c`, after `tuned.h`. Everything else goes to the Python twin, `run` in
 * `dropin/install.py`. */

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  vectorcallfunc call; /* that of Python functions */
  PyObject *dict;      /* strong or NULL: name and docstring of the replaced method */
  PyObject *original;  /* strong: Triton's function */
  PyObject *twin;      /* strong */
  PyObject *replacing; /* strong: what launches in Triton's place, or None */
  char active;         /* 0 after `uninstall()` */
} Front;
static PyTypeObject FrontType;

static PyTypeObject *choices_type; /* strong or NULL: `Memory` of `dropin/seeded.py` */
static PyObject *missed; /* strong: exception that ends Triton's `run` at a missing key; never leaves this file */
static PyObject *tritons_code; /* strong or NULL: code of Triton's `run` */
/* Borrowed, for comparison only: the choices of the tuner whose `run` this thread has called from here. */
static _Thread_local PyObject *asked = NULL;

/* Whether the innermost Python function is Triton's `run`, not a hook or pruner called by it. */
static int is_asked_by_triton(void) {
  PyFrameObject *frame = PyEval_GetFrame();
  PyCodeObject *code = frame ? PyFrame_GetCode(frame) : NULL;
  Py_XDECREF(code);
  return code && (PyObject *)code == tritons_code;
}

/* The result of the last `key in choices` in Triton's `run`, which asks for `choices[key]` next, before anything can
 * change it; a hook may not. All strong, or all NULL. */
typedef struct { PyObject *choices, *key, *config; } Found;
static Found latest;

static void note_found(Found now) {
  Found old = latest;
  latest = now;
  Py_XDECREF(old.choices); Py_XDECREF(old.key); Py_XDECREF(old.config); /* last: destructors may look up another key */
}

/* hot path. `key in choices`; for a missing key calls Python: the twin if Triton's `run` asks, else `_look_up`. */
static int choices_contain(PyObject *choices, PyObject *key) {
  PyObject *config = PyDict_GetItemWithError(choices, key);
  if (config) {
    if (choices == asked && is_asked_by_triton()) note_found((Found){Py_NewRef(choices), Py_NewRef(key), Py_NewRef(config)});
    return 1;
  }
  if (PyErr_Occurred()) return -1;
  if (choices == asked && is_asked_by_triton()) { PyErr_SetNone(missed); return -1; }
  PyObject *answer = PyObject_CallMethodOneArg(choices, s_look_up, key);
  int found = answer ? PyObject_IsTrue(answer) : -1;
  Py_XDECREF(answer);
  return found;
}

/* hot path. `choices[key]`; does not hash and compare the key again, which pays for this layer. */
static PyObject *choices_get(PyObject *choices, PyObject *key) {
  if (key != latest.key || choices != latest.choices) return PyDict_Type.tp_as_mapping->mp_subscript(choices, key);
  PyObject *config = Py_NewRef(latest.config);
  note_found((Found){NULL, NULL, NULL});
  return config;
}

/* hot path. Call Triton's `run` for a tuner with these choices; NULL with `missed` set if the key is missing. New
 * reference. */
static PyObject *run_original(Front *f, PyObject *choices, PyObject *const *args, size_t flags, PyObject *names) {
  PyObject **mine = &asked, *outer = *mine;
  *mine = choices;
  PyObject *result = f->call(f->original, args, flags, names);
  *mine = outer;
  return result;
}

/* Call the twin, in which a missing key does not raise `missed`. New reference. */
static PyObject *run_twin(Front *f, PyObject *const *args, size_t flags, PyObject *names) {
  PyObject **mine = &asked, *outer = *mine;
  *mine = NULL;
  PyObject *result = f->call(f->twin, args, flags, names);
  *mine = outer;
  return result;
}

/* hot path. Launch from the table in front of Triton's tuner, and set the tuner's best config. New reference. */
static PyObject *run_proxy(Base *proxy, PyObject *tuner, PyObject *const *args, Py_ssize_t positional, PyObject *names) {
  PyObject *configs = PyObject_GetAttr(tuner, s_configs);
  if (!configs) return NULL;
  int failed = configs != proxy->configs && set_configs(proxy, configs, NULL);
  Py_DECREF(configs);
  if (failed) return NULL;
  PyObject *result = base_run((PyObject *)proxy, args, positional, names), *best = result ? get_best(proxy, NULL) : NULL;
  if (!best || PyObject_SetAttr(tuner, s_best_config, best)) Py_CLEAR(result);
  Py_XDECREF(best);
  return result;
}

/* hot path. What launches in front of a tuner with these choices: True if only Python can tell, False if Triton does, as where
 * tuners share their choices or the kernel was replaced. New reference. */
static PyObject *proxy_of(PyObject *choices, PyObject *tuner) {
  PyObject *proxy = PyObject_GetAttr(choices, s_proxy), *fn;
  if (!proxy || proxy == Py_False) return proxy;
  if (!PyObject_TypeCheck(proxy, &BaseType)) { Py_DECREF(proxy); return Py_NewRef(Py_True); }
  if (!(fn = PyObject_GetAttr(tuner, s_fn))) { Py_DECREF(proxy); return NULL; }
  if (((Base *)proxy)->theirs != tuner || ((Base *)proxy)->their_fn != fn) Py_SETREF(proxy, Py_NewRef(Py_False));
  Py_DECREF(fn);
  return proxy;
}

/* hot path. What the twin does, if the tuner's choices are of `choices_type`. New reference. */
static PyObject *front_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
  Front *f = (Front *)self;
  Py_ssize_t positional = PyVectorcall_NARGS(flags);
  if (!f->active || !positional) return run_twin(f, args, flags, names);
  PyObject *choices = PyObject_GetAttr(args[0], s_cache), *proxy = NULL, *result;
  if (!choices) { /* Triton's `run` reads it only if there are several configs */
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
    PyErr_Clear();
    return run_twin(f, args, flags, names);
  }
  int known = Py_TYPE(choices) == choices_type;
  if (known && f->replacing != Py_None && !(proxy = proxy_of(choices, args[0]))) result = NULL;
  else if (known && (!proxy || proxy == Py_False)) {
    if (!(result = run_original(f, choices, args, flags, names)) && PyErr_ExceptionMatches(missed)) {
      PyErr_Clear();
      result = run_twin(f, args, flags, names);
    }
  }
  else if (known && proxy != Py_True) result = run_proxy((Base *)proxy, args[0], args + 1, positional - 1, names);
  else result = run_twin(f, args, flags, names);
  Py_XDECREF(proxy);
  Py_DECREF(choices);
  return result;
}

/* hot path. Call Triton's `run` as Triton's `[]` does, for a kernel of our class that is left to Triton. New
 * reference. */
static PyObject *call_left(PyObject *self, PyObject *const *args, Py_ssize_t positional, PyObject *names, PyObject *grid) {
  PyObject *all[2 * MAX_ARGS + 3] = {self}, *every = NULL, *result = NULL;
  Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0, at = 0;
  PyObject *run = tuner_index.type ? PyObject_GetAttr((PyObject *)tuner_index.type, s_run) : NULL;
  PyObject *choices = run ? PyObject_GetAttr(self, s_cache) : NULL;
  Front *f = run && Py_TYPE(run) == &FrontType && ((Front *)run)->active ? (Front *)run : NULL;
  if (!f || !choices || Py_TYPE(choices) != choices_type || positional + given > 2 * MAX_ARGS) goto slow;
  memcpy(all + 1, args, sizeof *all * (size_t)positional);
  if (!(every = PyTuple_New(given + 2))) goto done;
  for (Py_ssize_t i = 0; i < given; i++) {
    PyObject *name = PyTuple_GET_ITEM(names, i);
    if (is_named(name, s_grid) || is_named(name, s_warmup)) continue;
    all[1 + positional + at] = args[positional + i];
    PyTuple_SET_ITEM(every, at++, Py_NewRef(name));
  }
  all[1 + positional + at] = grid;
  PyTuple_SET_ITEM(every, at++, Py_NewRef(s_grid));
  all[1 + positional + at] = Py_False;
  PyTuple_SET_ITEM(every, at++, Py_NewRef(s_warmup));
  if ((at < given + 2 && _PyTuple_Resize(&every, at)) || enter_python()) goto done;
  result = run_original(f, choices, all, (size_t)positional + 1, every);
  leave_python();
  if (result || !PyErr_ExceptionMatches(missed)) goto done;
slow:
  PyErr_Clear();
  result = slow_run(self, args, positional, names, grid, Py_False);
done:
  Py_XDECREF(every);
  Py_XDECREF(choices);
  Py_XDECREF(run);
  return result;
}

static PyObject *front_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *original, *twin;
  if (keywords || !PyArg_ParseTuple(args, "O!O!", &PyFunction_Type, &original, &PyFunction_Type, &twin)) return NULL;
  PyObject *code = PyObject_GetAttrString(original, "__code__");
  if (!code) return NULL;
  Py_XSETREF(tritons_code, code);
  Front *f = (Front *)type->tp_alloc(type, 0);
  if (!f) return NULL;
  f->vectorcall = front_call;
  f->call = PyVectorcall_Function(original);
  f->original = Py_NewRef(original);
  f->twin = Py_NewRef(twin);
  f->replacing = Py_NewRef(Py_None);
  f->active = 1;
  return (PyObject *)f;
}

/* Bind like a function: a method of the object. */
static PyObject *front_get(PyObject *self, PyObject *object, PyObject *type) {
  (void)type;
  return object ? PyMethod_New(self, object) : Py_NewRef(self);
}

static int front_traverse(Front *f, visitproc visit, void *arg) {
  Py_VISIT(f->dict); Py_VISIT(f->original); Py_VISIT(f->twin); Py_VISIT(f->replacing);
  return 0;
}
/* Keeps the functions that it calls: the twin, which refers to it, breaks the cycle when it is cleared. */
static int front_clear(Front *f) { Py_CLEAR(f->dict); return 0; }
static void front_dealloc(Front *f) {
  PyObject_GC_UnTrack(f);
  front_clear(f);
  Py_CLEAR(f->original); Py_CLEAR(f->twin); Py_CLEAR(f->replacing);
  Py_TYPE(f)->tp_free((PyObject *)f);
}

static PyMemberDef front_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Front, vectorcall), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Front, dict), READONLY, NULL},
    {"replacing", T_OBJECT, offsetof(Front, replacing), 0, "What launches in Triton's place, or None."},
    {"active", T_BOOL, offsetof(Front, active), 0, "Whether it is installed."},
    {NULL, 0, 0, 0, NULL}};
static PyTypeObject FrontType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "autotuned._launch.Front", .tp_basicsize = sizeof(Front),
    .tp_doc = "Front(original, twin): what stands in front of Triton's `run`.", .tp_new = front_new,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_call = PyVectorcall_Call, .tp_vectorcall_offset = offsetof(Front, vectorcall), .tp_dictoffset = offsetof(Front, dict),
    .tp_descr_get = front_get, .tp_getattro = PyObject_GenericGetAttr, .tp_setattro = PyObject_GenericSetAttr,
    .tp_dealloc = (destructor)front_dealloc, .tp_traverse = (traverseproc)front_traverse, .tp_clear = (inquiry)front_clear,
    .tp_members = front_members};

/* Look up choices of this class in C; its `__contains__` in Python does the same. */
static PyObject *look_up_in(PyObject *module, PyObject *type) {
  (void)module;
  if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyDict_Type) || !PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_HEAPTYPE))
    return PyErr_Format(PyExc_TypeError, "look_up_in: expected a subclass of dict");
  Py_XSETREF(choices_type, (PyTypeObject *)Py_NewRef(type));
  choices_type->tp_as_sequence->sq_contains = choices_contain;
  choices_type->tp_as_mapping->mp_subscript = choices_get;
  Py_RETURN_NONE;
}
