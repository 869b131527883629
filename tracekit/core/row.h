/* One record of an event, 32 bytes. tracekit.events keeps it as four entries of a list.

   The values of a counter are a dictionary or, mostly, one float under one name. Such a single value needs no dictionary: it is
   stored in the record itself, and the kind is the negated address of its name. So the garbage collector has no object to visit
   until the writer takes the record. Python sees an ordinary counter. */

#ifndef TRACEKIT_ROW_H
#define TRACEKIT_ROW_H

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <stdint.h>

/* Kinds; from 0 on it is a whole slice's end. As in tracekit.events. */
enum { INSTANT = -1, COUNTER = -2, BEGIN = -3, END = -4 };

#define LEAST_KIND (-255) /* no kind is below it, and object addresses are larger */

typedef struct {
    int64_t label, time, kind;
    union {
        int64_t track;
        PyObject *values; /* of a counter, owned */
        double value;     /* of a counter of one float */
    } what;
} Record;

static inline int is_single(const Record *row)
{
    return row->kind < LEAST_KIND;
}

static inline int is_counter(const Record *row)
{
    return row->kind == COUNTER || is_single(row);
}

/* The kind for Python. */
static inline int64_t kind_of(const Record *row)
{
    return is_single(row) ? COUNTER : row->kind;
}

/* The object that a record refers to, or NULL. */
static inline PyObject *object_of(const Record *row)
{
    if (is_single(row))
        return (PyObject *)(intptr_t)-row->kind;
    return row->kind == COUNTER ? row->what.values : NULL;
}

/* The values of a counter, a new reference; NULL with an exception. */
PyObject *values_of(const Record *row);

/* A copy of any mapping, a new reference; NULL with an exception. */
PyObject *copy_of_values(PyObject *values);

/* The kind of a counter with a dictionary of one float, and that float; 0 for other values. */
int64_t single_kind(PyObject *values, double *value);

#endif
