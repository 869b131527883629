/* Objects of Python that one thread uses at a time. */

#ifndef TRACEKIT_OBJECT_H
#define TRACEKIT_OBJECT_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <string.h>

#include "memory.h"
#include "scratch_file.h"

/* Allows one run at a time: without the interpreter lock, another thread could enter. Checks in Python would be too late. */
INLINE int enter(int *busy)
{
    if (*busy) {
        PyErr_SetString(PyExc_RuntimeError, "used from two threads at once");
        return 0;
    }
    return *busy = 1;
}

/* Converts a str to char[MAX_FOLDER], in the encoding of the file system: for "O&" of PyArg_ParseTuple. */
INLINE int convert_folder(PyObject *object, void *folder)
{
    PyObject *bytes;
    if (!PyUnicode_FSConverter(object, &bytes))
        return 0;
    const char *path = PyBytes_AsString(bytes);
    int fits = path != NULL && strlen(path) < MAX_FOLDER;
    if (fits)
        strcpy(folder, path);
    else
        PyErr_SetString(PyExc_ValueError, "the folder has too long a path");
    Py_DECREF(bytes);
    return fits;
}

INLINE void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#endif
