#ifndef TRACEKIT_TYPES_H
#define TRACEKIT_TYPES_H

#include "row.h" /* for Python.h, and which of it is used */

/* Adds a new type to a module under its name; also keeps it in `kept`, if that is not NULL, until the process ends. */
static inline int add_type(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **kept)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type == NULL)
        return -1;
    int failed = PyModule_AddObjectRef(module, name, type);
    if (kept != NULL && !failed)
        *kept = (PyTypeObject *)type; /* with its reference */
    else
        Py_DECREF(type);
    return failed;
}

/* Members that are objects: each holds a reference, or is NULL. */

static inline int put_object(PyObject **place, PyObject *value)
{
    PyObject *before = *place;
    Py_XINCREF(value);
    *place = value;
    Py_XDECREF(before);
    return 0;
}

static inline PyObject *get_object(PyObject *value, const char *name)
{
    if (value == NULL)
        PyErr_SetString(PyExc_AttributeError, name);
    Py_XINCREF(value);
    return value;
}

static inline int put_checked(PyObject **place, PyObject *value, PyTypeObject *type)
{
    if (value == NULL || PyObject_TypeCheck(value, type))
        return put_object(place, value);
    PyErr_SetString(PyExc_TypeError, "a value of another type is wanted");
    return -1;
}

/* Frees an object of a type with garbage collection. */
static inline void end_object(PyObject *object, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#endif
