/* What the C code of recording shares: the members of a RecordBuffer that each event needs, and the clock. */

#ifndef TRACEKIT_BUFFER_H
#define TRACEKIT_BUFFER_H

#include <time.h>

#include "records.h"

typedef struct {
    PyObject_HEAD
    PyObject *records;
    Records *packed; /* the same object, or NULL if it has another type */
    PyObject *track_of_thread;
    long long due_ns, lost_events, refused_values;
    uint64_t serial; /* unique to this buffer during the life of the process */
} BufferBase;

extern PyTypeObject *buffer_type;

static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
