/* Objects of Python that one thread uses at a time. */

#ifndef TRACEKIT_OBJECT_H
#define TRACEKIT_OBJECT_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#include "memory.h"

/* Allows one run at a time: without the interpreter lock, another thread could enter. Checks in Python would be too late. */
INLINE int enter(int *busy)
{
    if (*busy) {
        PyErr_SetString(PyExc_RuntimeError, "used from two threads at once");
        return 0;
    }
    return *busy = 1;
}

INLINE void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#endif
