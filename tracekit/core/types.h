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

#endif
