/* One record of an event, 32 bytes: what tracekit.events keeps as four entries of a list.

   The values of a counter are a dictionary or, as mostly, one float under one name, which needs none: such a single value stands
   in the record itself, and its kind is the address of its name, negated. No object is made that the collector of garbage would
   have to look at until the writer takes the record. To Python it is a counter like any. */

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

#define LEAST_KIND (-255) /* no kind is below it, and no address of an object as low */

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

/* As Python sees it. */
static inline int64_t kind_of(const Record *row)
{
    return is_single(row) ? COUNTER : row->kind;
}

/* The object to which a record has a reference, or NULL. */
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

/* The kind of a counter whose values are a dictionary of one float, with that float; 0 if they are not. */
int64_t single_kind(PyObject *values, double *value);

#endif
