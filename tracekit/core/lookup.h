/* Markers by their names; see lookup.c. */

#ifndef TRACEKIT_LOOKUP_H
#define TRACEKIT_LOOKUP_H

#include "records.h"

PyObject *give_lookup(PyObject *module, PyObject *class);

int add_profiler_type(PyObject *module);

#endif
