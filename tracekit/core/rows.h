/* Rows of two 64-bit integers, (start, -end) of slices, as two columns; see tracekit.merge.lanes. */

#ifndef TRACEKIT_ROWS_H
#define TRACEKIT_ROWS_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

PyObject *sort_rows(PyObject *module, PyObject *args);
PyObject *least(PyObject *module, PyObject *args);
PyObject *nest(PyObject *module, PyObject *args);
PyObject *nest_merged(PyObject *module, PyObject *args);

#endif
