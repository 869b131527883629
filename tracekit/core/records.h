/* Records of events, 32 bytes each. tracekit.events keeps them in a list, with four entries per record. */

#ifndef TRACEKIT_RECORDS_H
#define TRACEKIT_RECORDS_H

#include "row.h"

#define WIDTH 4

/* While `busy`, another thread reads the rows without the interpreter lock: only append, and only if there is room. */
typedef struct {
    PyObject_HEAD
    Record *rows;
    size_t count, room;
    size_t counters; /* how many of the rows are counters */
    int busy;
    /* Of the records of a buffer; see RecordBuffer.limit. Nothing is refused while max_rows is 0. */
    long long max_rows, max_bytes;
    long long held_rows, held_bytes; /* taken by the writer, and still in use */
    long long value_bytes;           /* of the counters' dictionaries, approximate */
    long long keep_before;           /* slices that started before are kept: their start may have been delivered */
    long long refused_rows, refused_bytes; /* how many rows were refused, by the limit that refused them */
    int waits;                             /* whether the caller waits for room instead, as far as it can */
} Records;

/* Results of appending, in addition to 0 (done) and -1 (an exception). */
enum { REFUSED = 1, MUST_WAIT = 2 };

extern PyTypeObject *records_type;
extern PyType_Spec records_spec;

/* Makes room for `more` rows. Returns -1 with an exception when it cannot. */
int records_grow(Records *self, size_t more);

/* Makes room for one more row, or refuses it. Runs no Python code. */
int records_admit(Records *self, int64_t time, int64_t kind);

/* Checks that a counter's dictionary also fits, and counts its bytes if it does. */
int records_admit_values(Records *self, PyObject *values);

/* Appends a record that is not a counter. Runs no Python code. The room never exceeds the limits, so no check is needed here. */
static inline int records_append(Records *self, int64_t label, int64_t time, int64_t kind, int64_t track)
{
    if (self->count == self->room) {
        int result = records_admit(self, time, kind);
        if (result)
            return result;
    }
    Record *row = self->rows + self->count;
    row->label = label;
    row->time = time;
    row->kind = kind;
    row->what.track = track;
    self->count++;
    return 0;
}

/* Approximate memory of the values of a counter, from the number of series. */
static inline long long records_value_bytes(PyObject *values)
{
    return PyDict_Check(values) ? 160 + 64 * (long long)PyDict_Size(values) : 160;
}

/* Appends a counter. Takes over the reference to its values, even on failure. */
static inline int records_append_counter(Records *self, int64_t label, int64_t time, PyObject *values)
{
    int result = records_admit_values(self, values);
    if (!result && (result = records_append(self, label, time, COUNTER, 0)))
        self->value_bytes -= records_value_bytes(values);
    if (result) {
        Py_DECREF(values);
        return result;
    }
    self->rows[self->count - 1].what.values = values;
    self->counters++;
    return 0;
}

#define NO_SINGLE 3

/* Appends a counter if its values are a dictionary of one float; returns NO_SINGLE if they are not. */
static inline int records_append_single(Records *self, int64_t label, int64_t time, PyObject *values)
{
    double value;
    int64_t kind = single_kind(values, &value);
    if (kind == 0)
        return NO_SINGLE;
    int result = records_append(self, label, time, kind, 0);
    if (result)
        return result;
    Record *row = self->rows + self->count - 1;
    Py_INCREF(object_of(row));
    row->what.value = value;
    self->counters++;
    return 0;
}

/* A method of Records; see _record.pyi. */
PyObject *records_overlapping(PyObject *object, PyObject *opened);

#endif
