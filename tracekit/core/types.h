#ifndef TRACEKIT_TYPES_H
#define TRACEKIT_TYPES_H

#include "row.h" /* for Python.h, and which of it is used */

/* Puts a new type into a module under its name; keeps it in `kept` too, for as long as the process lives, if that is not NULL. */
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
