/* The lines of events in a rank trace: does the work of `ChromeEncoder._encode_records` in tracekit.formats.chrome_writer.

   Writing lines calls no Python code, so that the interpreter lock can be released. */

#include "encoder.h"

#include <string.h>

#include "memory.h"
#include "records.h"

#define MOST_DIGITS 20
#define MAX_TEXT 8192 /* as in tracekit.formats.chrome_writer */

typedef struct {
    const char *text;
    size_t size;
} Text;

/* The texts of a label in a line: name and categories, and the text after the training time. */
typedef struct {
    Text named, tail;
    PyObject *owners[2];
} Label;

typedef struct {
    char text[MOST_DIGITS + 1];
    unsigned char size;
    unsigned char id_size; /* of a track of async slices */
    char id[31];
} Number;

typedef struct {
    PyObject_HEAD
    Label *labels;
    size_t label_count, label_room;
    Number *tids;
    size_t tid_count, tid_room;
    Number pid;
    int busy;
} Encoder;

/* The text of a training time, and the first moment at that time. */
typedef struct {
    int64_t from;
    Text text;
} Moment;

/* One batch on its way. */
typedef struct {
    const Encoder *encoder;
    const Record *rows;
    size_t count;
    int64_t shift;
    const Moment *moments;
    size_t moment_count;
    const Text *values; /* of its counters, in their order */
} Job;

static int enter(Encoder *self)
{
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "used by another thread");
        return 0;
    }
    return self->busy = 1;
}

/* ---- Numbers. ---- */

static size_t digits_of(uint64_t number)
{
    size_t digits = 1;
    while (number >= 10000) {
        number /= 10000;
        digits += 4;
    }
    return digits + (number >= 10) + (number >= 100) + (number >= 1000);
}

static char *put_number(char *out, uint64_t number)
{
    size_t size = digits_of(number);
    char *at = out + size;
    do {
        *--at = (char)('0' + number % 10);
        number /= 10;
    } while (at > out);
    return out + size;
}

/* Microseconds with three decimals; rounded down, as Python divides. */
static char *put_time(char *out, int64_t ns)
{
    int64_t us = ns / 1000;
    unsigned rest;
    if (ns % 1000 < 0)
        us--;
    rest = (unsigned)(ns - us * 1000);
    if (us < 0) {
        *out++ = '-';
        out = put_number(out, 0 - (uint64_t)us);
    } else {
        out = put_number(out, (uint64_t)us);
    }
    *out++ = '.';
    *out++ = (char)('0' + rest / 100);
    *out++ = (char)('0' + rest / 10 % 10);
    *out++ = (char)('0' + rest % 10);
    return out;
}

static size_t size_of_time(int64_t ns)
{
    int64_t us = ns / 1000 - (ns % 1000 < 0);
    return us < 0 ? 5 + digits_of(0 - (uint64_t)us) : 4 + digits_of((uint64_t)us);
}

static Number number_of(long long value)
{
    Number number = {.id_size = 0};
    char *end = number.text;
    if (value < 0)
        *end++ = '-';
    end = put_number(end, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
    number.size = (unsigned char)(end - number.text);
    return number;
}

/* ---- Lines. Two parallel passes: the first measures, the second writes. ---- */

#define put_text(out, text) (memcpy(out, text, sizeof(text) - 1), (out) + (sizeof(text) - 1))

static char *put_bytes(char *out, const char *text, size_t size)
{
    memcpy(out, text, size);
    return out + size;
}

static const Moment *moment_at(const Job *job, const Moment *last, int64_t time)
{
    const Moment *end = job->moments + job->moment_count;
    if ((last == job->moments || last->from <= time) && (last + 1 == end || time < last[1].from))
        return last;
    size_t low = 0, high = job->moment_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (job->moments[middle].from <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return job->moments + (low ? low - 1 : 0);
}

static const char *const heads[] = {
    "{\"ph\":\"X\",\"name\":", "{\"ph\":\"i\",\"name\":", "{\"ph\":\"C\",\"name\":", "{\"ph\":\"B\",\"name\":", "{\"ph\":\"E\",\"name\":",
    "{\"ph\":\"b\",\"name\":", "{\"ph\":\"e\",\"name\":",
};
#define ASYNC_HEADS 2 /* so much further */
#define HEAD_SIZE 17
#define INSTANT_SCOPE "\"s\":\"t\","
#define PID "\"pid\":"
#define TID ",\"tid\":"
#define TS ",\"ts\":"
#define DUR ",\"dur\":"
#define ARGS ",\"args\":"
#define SIZE(text) (sizeof(text) - 1)

/* Returns 0 when Python must encode the batch. */
static int measure(const Job *job, size_t *total)
{
    const Encoder *encoder = job->encoder;
    const Moment *moment = job->moments;
    size_t size = 0, counters = 0;
    for (size_t i = 0; i < job->count; i++) {
        const Record *row = job->rows + i;
        int64_t time, duration;
        if (row->label < 0 || (uint64_t)row->label >= encoder->label_count || (row->kind < END && !is_single(row))
            || __builtin_add_overflow(row->time, job->shift, &time))
            return 0;
        const Label *label = encoder->labels + row->label;
        size += HEAD_SIZE + label->named.size + SIZE(PID) + encoder->pid.size + SIZE(TID) + SIZE(TS) + size_of_time(time) + SIZE(ARGS);
        if (is_counter(row)) {
            size += encoder->pid.size + job->values[counters++].size + SIZE("},\n");
            continue;
        }
        if (row->what.track < 0 || (uint64_t)row->what.track >= encoder->tid_count)
            return 0;
        if (encoder->tids[row->what.track].id_size && row->kind >= INSTANT)
            return 0;
        moment = moment_at(job, moment, row->time);
        size += encoder->tids[row->what.track].id_size;
        size += encoder->tids[row->what.track].size + SIZE("{") + moment->text.size + label->tail.size;
        if (row->kind == INSTANT)
            size += SIZE(INSTANT_SCOPE);
        if (row->kind < 0)
            continue;
        if (__builtin_sub_overflow(row->kind, row->time, &duration))
            return 0;
        size += SIZE(DUR) + size_of_time(duration);
    }
    *total = size;
    return 1;
}

static char *write_lines(const Job *job, char *out)
{
    const Encoder *encoder = job->encoder;
    const Moment *moment = job->moments;
    size_t counters = 0;
    for (size_t i = 0; i < job->count; i++) {
        const Record *row = job->rows + i;
        const Label *label = encoder->labels + row->label;
        const int64_t kind = kind_of(row);
        const Number *tid = kind == COUNTER ? &encoder->pid : encoder->tids + row->what.track;
        out = put_bytes(out, heads[kind < 0 ? -kind + (tid->id_size ? ASYNC_HEADS : 0) : 0], HEAD_SIZE);
        out = put_bytes(out, label->named.text, label->named.size);
        out = put_bytes(out, tid->id, tid->id_size);
        if (row->kind == INSTANT)
            out = put_text(out, INSTANT_SCOPE);
        out = put_text(out, PID);
        out = put_bytes(out, encoder->pid.text, encoder->pid.size);
        out = put_text(out, TID);
        out = put_bytes(out, tid->text, tid->size);
        out = put_text(out, TS);
        out = put_time(out, row->time + job->shift);
        if (row->kind >= 0) {
            out = put_text(out, DUR);
            out = put_time(out, row->kind - row->time);
        }
        out = put_text(out, ARGS);
        if (is_counter(row)) {
            out = put_bytes(out, job->values[counters].text, job->values[counters].size);
            counters++;
            out = put_text(out, "},\n");
            continue;
        }
        moment = moment_at(job, moment, row->time);
        *out++ = '{';
        out = put_bytes(out, moment->text.text, moment->text.size);
        out = put_bytes(out, label->tail.text, label->tail.size);
    }
    return out;
}

/* ---- Between Python and a job. ---- */

static int text_of(PyObject *bytes, Text *text)
{
    char *start;
    Py_ssize_t size;
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &start, &size) < 0)
        return -1;
    *text = (Text){start, (size_t)size};
    return 0;
}

/* Encodes the values of a counter with `dumps` of orjson, or what that writes unlike `encode_value` with the latter. */
static PyObject *encode_one(PyObject *values, PyObject *dumps, PyObject *encode_value, Text *text)
{
    PyObject *encoded = PyObject_CallFunctionObjArgs(dumps, values, NULL);
    if (encoded != NULL && text_of(encoded, text) == 0 && text->size <= MAX_TEXT && strchr(text->text, '\\') == NULL
        && strstr(text->text, "null") == NULL)
        return encoded;
    Py_XDECREF(encoded);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    encoded = PyObject_CallFunctionObjArgs(encode_value, values, NULL);
    if (encoded != NULL && text_of(encoded, text) < 0)
        Py_CLEAR(encoded);
    return encoded;
}

/* Encodes the values of all counters; the objects go into `owners`. */
static int encode_values(const Job *job, PyObject *dumps, PyObject *encode_value, Text *texts, PyObject *owners)
{
    for (size_t i = 0; i < job->count; i++) {
        if (!is_counter(job->rows + i))
            continue;
        PyObject *values = values_of(job->rows + i);
        PyObject *encoded = values == NULL ? NULL : encode_one(values, dumps, encode_value, texts++);
        Py_XDECREF(values);
        int failed = encoded == NULL || PyList_Append(owners, encoded) < 0;
        Py_XDECREF(encoded);
        if (failed)
            return -1;
    }
    return 0;
}

static int read_moments(PyObject *times, PyObject *texts, Moment *moments)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(times); i++) {
        long long from = PyLong_AsLongLong(PyTuple_GetItem(times, i));
        if ((from == -1 && PyErr_Occurred()) || text_of(PyTuple_GetItem(texts, i), &moments[i].text) < 0)
            return -1;
        moments[i].from = from;
    }
    return 0;
}

static PyObject *run(const Job *job)
{
    size_t total = 0;
    int understood;
    Py_BEGIN_ALLOW_THREADS
    understood = measure(job, &total);
    Py_END_ALLOW_THREADS
    if (!understood)
        Py_RETURN_NONE;
    PyObject *lines = total > PY_SSIZE_T_MAX ? PyErr_NoMemory() : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total);
    if (lines == NULL)
        return NULL;
    char *out = PyBytes_AsString(lines), *end;
    Py_BEGIN_ALLOW_THREADS
    end = write_lines(job, out);
    Py_END_ALLOW_THREADS
    if (end == out + total)
        return lines;
    Py_DECREF(lines);
    PyErr_SetString(PyExc_SystemError, "lines are not as long as they were measured");
    return NULL;
}

static PyObject *encode(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    PyObject *found, *times, *texts, *dumps, *encode_value, *result = NULL;
    long long shift;
    if (!PyArg_ParseTuple(args, "OLO!O!OO", &found, &shift, &PyTuple_Type, &times, &PyTuple_Type, &texts, &dumps, &encode_value))
        return NULL;
    size_t moment_count = (size_t)PyTuple_Size(times);
    if (Py_TYPE(found) != records_type || PyTuple_Size(times) != PyTuple_Size(texts) || moment_count == 0) {
        PyErr_SetString(PyExc_TypeError, "Records are wanted, and as many texts as times, one at least");
        return NULL;
    }
    PyObject *owners = PyList_New(0);
    if (owners == NULL || !enter(self)) {
        Py_XDECREF(owners);
        return NULL;
    }
    Records *records = (Records *)found;
    records->busy++; /* from here on these rows do not change, but others may be added */
    Moment *moments = tracekit_calloc(moment_count, sizeof *moments);
    Text *values = tracekit_calloc(records->counters + 1, sizeof *values);
    Job job = {self, records->rows, records->count, shift, moments, moment_count, values};
    if (moments == NULL || values == NULL)
        PyErr_NoMemory();
    else if (read_moments(times, texts, moments) == 0 && encode_values(&job, dumps, encode_value, values, owners) == 0)
        result = run(&job);
    records->busy--;
    self->busy = 0;
    Py_DECREF(owners);
    free(values);
    free(moments);
    return result;
}

/* ---- Labels and tracks. ---- */

static int make_room(void **items, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return 0;
    size_t wanted = *room ? *room * 2 : 16;
    void *more = wanted > PY_SSIZE_T_MAX / size ? NULL : tracekit_realloc(*items, wanted * size);
    if (more == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *items = more;
    *room = wanted;
    return 0;
}

static PyObject *add_label(PyObject *object, PyObject *args)
{
    Encoder *self = (Encoder *)object;
    Label label;
    if (!PyArg_ParseTuple(args, "SS", &label.owners[0], &label.owners[1]) || text_of(label.owners[0], &label.named) < 0
        || text_of(label.owners[1], &label.tail) < 0 || !enter(self))
        return NULL;
    int failed = make_room((void **)&self->labels, self->label_count, &self->label_room, sizeof label);
    self->busy = 0;
    if (failed)
        return NULL;
    Py_INCREF(label.owners[0]);
    Py_INCREF(label.owners[1]);
    self->labels[self->label_count++] = label;
    Py_RETURN_NONE;
}

static PyObject *add_track(PyObject *object, PyObject *argument)
{
    Encoder *self = (Encoder *)object;
    long long tid = PyLong_AsLongLong(argument);
    if ((tid == -1 && PyErr_Occurred()) || !enter(self))
        return NULL;
    int failed = make_room((void **)&self->tids, self->tid_count, &self->tid_room, sizeof(Number));
    self->busy = 0;
    if (failed)
        return NULL;
    self->tids[self->tid_count++] = number_of(tid);
    Py_RETURN_NONE;
}

static PyObject *make_async(PyObject *object, PyObject *argument)
{
    Encoder *self = (Encoder *)object;
    Text member;
    if (text_of(argument, &member) < 0 || !enter(self))
        return NULL;
    self->busy = 0;
    Number *tid = self->tids + self->tid_count - 1;
    if (self->tid_count == 0 || member.size > sizeof tid->id) {
        PyErr_SetString(PyExc_ValueError, "a track and a short member are wanted");
        return NULL;
    }
    memcpy(tid->id, member.text, member.size);
    tid->id_size = (unsigned char)member.size;
    Py_RETURN_NONE;
}

/* ---- The type. ---- */

static int start(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Encoder *self = (Encoder *)object;
    long long pid;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "L", &pid)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "Encoder() takes no keyword arguments");
        return -1;
    }
    if (!enter(self))
        return -1;
    self->pid = number_of(pid);
    self->busy = 0;
    return 0;
}

static void end(PyObject *object)
{
    Encoder *self = (Encoder *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (size_t i = 0; i < self->label_count; i++) {
        Py_DECREF(self->labels[i].owners[0]);
        Py_DECREF(self->labels[i].owners[1]);
    }
    free(self->labels);
    free(self->tids);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"encode", encode, METH_VARARGS, "See _record.pyi."},
    {"add_label", add_label, METH_VARARGS, "See _record.pyi."},
    {"add_track", add_track, METH_O, "See _record.pyi."},
    {"make_async", make_async, METH_O, "See _record.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "See _record.pyi."}, {Py_tp_init, start}, {Py_tp_dealloc, end}, {Py_tp_methods, methods}, {0, NULL},
};

PyType_Spec encoder_spec = {"tracekit.core._record.Encoder", sizeof(Encoder), 0, Py_TPFLAGS_DEFAULT, slots};
