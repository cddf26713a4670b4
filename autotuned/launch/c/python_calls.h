/* Python code that is run within a call: how deep calls may lie within each other, and which of its errors may be cleared.
 *
 * Part of `module.c`, and the first: it relies on no other part. */

/* A launch takes 12 KB of the C stack, which Python's own limit knows nothing of: a grid that launches its own kernel, or
 * `heuristics` over itself, is to end in an error and not in a crash. */
#define MAX_WITHIN 100
static _Thread_local int within = 0; /* calls of Python from within launches that this thread is in */

/* Before Python code is run, or another launch begun; -1 with an error set. Each 0 is followed by `leave_python`. */
static int enter_python(void) {
  if (within < MAX_WITHIN) { within++; return 0; }
  PyErr_Format(PyExc_RecursionError,
               "maximum recursion depth exceeded: %d launches within each other. A grid, hook, bucket, key function or "
               "heuristic launches the kernel that it belongs to, or heuristics are wrapped around themselves.",
               MAX_WITHIN);
  return -1;
}

static void leave_python(void) { within--; }

/* A callable of the user's with one argument. New reference. Runs Python code. */
static PyObject *call_one(PyObject *callable, PyObject *argument) {
  if (enter_python()) return NULL;
  PyObject *result = PyObject_CallOneArg(callable, argument);
  leave_python();
  return result;
}

/* Clear the error that is set, so that another way is taken; -1, and it stays, if it is none for this: Ctrl-C, the end of
 * the program, and whatever else is no `Exception` goes to the caller. */
static int clear_exception(void) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}
