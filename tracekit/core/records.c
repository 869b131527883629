/* A sequence with the interface of the flat list of records in tracekit.events. It keeps each record in 32 bytes. */

#include "records.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "memory.h"
#include "types.h"

#define LEAST_ROOM 64
#define VALUE_LIMIT 9223372036854775808.0 /* 2**63 */

PyTypeObject *records_type;

static Records *new_records(void)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(records_type, Py_tp_alloc);
    return (Records *)allocate(records_type, 0);
}

static int check_free(const Records *self)
{
    if (!self->busy)
        return 0;
    PyErr_SetString(PyExc_BufferError, "the records are being read by another thread");
    return -1;
}

/* Maximum number of rows, by each of the limits. */
static long long rows_by_count(const Records *self)
{
    return self->max_rows > self->held_rows ? self->max_rows - self->held_rows : 0;
}

static long long rows_by_bytes(const Records *self)
{
    long long left = self->max_bytes - self->held_bytes - self->value_bytes;
    return left > 0 ? left / (long long)sizeof *self->rows : 0;
}

static long long rows_within(const Records *self)
{
    long long by_count = rows_by_count(self), by_bytes = rows_by_bytes(self);
    return by_count < by_bytes ? by_count : by_bytes;
}

/* Counts rows that do not fit, unless the caller waits for room. */
static int refuse(Records *self, size_t rows)
{
    if (self->waits)
        return MUST_WAIT;
    if (rows_by_count(self) <= rows_by_bytes(self))
        self->refused_rows += (long long)rows;
    else
        self->refused_bytes += (long long)rows;
    return REFUSED;
}

static int is_full(const Records *self)
{
    return self->max_rows && (long long)self->count >= rows_within(self);
}

static long long bytes_of(const Records *self, size_t from, size_t count)
{
    long long size = (long long)(count * sizeof *self->rows);
    for (size_t i = from; self->counters && i < from + count; i++)
        if (self->rows[i].kind == COUNTER)
            size += records_value_bytes(self->rows[i].what.values);
    return size;
}

static int is_kept(const Records *self, int64_t time, int64_t kind)
{
    return kind >= 0 && time < self->keep_before;
}

int records_admit(Records *self, int64_t time, int64_t kind)
{
    if (self->max_rows && (long long)self->count >= rows_within(self) && !is_kept(self, time, kind))
        return refuse(self, 1);
    return records_grow(self, 1);
}

int records_admit_values(Records *self, PyObject *values)
{
    long long size = records_value_bytes(values);
    /* Count the allocated room, not only the rows: it may be filled without another check. */
    size_t rows = self->room > self->count ? self->room : self->count + 1;
    long long bytes = self->held_bytes + self->value_bytes + size + (long long)(rows * sizeof *self->rows);
    if (self->max_rows && is_full(self))
        return refuse(self, 1);
    if (self->max_rows && !self->waits && bytes > self->max_bytes) {
        self->refused_bytes++;
        return REFUSED;
    }
    self->value_bytes += size;
    return 0;
}

int records_grow(Records *self, size_t more)
{
    if (self->room - self->count >= more)
        return 0;
    if (check_free(self) < 0)
        return -1;
    size_t room = self->room < LEAST_ROOM ? LEAST_ROOM : self->room * 2;
    if (self->max_rows && (long long)room > rows_within(self))
        room = (size_t)rows_within(self);
    if (room < self->count + more)
        room = self->count + more;
    Record *rows = room > PY_SSIZE_T_MAX / sizeof *rows ? NULL : tracekit_realloc(self->rows, room * sizeof *rows);
    if (rows == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->rows = rows;
    self->room = room;
    return 0;
}

/* ---- Between rows and entries. Python code can only run where an object is made. ---- */

static PyObject *entry(const Records *self, size_t index)
{
    const Record *row = self->rows + index / WIDTH;
    switch (index % WIDTH) {
    case 0:
        return PyLong_FromLongLong(row->label);
    case 1:
        return PyLong_FromLongLong(row->time);
    case 2:
        return PyLong_FromLongLong(kind_of(row));
    default:
        return is_counter(row) ? values_of(row) : PyLong_FromLongLong(row->what.track);
    }
}

static int to_number(PyObject *object, int64_t *number)
{
    if (object == NULL)
        return -1;
    if (!PyLong_Check(object)) { /* otherwise, an __index__ method would run */
        PyErr_SetString(PyExc_TypeError, "a record is four integers, or three and the values of a counter");
        return -1;
    }
    *number = PyLong_AsLongLong(object);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int to_kind(PyObject *object, int64_t *kind)
{
    if (to_number(object, kind) < 0)
        return -1;
    if (*kind >= LEAST_KIND)
        return 0;
    PyErr_SetString(PyExc_ValueError, "there is no such kind of record");
    return -1;
}

static PyObject *item_of(PyObject *sequence, size_t index)
{
    return PyList_Check(sequence) ? PyList_GetItem(sequence, (Py_ssize_t)index) : PyTuple_GetItem(sequence, (Py_ssize_t)index);
}

static int append_items(Records *self, PyObject *sequence, size_t size)
{
    if (size % WIDTH) {
        PyErr_SetString(PyExc_ValueError, "records come in fours of entries");
        return -1;
    }
    if (records_grow(self, size / WIDTH) < 0)
        return -1;
    size_t count = self->count, counters = 0;
    long long value_bytes = 0;
    for (size_t i = 0; i < size; i += WIDTH) {
        Record *row = self->rows + count;
        if (to_number(item_of(sequence, i), &row->label) < 0 || to_number(item_of(sequence, i + 1), &row->time) < 0
            || to_kind(item_of(sequence, i + 2), &row->kind) < 0)
            return -1;
        PyObject *what = item_of(sequence, i + 3);
        if (row->kind != COUNTER) {
            if (to_number(what, &row->what.track) < 0)
                return -1;
        } else {
            if (what == NULL)
                return -1;
            row->what.values = what;
            value_bytes += records_value_bytes(what);
            counters++;
        }
        count++;
    }
    self->value_bytes += value_bytes;
    if (counters)
        for (size_t i = self->count; i < count; i++)
            if (self->rows[i].kind == COUNTER)
                Py_INCREF(self->rows[i].what.values);
    self->counters += counters;
    self->count = count;
    return 0;
}

static int append_rows(Records *self, const Records *other, size_t from, size_t count)
{
    if (records_grow(self, count) < 0)
        return -1;
    Record *rows = self->rows + self->count;
    if (count)
        memcpy(rows, other->rows + from, count * sizeof *rows);
    if (other->counters) {
        for (size_t i = 0; i < count; i++) {
            if (is_counter(rows + i)) {
                Py_INCREF(object_of(rows + i));
                self->counters++;
            }
        }
    }
    self->count += count;
    return 0;
}

static int append_all(Records *self, PyObject *items)
{
    if (Py_TYPE(items) == records_type)
        return append_rows(self, (Records *)items, 0, ((Records *)items)->count);
    if (PyTuple_Check(items))
        return append_items(self, items, (size_t)PyTuple_Size(items));
    if (PyList_Check(items))
        return append_items(self, items, (size_t)PyList_Size(items));
    PyObject *list = PySequence_List(items);
    int failed = list == NULL ? -1 : append_items(self, list, (size_t)PyList_Size(list));
    Py_XDECREF(list);
    return failed;
}

/* ---- As a sequence. ---- */

static Py_ssize_t length(PyObject *object)
{
    return (Py_ssize_t)(((Records *)object)->count * WIDTH);
}

static PyObject *item_at(PyObject *object, Py_ssize_t index)
{
    if (index < 0 || index >= length(object)) {
        PyErr_SetString(PyExc_IndexError, "list index out of range");
        return NULL;
    }
    return entry((Records *)object, (size_t)index);
}

static PyObject *copy_rows(const Records *self, size_t from, size_t count)
{
    Records *copy = new_records();
    if (copy == NULL)
        return NULL;
    /* The garbage collector may have run, and changed the rows. */
    from = from < self->count ? from : self->count;
    count = count < self->count - from ? count : self->count - from;
    if (append_rows(copy, self, from, count) < 0)
        Py_CLEAR(copy);
    return (PyObject *)copy;
}

static PyObject *some_entries(const Records *self, Py_ssize_t start, Py_ssize_t step, Py_ssize_t count)
{
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        size_t at = (size_t)(start + i * step);
        PyObject *item = at < self->count * WIDTH ? entry(self, at) : PyLong_FromLong(0);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *subscript(PyObject *object, PyObject *key)
{
    Records *self = (Records *)object;
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred())
            return NULL;
        return item_at(object, index < 0 ? index + length(object) : index);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(length(object), &start, &stop, step);
    if (step == 1 && start % WIDTH == 0 && count % WIDTH == 0)
        return copy_rows(self, (size_t)start / WIDTH, (size_t)count / WIDTH);
    return some_entries(self, start, step, count);
}

static int put(Records *self, size_t index, PyObject *value)
{
    Record *row = self->rows + index / WIDTH;
    int64_t number;
    if (index % WIDTH == 3 && is_counter(row)) {
        PyObject *before = object_of(row);
        Py_INCREF(value);
        row->kind = COUNTER;
        row->what.values = value;
        Py_DECREF(before);
        return 0;
    }
    if ((index % WIDTH == 2 ? to_kind : to_number)(value, &number) < 0)
        return -1;
    switch (index % WIDTH) {
    case 0:
        row->label = number;
        return 0;
    case 1:
        row->time = number;
        return 0;
    case 2:
        if (is_counter(row) != (number == COUNTER)) {
            PyErr_SetString(PyExc_ValueError, "a counter stays a counter, and nothing else becomes one");
            return -1;
        }
        if (!is_counter(row))
            row->kind = number;
        return 0;
    default:
        row->what.track = number;
        return 0;
    }
}

static int delete_rows(Records *self, size_t from, size_t count)
{
    if (count == 0)
        return 0;
    Record *dropped = NULL;
    size_t counters = 0;
    for (size_t i = from; self->counters && i < from + count; i++)
        counters += (size_t)is_counter(self->rows + i);
    if (counters) {
        /* Drop their references only when the rows are in order again: a finaliser may record. */
        dropped = tracekit_calloc(counters, sizeof *dropped);
        if (dropped == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (size_t i = from, kept = 0; i < from + count; i++)
            if (is_counter(self->rows + i))
                dropped[kept++] = self->rows[i];
    }
    memmove(self->rows + from, self->rows + from + count, (self->count - from - count) * sizeof *self->rows);
    self->count -= count;
    self->counters -= counters;
    for (size_t i = 0; i < counters; i++)
        Py_DECREF(object_of(dropped + i));
    free(dropped);
    return 0;
}

static int put_slice(Records *self, Py_ssize_t start, Py_ssize_t step, Py_ssize_t count, PyObject *values)
{
    PyObject *list = PySequence_List(values);
    if (list == NULL)
        return -1;
    int failed = 0;
    if (PyList_Size(list) != count) {
        PyErr_SetString(PyExc_ValueError, "as many entries are wanted as there are");
        failed = -1;
    }
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        size_t at = (size_t)(start + i * step);
        if (check_free(self) < 0)
            failed = -1;
        else if (at < self->count * WIDTH)
            failed = put(self, at, PyList_GetItem(list, i));
    }
    Py_DECREF(list);
    return failed;
}

static int put_subscript(PyObject *object, PyObject *key, PyObject *value)
{
    Records *self = (Records *)object;
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if ((index == -1 && PyErr_Occurred()) || check_free(self) < 0)
            return -1;
        index += index < 0 ? length(object) : 0;
        if (index < 0 || index >= length(object)) {
            PyErr_SetString(PyExc_IndexError, "list assignment index out of range");
            return -1;
        }
        if (value != NULL)
            return put(self, (size_t)index, value);
        PyErr_SetString(PyExc_ValueError, "records go as a whole");
        return -1;
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0 || check_free(self) < 0)
        return -1;
    Py_ssize_t count = PySlice_AdjustIndices(length(object), &start, &stop, step);
    if (value != NULL)
        return put_slice(self, start, step, count, value);
    if (step == 1 && start % WIDTH == 0 && count % WIDTH == 0)
        return delete_rows(self, (size_t)start / WIDTH, (size_t)count / WIDTH);
    PyErr_SetString(PyExc_ValueError, "records go as a whole");
    return -1;
}

static PyObject *add(PyObject *left, PyObject *right)
{
    if (!(PyList_Check(left) || Py_TYPE(left) == records_type) || !(PyList_Check(right) || Py_TYPE(right) == records_type)) {
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
    }
    Records *sum = new_records();
    if (sum != NULL && (append_all(sum, left) < 0 || append_all(sum, right) < 0))
        Py_CLEAR(sum);
    return (PyObject *)sum;
}

static PyObject *add_in_place(PyObject *object, PyObject *items)
{
    if (append_all((Records *)object, items) < 0)
        return NULL;
    Py_INCREF(object);
    return object;
}

/* Returns true if a record from Python is refused, and counts it. A caller that waits is not refused, because it has waited. */
static int is_refused(Records *self, PyObject *items)
{
    if (!self->max_rows || self->waits || !is_full(self) || !PyTuple_Check(items) || PyTuple_Size(items) != WIDTH)
        return 0;
    int64_t time, kind;
    if (to_number(PyTuple_GetItem(items, 1), &time) < 0 || to_number(PyTuple_GetItem(items, 2), &kind) < 0)
        return -1;
    return is_kept(self, time, kind) ? 0 : refuse(self, 1);
}

static PyObject *extend(PyObject *object, PyObject *items)
{
    int refused = is_refused((Records *)object, items);
    if (refused)
        return refused < 0 ? NULL : Py_BuildValue("");
    return append_all((Records *)object, items) < 0 ? NULL : Py_BuildValue("");
}

static PyObject *ask_full(PyObject *object, PyObject *none)
{
    (void)none;
    return PyBool_FromLong(is_full((Records *)object));
}

static PyObject *size_bytes(PyObject *object, PyObject *none)
{
    (void)none;
    return PyLong_FromLongLong(bytes_of((Records *)object, 0, ((Records *)object)->count));
}

static PyObject *to_list(PyObject *object, PyObject *none)
{
    (void)none;
    return some_entries((Records *)object, 0, 1, length(object));
}

static PyObject *compare(PyObject *object, PyObject *other, int how)
{
    if (!(PyList_Check(other) || Py_TYPE(other) == records_type)) {
        Py_INCREF(Py_NotImplemented);
        return Py_NotImplemented;
    }
    PyObject *list = to_list(object, NULL), *other_list = PySequence_List(other);
    PyObject *result = list == NULL || other_list == NULL ? NULL : PyObject_RichCompare(list, other_list, how);
    Py_XDECREF(list);
    Py_XDECREF(other_list);
    return result;
}

static PyObject *represent(PyObject *object)
{
    PyObject *list = to_list(object, NULL);
    PyObject *text = list == NULL ? NULL : PyObject_Repr(list);
    Py_XDECREF(list);
    return text;
}

/* Pickles as a list, because the receiver may have no compiled core. */
static PyObject *reduce(PyObject *object, PyObject *none)
{
    (void)none;
    PyObject *list = to_list(object, NULL);
    return list == NULL ? NULL : Py_BuildValue("O(N)", (PyObject *)&PyList_Type, list);
}

/* ---- Queries of the writer. ---- */

static PyObject *take(PyObject *object, PyObject *argument)
{
    Records *self = (Records *)object, *taken;
    Py_ssize_t size = PyNumber_AsSsize_t(argument, PyExc_OverflowError);
    if ((size == -1 && PyErr_Occurred()) || (taken = new_records()) == NULL)
        return NULL;
    size_t count = size < 0 ? 0 : (size_t)size / WIDTH;
    if (check_free(self) < 0)
        goto failed;
    count = count < self->count ? count : self->count;
    if (count == 0)
        return (PyObject *)taken;
    /* Usually, few records stay: they get new rows, and the old rows go to `taken`. */
    size_t left = self->count - count, counters = 0;
    Record *rows = left ? tracekit_calloc(left, sizeof *rows) : NULL;
    if (left && rows == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (size_t i = 0; i < left; i++) {
        rows[i] = self->rows[count + i];
        counters += (size_t)is_counter(rows + i);
    }
    long long taken_bytes = bytes_of(self, 0, count);
    self->value_bytes = rows == NULL ? 0 : bytes_of(self, count, left) - (long long)(left * sizeof *rows);
    self->held_rows += (long long)count;
    self->held_bytes += taken_bytes;
    taken->rows = self->rows;
    taken->count = count;
    taken->room = self->room;
    taken->counters = self->counters - counters;
    self->rows = rows;
    self->count = self->room = left;
    self->counters = counters;
    return (PyObject *)taken;
failed:
    Py_DECREF(taken);
    return NULL;
}

static PyObject *count_kind(PyObject *object, PyObject *argument)
{
    const Records *self = (Records *)object;
    int64_t kind;
    if (to_number(argument, &kind) < 0)
        return NULL;
    size_t found = 0;
    for (size_t i = 0; i < self->count; i++)
        found += kind_of(self->rows + i) == kind;
    return PyLong_FromSize_t(found);
}

/* Appends a number to a list; clears it on failure. */
static void append_place(PyObject **list, size_t index)
{
    PyObject *place = PyLong_FromSize_t(index);
    if (place == NULL || PyList_Append(*list, place) < 0)
        Py_CLEAR(*list);
    Py_XDECREF(place);
}

static PyObject *places(PyObject *object, PyObject *args)
{
    const Records *self = (Records *)object;
    long long wanted[2];
    Py_ssize_t count = PyTuple_Size(args);
    if (!PyArg_ParseTuple(args, "L|L", &wanted[0], &wanted[1]))
        return NULL;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found != NULL && i < self->count; i++) {
        int64_t kind = kind_of(self->rows + i);
        if (kind != wanted[0] && (count == 1 || kind != wanted[1]))
            continue;
        append_place(&found, i);
    }
    return found;
}

/* A str with a finite float below 2**63, or with an integer that fits 64 bits. Not a subclass, which may override methods. */
static int is_plain_number(PyObject *series, PyObject *number)
{
    if (!PyUnicode_CheckExact(series))
        return 0;
    if (PyFloat_CheckExact(number))
        return fabs(PyFloat_AsDouble(number)) < VALUE_LIMIT;
    if (!PyLong_CheckExact(number))
        return 0;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow && value != LLONG_MIN;
}

static int is_odd_counter(const Record *row)
{
    if (is_single(row))
        return !(fabs(row->what.value) < VALUE_LIMIT); /* NaN is odd */
    if (Py_TYPE(row->what.values) != &PyDict_Type)
        return 1;
    PyObject *series, *number;
    Py_ssize_t position = 0;
    while (PyDict_Next(row->what.values, &position, &series, &number))
        if (!is_plain_number(series, number))
            return 1;
    return 0;
}

static PyObject *odd_counters(PyObject *object, PyObject *none)
{
    (void)none;
    const Records *self = (Records *)object;
    PyObject *found = PyList_New(0);
    for (size_t i = 0; found != NULL && self->counters && i < self->count; i++) {
        if (!is_counter(self->rows + i) || !is_odd_counter(self->rows + i))
            continue;
        append_place(&found, i);
    }
    return found;
}

static PyObject *earliest(PyObject *object, PyObject *none)
{
    (void)none;
    const Records *self = (Records *)object;
    if (self->count == 0) {
        PyErr_SetString(PyExc_ValueError, "there are no records");
        return NULL;
    }
    int64_t least = self->rows[0].time;
    for (size_t i = 1; i < self->count; i++)
        least = self->rows[i].time < least ? self->rows[i].time : least;
    return PyLong_FromLongLong(least);
}

static PyObject *find(PyObject *object, PyObject *args)
{
    const Records *self = (Records *)object;
    long long start, track;
    if (!PyArg_ParseTuple(args, "LL", &start, &track))
        return NULL;
    for (size_t i = 0; i < self->count; i++)
        if (self->rows[i].time == start && self->rows[i].kind >= 0 && self->rows[i].what.track == track)
            return PyLong_FromSize_t(i);
    Py_RETURN_NONE;
}

static PyObject *has_start(PyObject *object, PyObject *args)
{
    const Records *self = (Records *)object;
    long long since, track;
    if (!PyArg_ParseTuple(args, "LL", &since, &track))
        return NULL;
    for (size_t i = self->count; i-- > 0;) {
        const Record *row = self->rows + i;
        if (is_counter(row) || row->what.track != track || row->kind == END)
            continue;
        if (row->time >= since)
            return PyBool_FromLong(1);
        if (row->kind >= 0 && row->kind < since)
            break; /* a thread's records are in the order of their ends */
    }
    return PyBool_FromLong(0);
}

/* ---- The type. ---- */

static int start(PyObject *object, PyObject *args, PyObject *kwargs)
{
    PyObject *items = NULL;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "|O", &items)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "Records() takes no keyword arguments");
        return -1;
    }
    return items == NULL ? 0 : append_all((Records *)object, items);
}

static int visit_all(PyObject *object, visitproc visit, void *arg)
{
    const Records *self = (Records *)object;
    for (size_t i = 0; self->counters && i < self->count; i++)
        if (self->rows[i].kind == COUNTER) /* a single value only refers to its name, which refers to nothing */
            Py_VISIT(self->rows[i].what.values);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear(PyObject *object)
{
    Records *self = (Records *)object;
    Record *rows = self->rows;
    size_t count = self->count, counters = self->counters;
    if (self->busy) /* its reader has a reference, so that it is not garbage */
        return 0;
    self->rows = NULL;
    self->count = self->room = self->counters = 0;
    for (size_t i = 0; counters && i < count; i++)
        Py_XDECREF(object_of(rows + i));
    free(rows);
    return 0;
}

static void end(PyObject *object)
{
    end_object(object, clear);
}

/* Calls a method of an equal list, for rare methods. */
static PyObject *ask_list(PyObject *object, const char *method, PyObject *args)
{
    PyObject *list = to_list(object, NULL), *asked = list == NULL ? NULL : PyObject_GetAttrString(list, method);
    PyObject *result = asked == NULL ? NULL : PyObject_CallObject(asked, args);
    Py_XDECREF(asked);
    Py_XDECREF(list);
    return result;
}

static PyObject *index_of(PyObject *object, PyObject *args)
{
    return ask_list(object, "index", args);
}

static PyObject *count_of(PyObject *object, PyObject *args)
{
    return ask_list(object, "count", args);
}

static PyMethodDef methods[] = {
    {"copy", to_list, METH_NOARGS, "See _record.pyi."},
    {"count", count_of, METH_VARARGS, "See _record.pyi."},
    {"index", index_of, METH_VARARGS, "See _record.pyi."},
    {"extend", extend, METH_O, "See _record.pyi."},
    {"take", take, METH_O, "See _record.pyi."},
    {"is_full", ask_full, METH_NOARGS, "See _record.pyi."},
    {"size_bytes", size_bytes, METH_NOARGS, "See _record.pyi."},
    {"count_kind", count_kind, METH_O, "See _record.pyi."},
    {"places", places, METH_VARARGS, "See _record.pyi."},
    {"odd_counters", odd_counters, METH_NOARGS, "See _record.pyi."},
    {"earliest", earliest, METH_NOARGS, "See _record.pyi."},
    {"has_start", has_start, METH_VARARGS, "See _record.pyi."},
    {"find", find, METH_VARARGS, "See _record.pyi."},
    {"overlapping", records_overlapping, METH_O, "See _record.pyi."},
    {"__reduce__", reduce, METH_NOARGS, "See _record.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef limits[] = {
    {"max_rows", T_LONGLONG, offsetof(Records, max_rows), 0, NULL},
    {"max_bytes", T_LONGLONG, offsetof(Records, max_bytes), 0, NULL},
    {"held_rows", T_LONGLONG, offsetof(Records, held_rows), 0, NULL},
    {"held_bytes", T_LONGLONG, offsetof(Records, held_bytes), 0, NULL},
    {"keep_before", T_LONGLONG, offsetof(Records, keep_before), 0, NULL},
    {"refused_rows", T_LONGLONG, offsetof(Records, refused_rows), READONLY, NULL},
    {"refused_bytes", T_LONGLONG, offsetof(Records, refused_bytes), READONLY, NULL},
    {"waits", T_INT, offsetof(Records, waits), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "See _record.pyi."},
    {Py_tp_init, start},
    {Py_tp_traverse, visit_all},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, end},
    {Py_tp_methods, methods},
    {Py_tp_members, limits},
    {Py_tp_richcompare, compare},
    {Py_tp_hash, PyObject_HashNotImplemented},
    {Py_tp_repr, represent},
    {Py_nb_add, add},
    {Py_nb_inplace_add, add_in_place},
    {Py_sq_length, length},
    {Py_sq_item, item_at},
    {Py_mp_length, length},
    {Py_mp_subscript, subscript},
    {Py_mp_ass_subscript, put_subscript},
    {0, NULL},
};

PyType_Spec records_spec = {
    "tracekit.core._record.Records", sizeof(Records), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots,
};
