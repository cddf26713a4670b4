/* Evaluates grid callables that are arithmetic, without calling them.
 *
 * Part of `module.c`, after `python_calls.h` and `signature.h`. Programs are kept by the callable's code, for the
 * process. */

/* Steps of a program that `launch/grid_program.py` makes from a grid callable's bytecode, for a stack machine of
 * integers. Steps named IS and NO check that a name still refers to the same object; if one fails, the callable is
 * called. */
enum { G_INT, G_META, G_CELL, G_GLOBAL, G_ADD, G_SUB, G_MUL, G_FLOORDIV, G_MOD, G_MIN, G_MAX, G_NEG, G_IS_GLOBAL,
       G_NO_GLOBAL, G_IS_ITEM, G_IS_CODE };
#define MAX_STACK 16
#define MAX_PROGRAMS 1024 /* callables by their code, translated or not; at most half of the places are used */

typedef struct {
  int kind;
  long long number;
  PyObject *name, *of, *is; /* strong or NULL; names are interned */
} Step;

typedef struct {
  PyObject *code;   /* strong; NULL: a free place */
  int count, sizes; /* number of steps, and of sizes that they compute; no sizes: not arithmetic */
  Step *steps;      /* owned */
} Program;

static Program programs[MAX_PROGRAMS];
static int program_count = 0;
static PyObject *reader; /* strong: returns the program of a callable, or None */

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

/* By how much a step changes the stack's depth. */
static int growth(int kind) { return kind <= G_GLOBAL ? 1 : kind < G_NEG ? -1 : 0; }

/* Whether the stack never underflows or overflows, and ends with one number per size. */
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

/* Load a program from Python: (sizes, steps); for None or an unsound one, `sizes` stays 0. */
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

/* cold path. Translate a callable; -1 with an error set. Runs Python code, which may translate another one. */
static __attribute__((noinline)) int read_program(PyObject *grid, PyObject *code) {
  Program p = {0};
  PyObject *made = call_one(reader, grid);
  if (!made && clear_exception()) return -1;
  if (!made) made = Py_NewRef(Py_None); /* not tried again */
  size_t i = program_place(code);
  while (programs[i].code && programs[i].code != code) i = (i + 1) % MAX_PROGRAMS;
  if (!programs[i].code && program_count < MAX_PROGRAMS / 2) {
    take_program(&p, made);
    p.code = Py_NewRef(code);
    programs[i] = p;
    program_count++;
  }
  Py_DECREF(made);
  return 0;
}

/* hot path. The program of a callable, or NULL; `failed` becomes -1 with an error set. */
static const Program *program_of(PyObject *grid, int *failed) {
  PyObject *code = PyFunction_GET_CODE(grid);
  for (int again = 0; again < 2; again++) {
    for (size_t i = program_place(code); programs[i].code; i = (i + 1) % MAX_PROGRAMS)
      if (programs[i].code == code) return programs[i].sizes ? &programs[i] : NULL;
    if (again || !reader || program_count >= MAX_PROGRAMS / 2) return NULL;
    if ((*failed = read_program(grid, code))) return NULL;
  }
  return NULL;
}

static inline int as_number(PyObject *x, long long *out) {
  int overflow = 0;
  if (!x || !PyLong_CheckExact(x)) return 0;
  *out = PyLong_AsLongLongAndOverflow(x, &overflow);
  return !overflow;
}

/* Borrowed value of a dict by name, or NULL. Comparing with a key that is not a string may run Python code; an error
 * that is not an `Exception` stays set. */
static PyObject *item(PyObject *dict, PyObject *name) {
  PyObject *found = PyDict_GetItemWithError(dict, name);
  if (!found && PyErr_Occurred()) (void)clear_exception();
  return found;
}

/* Borrowed argument of the call, or parameter of the config, by name, or NULL. */
static PyObject *argument(const Table *t, PyObject *constants, PyObject *const *values, PyObject *name) {
  for (int i = 0; i < t->n; i++) if (t->names[i] == name) return values[i];
  return item(constants, name);
}

/* Execute a step that is no operation; 0 if there is no such number, or the check fails. */
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
    case G_NO_GLOBAL: return !item(PyFunction_GET_GLOBALS(grid), s->name) && !PyErr_Occurred();
    case G_IS_ITEM: return item(s->of, s->name) == s->is;
    default: return PyFunction_GET_CODE(s->of) == s->is;
  }
}

/* Python's `//` and `%`; 0 if Python would raise or 64 bits overflow. */
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

/* Whether a debugger, profiler or coverage tool traces calls: it should see this one. */
static int is_traced(void) {
  PyThreadState *state = PyThreadState_Get();
  return state->c_tracefunc || state->c_profilefunc;
}

/* hot path. Compute the sizes of an arithmetic grid callable; 0 if it must be called, -1 with an error set. Runs Python
 * code only to translate a callable for the first time. */
static int compute_grid(Table *t, PyObject *constants, PyObject *grid, PyObject *const *values, long out[3]) {
  long long stack[MAX_STACK + 1];
  int failed = 0;
  const Program *p = PyFunction_Check(grid) && !is_traced() ? program_of(grid, &failed) : NULL;
  if (!p || !PyDict_CheckExact(PyFunction_GET_GLOBALS(grid))) return failed;
  int top = 0;
  for (int i = 0; i < p->count; i++) {
    const Step *s = &p->steps[i];
    if (s->kind >= G_ADD && s->kind <= G_MAX) {
      top--;
      if (!operate(s->kind, &stack[top - 1], stack[top])) return 0;
    } else if (s->kind == G_NEG) {
      if (__builtin_sub_overflow(0LL, stack[top - 1], &stack[top - 1])) return 0;
    } else {
      if (!looked_up(s, grid, t, constants, values, &stack[top])) return PyErr_Occurred() ? -1 : 0;
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

static PyObject *read_grids(PyObject *module, PyObject *function) {
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
