/* What the launcher assumes of CPython beyond its documented interface. Each assumption is asserted here, as far as a
 * compiler can; the rest was tried with Python 3.10 to 3.13, in builds with the interpreter lock.
 *
 *  1. `tp_version_tag` of a class is 0 or another number after any change of the class or of one it inherits from, and a
 *     look-up in the class gives it one again (guards, grids, tuned objects, descriptors).
 *  2. Before 3.12, `ma_version_tag` of a dict grows with any change of it; later ones have watchers, which are documented.
 *  3. The items of a tuple lie one after the other, and those of a call's arguments too.
 *  4. A class's `tp_weaklistoffset` tells where the first weak reference to an object stands (pool).
 *  5. What is borrowed stays alive while this code holds the interpreter lock and runs no Python.
 *
 * Where they may not hold, importing the module is an ImportError that says so, and the Python twin launches. */
#ifndef AUTOTUNED_LAUNCH_CPYTHON_H
#define AUTOTUNED_LAUNCH_CPYTHON_H

#ifndef AUTOTUNED_PYTHON_HEX /* for a test that builds for a Python that is not here */
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
