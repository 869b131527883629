/* The ends of events in a text; see spans.c. */

#ifndef TRACEKIT_SPANS_H
#define TRACEKIT_SPANS_H

#include "object.h"

PyObject *find_events(PyObject *module, PyObject *args);

#endif
