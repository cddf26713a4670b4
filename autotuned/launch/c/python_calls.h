/* Running Python code within a launch: limits the nesting, and says which errors may be cleared.
 *
 * The first part of `module.c`; relies on no other. */

/* A launch takes 12 KB of the C stack, which Python's recursion limit does not count: a grid that launches its own
 * kernel, or `heuristics` over itself, must end in an error, not in a crash. */
#define MAX_WITHIN 100
static _Thread_local int within = 0; /* nesting depth of this thread */

/* Call before running Python code or a nested launch; -1 with an error set. After 0, `leave_python` must follow. */
static int enter_python(void) {
  if (within < MAX_WITHIN) { within++; return 0; }
  PyErr_Format(PyExc_RecursionError,
               "maximum recursion depth exceeded: %d launches within each other. A grid, hook, bucket, key function or "
               "heuristic launches the kernel that it belongs to, or heuristics are wrapped around themselves.",
               MAX_WITHIN);
  return -1;
}

static void leave_python(void) { within--; }

/* Call a user's callable with one argument. New reference. Runs Python code. */
static PyObject *call_one(PyObject *callable, PyObject *argument) {
  if (enter_python()) return NULL;
  PyObject *result = PyObject_CallOneArg(callable, argument);
  leave_python();
  return result;
}

/* Clear the current error so that another path may be taken; -1 with the error kept if it is not an `Exception`, such
 * as Ctrl-C or the end of the program: it goes to the caller. */
static int clear_exception(void) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
  PyErr_Clear();
  return 0;
}
