/* Markers and buffers; see marker.c. */

#ifndef TRACEKIT_MARKER_H
#define TRACEKIT_MARKER_H

#include "records.h"

PyObject *give_methods(PyObject *module, PyObject *args);
PyObject *forget_threads(PyObject *module, PyObject *none);

int add_marker_types(PyObject *module);

#endif
