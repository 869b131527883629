/* Records of events, 32 bytes each: what tracekit.events keeps in a list, four entries a record. */

#ifndef TRACEKIT_RECORDS_H
#define TRACEKIT_RECORDS_H

#include "row.h"

#define WIDTH 4

/* While `busy`, somebody reads the rows without the interpreter lock: then nothing but appending where there is room. */
typedef struct {
    PyObject_HEAD
    Record *rows;
    size_t count, room;
    size_t counters; /* how many of the rows are counters */
    int busy;
} Records;

extern PyTypeObject *records_type;
extern PyType_Spec records_spec;

/* Makes room for `more` rows. Returns -1 with an exception when it cannot. */
int records_grow(Records *self, size_t more);

/* Appends a record that is no counter. Runs nothing of Python; -1 with an exception when there is no memory. */
static inline int records_append(Records *self, int64_t label, int64_t time, int64_t kind, int64_t track)
{
    if (self->count == self->room && records_grow(self, 1) < 0)
        return -1;
    Record *row = self->rows + self->count;
    row->label = label;
    row->time = time;
    row->kind = kind;
    row->what.track = track;
    self->count++;
    return 0;
}

/* Appends a counter and takes over the reference to its values, whether it fails or not. */
static inline int records_append_counter(Records *self, int64_t label, int64_t time, PyObject *values)
{
    if (records_append(self, label, time, COUNTER, 0) < 0) {
        Py_DECREF(values);
        return -1;
    }
    self->rows[self->count - 1].what.values = values;
    self->counters++;
    return 0;
}

/* Appends a counter if its values are a dictionary of one float. Returns 1 when it did, 0 if they are not, -1 with an exception. */
static inline int records_append_single(Records *self, int64_t label, int64_t time, PyObject *values)
{
    double value;
    int64_t kind = single_kind(values, &value);
    if (kind == 0)
        return 0;
    if (records_append(self, label, time, kind, 0) < 0)
        return -1;
    Record *row = self->rows + self->count - 1;
    Py_INCREF(object_of(row));
    row->what.value = value;
    self->counters++;
    return 1;
}

/* A method of Records; see _record.pyi. */
PyObject *records_overlapping(PyObject *object, PyObject *opened);

#endif
