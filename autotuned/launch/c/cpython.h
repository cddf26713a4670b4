/* Assumptions about CPython beyond its documented API. Asserted here as far as a compiler can; the rest was tested with
 * Python 3.10 to 3.13, in builds with the GIL.
 *
 *  1. Any change of a class or of its bases sets its `tp_version_tag` to 0 or to another number; a look-up in the class
 *     assigns one again (guards, grids, tuned objects, descriptors).
 *  2. Before 3.12, any change of a dict increases its `ma_version_tag`; later versions have documented watchers.
 *  3. The items of a tuple are contiguous, and so are the arguments of a call.
 *  4. `tp_weaklistoffset` of a class is the offset of an object's first weak reference (pool).
 *  5. Borrowed references stay valid while this code holds the GIL and runs no Python.
 *
 * Where they may not hold, importing the module raises an ImportError that says so, and the Python twin launches. */
#ifndef AUTOTUNED_LAUNCH_CPYTHON_H
#define AUTOTUNED_LAUNCH_CPYTHON_H

#ifndef AUTOTUNED_PYTHON_HEX /* set by a test that builds for another Python */
#define AUTOTUNED_PYTHON_HEX PY_VERSION_HEX
#endif

#if defined(Py_GIL_DISABLED)
#define STEPS_ASIDE "the C launcher needs the interpreter lock, which this build of Python is without"
#elif AUTOTUNED_PYTHON_HEX >= 0x030E0000
#define STEPS_ASIDE "the C launcher was tried with Python 3.10 to 3.13 only"
#endif

#if PY_VERSION_HEX >= 0x030C0000
#define HAVE_WATCHERS 1
#else
#define HAVE_WATCHERS 0
#endif

#ifndef STEPS_ASIDE
_Static_assert(sizeof(((PyTypeObject *)0)->tp_version_tag) == sizeof(uint32_t), "1: the version of a class has 32 bits");
#if !HAVE_WATCHERS
_Static_assert(sizeof(((PyDictObject *)0)->ma_version_tag) == sizeof(uint64_t), "2: the version of a dict has 64 bits");
#endif
_Static_assert(sizeof(((PyTupleObject *)0)->ob_item) == sizeof(PyObject *), "3: a tuple ends in its items");
_Static_assert(sizeof(((PyTypeObject *)0)->tp_weaklistoffset) == sizeof(ptrdiff_t), "4: an offset, which may be negative");
#endif

#endif
