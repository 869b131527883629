/* The end of a batch that does nothing else: `Batches.end_plain` in tracekit.recording.batches.

   A training step leaves nothing of Python in the caches, so that `Profiler.step` in Python takes 30 us instead of 3. */

#include "batches.h"

#include <stddef.h>
#include <structmember.h>

#include "buffer.h"
#include "types.h"

#define FIELDS 14 /* of a Timestamp, in the order of tracekit/timestamp.py */
enum { BATCH = 2, SAMPLE, TOKEN, TOKEN_IN_ITERATION = 6, BATCH_IN_EPOCH, SAMPLE_IN_EPOCH, TOKEN_IN_EPOCH, TOTAL_WCT, BATCH_WCT = 13 };

typedef struct {
    PyObject_HEAD
    PyObject *buffer, *timestamp, *log, *expected, *posted;
    long long start_ns, label, track;
    char is_plain, is_recorded, has_begun, is_posting;
} BatchesBase;

static PyObject *values_name, *append_name, *batch_start, *batch_end; /* str */

/* Returns whether an argument is an int of at least 0 that the core can add. */
static int read_count(PyObject *object, long long *count)
{
    if (!PyLong_CheckExact(object))
        return 0;
    *count = PyLong_AsLongLong(object);
    if (*count == -1 && PyErr_Occurred())
        PyErr_Clear();
    return *count >= 0;
}

/* Returns the values of the timestamp after one more batch, or NULL if a sum is too large. */
static PyObject *next_values(PyObject *values, long long samples, long long tokens, long long took_us)
{
    if (!PyTuple_CheckExact(values) || PyTuple_Size(values) != FIELDS)
        return NULL;
    long long added[FIELDS] = {0};
    added[BATCH] = added[BATCH_IN_EPOCH] = 1;
    added[SAMPLE] = added[SAMPLE_IN_EPOCH] = samples;
    added[TOKEN] = added[TOKEN_IN_ITERATION] = added[TOKEN_IN_EPOCH] = tokens;
    added[TOTAL_WCT] = added[TOTAL_WCT + 1] = added[TOTAL_WCT + 2] = took_us;
    PyObject *next = PyTuple_New(FIELDS);
    for (int i = 0; next != NULL && i < FIELDS; i++) {
        PyObject *number = PyTuple_GetItem(values, i);
        long long value;
        if (added[i] == 0 && i != BATCH_WCT) {
            Py_INCREF(number);
        } else {
            value = i == BATCH_WCT ? took_us : PyLong_AsLongLong(number);
            int fits = (value != -1 || !PyErr_Occurred()) && !__builtin_add_overflow(value, added[i], &value);
            number = fits ? PyLong_FromLongLong(value) : NULL;
        }
        if (number == NULL || PyTuple_SetItem(next, i, number) < 0)
            Py_CLEAR(next);
    }
    return next;
}

/* Returns the timestamp after one more batch, or NULL without an exception if Python must make it. */
static PyObject *next_timestamp(PyObject *timestamp, long long samples, long long tokens, long long took_us)
{
    PyObject *values = PyObject_GetAttr(timestamp, values_name), *next = NULL, *result = NULL;
    if (values != NULL)
        next = next_values(values, samples, tokens, took_us);
    if (next != NULL) {
        result = PyType_GenericAlloc(Py_TYPE(timestamp), 0);
        if (result != NULL && PyObject_GenericSetAttr(result, values_name, next) < 0) /* not its own __setattr__, which refuses */
            Py_CLEAR(result);
    }
    Py_XDECREF(values);
    Py_XDECREF(next);
    if (result == NULL)
        PyErr_Clear();
    return result;
}

static int post(BatchesBase *self, PyObject *hook)
{
    PyObject *done = hook == NULL ? NULL : PyObject_CallMethodObjArgs(self->posted, append_name, hook, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Posts the start hooks of the batch that ends now, if they were not called yet. */
static int post_expected(BatchesBase *self)
{
    Py_ssize_t last = PyList_Size(self->expected) - 1;
    if (last < 0)
        return 0;
    PyObject *calls, *method, *timestamp;
    if (!PyArg_ParseTuple(PyList_GetItem(self->expected, last), "OOO!", &calls, &calls, &PyTuple_Type, &calls))
        return -1;
    Py_INCREF(calls);
    int failed = PyList_SetSlice(self->expected, last, last + 1, NULL);
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(calls); i++) {
        failed = PyArg_ParseTuple(PyTuple_GetItem(calls, i), "OO", &method, &timestamp) ? 0 : -1;
        PyObject *hook = failed ? NULL : Py_BuildValue("(OOO(O))", Py_None, Py_None, method, timestamp);
        failed = post(self, hook);
        Py_XDECREF(hook);
    }
    Py_DECREF(calls);
    return failed;
}

/* Records the slice of the batch, if it has one. Returns 1, or 0 if Python must because there is no room. */
static int record_slice(BatchesBase *self, BufferBase *buffer, int64_t now)
{
    int result = !self->is_recorded ? 0 : records_append(buffer->packed, self->label, self->start_ns, now, self->track);
    if (result < 0) { /* without memory */
        PyErr_Clear();
        buffer->lost_events++;
    }
    return result != MUST_WAIT;
}

/* Does what `Batches.end` and `Batches.expect_start` do. Returns 1, or 0 if Python must and nothing has changed; -1 with an
   exception. Everything is made before anything changes, because the garbage collector may run code of Python meanwhile. */
static int end_batch(BatchesBase *self, long long samples, long long tokens)
{
    BufferBase *buffer = (BufferBase *)self->buffer;
    int64_t now = now_ns();
    if (buffer->packed == NULL || now > buffer->due_ns)
        return 0;
    PyObject *timestamp = next_timestamp(self->timestamp, samples, tokens, (now - self->start_ns) / 1000);
    if (timestamp == NULL)
        return 0;
    PyObject *moment = Py_BuildValue("(LO)", (long long)now, timestamp);
    PyObject *hook = Py_BuildValue("(OLO(O))", Py_None, (long long)now, batch_end, timestamp);
    PyObject *expected = Py_BuildValue("(Lk((OO)))", (long long)now, PyThread_get_thread_ident(), batch_start, timestamp);
    int result = moment != NULL && hook != NULL && expected != NULL && record_slice(self, buffer, now);
    if (result) {
        int failed = post_expected(self) < 0 || PyList_Append(self->log, moment) < 0 || post(self, hook) < 0
                     || PyList_Append(self->expected, expected) < 0;
        self->has_begun = 0;
        self->start_ns = now;
        put_object(&self->timestamp, timestamp);
        result = failed ? -1 : 1;
    } else {
        PyErr_Clear();
    }
    Py_DECREF(timestamp);
    Py_XDECREF(moment);
    Py_XDECREF(hook);
    Py_XDECREF(expected);
    return result;
}

/* Returns whether the members are of the types that are used here. */
static int is_complete(const BatchesBase *self)
{
    return self->buffer != NULL && PyObject_TypeCheck(self->buffer, buffer_type) && self->timestamp != NULL && self->posted != NULL
           && self->log != NULL && PyList_Check(self->log) && self->expected != NULL && PyList_Check(self->expected);
}

static PyObject *end_plain(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    BatchesBase *self = (BatchesBase *)object;
    long long samples, tokens;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "end_plain() takes the samples and the tokens of the batch");
    if (!self->is_plain || self->is_posting || !is_complete(self) || !read_count(args[0], &samples) || !read_count(args[1], &tokens))
        Py_RETURN_FALSE;
    int done = end_batch(self, samples, tokens);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* ---- The type. ---- */

static int visit_batches(PyObject *object, visitproc visit, void *arg)
{
    BatchesBase *self = (BatchesBase *)object;
    Py_VISIT(self->buffer);
    Py_VISIT(self->timestamp);
    Py_VISIT(self->log);
    Py_VISIT(self->expected);
    Py_VISIT(self->posted);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_batches(PyObject *object)
{
    BatchesBase *self = (BatchesBase *)object;
    PyObject **members[] = {&self->buffer, &self->timestamp, &self->log, &self->expected, &self->posted};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        put_object(members[i], NULL);
    return 0;
}

static void end_batches(PyObject *object)
{
    end_object(object, clear_batches);
}

static PyMethodDef methods[] = {
    {"end_plain", (PyCFunction)(void (*)(void))end_plain, METH_FASTCALL, "See _record.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"buffer", T_OBJECT_EX, offsetof(BatchesBase, buffer), 0, NULL},
    {"timestamp", T_OBJECT_EX, offsetof(BatchesBase, timestamp), 0, NULL},
    {"log", T_OBJECT_EX, offsetof(BatchesBase, log), 0, NULL},
    {"expected", T_OBJECT_EX, offsetof(BatchesBase, expected), 0, NULL},
    {"posted", T_OBJECT_EX, offsetof(BatchesBase, posted), 0, NULL},
    {"start_ns", T_LONGLONG, offsetof(BatchesBase, start_ns), 0, NULL},
    {"label", T_LONGLONG, offsetof(BatchesBase, label), 0, NULL},
    {"track", T_LONGLONG, offsetof(BatchesBase, track), 0, NULL},
    {"is_plain", T_BOOL, offsetof(BatchesBase, is_plain), 0, NULL},
    {"is_recorded", T_BOOL, offsetof(BatchesBase, is_recorded), 0, NULL},
    {"has_begun", T_BOOL, offsetof(BatchesBase, has_begun), 0, NULL},
    {"is_posting", T_BOOL, offsetof(BatchesBase, is_posting), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc, "See _record.pyi."}, {Py_tp_traverse, visit_batches}, {Py_tp_clear, clear_batches},
    {Py_tp_dealloc, end_batches}, {Py_tp_methods, methods}, {Py_tp_members, members}, {0, NULL},
};
static PyType_Spec spec = {
    "tracekit.core._record.BatchesBase", sizeof(BatchesBase), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots,
};

int add_batches_type(PyObject *module)
{
    struct {
        PyObject **kept;
        const char *text;
    } names[] = {
        {&values_name, "_values"}, {&append_name, "append"}, {&batch_start, "batch_start"}, {&batch_end, "batch_end"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].kept = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return add_type(module, "BatchesBase", &spec, NULL);
}
