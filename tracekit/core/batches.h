/* The batches of a training loop; see batches.c. */

#ifndef TRACEKIT_BATCHES_H
#define TRACEKIT_BATCHES_H

#include "records.h"

int add_batches_type(PyObject *module);

#endif
