/* The hot path of every slice, instant and counter: the frequent methods of a marker that is IDLE, RECORDING or SHARED. The
   classes in tracekit.recording handle rare cases. tracekit/recording/marker_state.py has the table of states and transitions.

   No Python code runs between a test and the following store. So each method is one step for other threads and signal handlers,
   except where it calls a Python method. */

#include "marker.h"

#include <string.h>
#include <structmember.h>

#include "buffer.h"
#include "types.h"

/* As in marker_state.py: the states with methods here, and the values of a slot (`start`) that are not the start of a slice. */
enum { IDLE = 1, RECORDING = 2, SHARED = 4 };
enum { FREE = 0, STACKED = 2 };

/* The members of a Marker that each event needs. */
typedef struct {
    PyObject_HEAD
    BufferBase *buffer;
    PyObject *clones;
    long long start, track, contended, label, skipped;
    /* The bound __enter__ and __exit__, and the method of each: see KeptMethod. */
    PyObject *bound[2];
    const PyMethodDef *bound_to[2];
} MarkerBase;

PyTypeObject *buffer_type;
static PyTypeObject *marker_type;
static PyTypeObject *recording_class; /* the class of markers that have the methods below, a reference */

/* ---- The track of the current thread. ---- */

static uint64_t next_serial = 1, forgotten;

/* The last track of this thread, its buffer, and the value of `forgotten` at that time. */
static _Thread_local struct {
    uint64_t serial, forgotten;
    long long track;
} here;

/* Returns -1 for a thread without a track, -2 with an exception. */
static long long look_up_track(BufferBase *buffer)
{
    PyObject *ident = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    if (ident == NULL)
        return -2;
    PyObject *found = buffer->track_of_thread == NULL ? NULL : PyDict_GetItemWithError(buffer->track_of_thread, ident);
    Py_DECREF(ident);
    if (found == NULL)
        return PyErr_Occurred() ? -2 : -1;
    long long track = PyLong_AsLongLong(found);
    if (track < 0)
        return PyErr_Occurred() ? -2 : -1;
    here.serial = buffer->serial;
    here.forgotten = forgotten;
    here.track = track;
    return track;
}

static inline int knows_track(const BufferBase *buffer)
{
    return here.serial == buffer->serial && here.forgotten == forgotten;
}

static inline long long known_track(BufferBase *buffer)
{
    return knows_track(buffer) ? here.track : look_up_track(buffer);
}

/* Returns -2 with an exception. */
static long long track_here(BufferBase *buffer)
{
    long long track = known_track(buffer);
    if (track != -1)
        return track;
    PyObject *made = PyObject_CallMethod((PyObject *)buffer, "thread_track", NULL);
    track = made == NULL ? -1 : PyLong_AsLongLong(made);
    Py_XDECREF(made);
    return track == -1 && PyErr_Occurred() ? -2 : track;
}

PyObject *forget_threads(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    forgotten++;
    Py_RETURN_NONE;
}

/* ---- Shared parts of the methods. ---- */

/* The marker's buffer, a reference. */
static BufferBase *buffer_of(const MarkerBase *self)
{
    BufferBase *buffer = self->buffer;
    if (buffer == NULL)
        PyErr_SetString(PyExc_AttributeError, "_buffer");
    Py_XINCREF((PyObject *)buffer);
    return buffer;
}

static int done(PyObject *result)
{
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Appends a record; without memory, counts it as lost. Returns 0, MUST_WAIT, or -1 with another exception. */
static int append(BufferBase *buffer, long long label, int64_t time, int64_t kind, long long track)
{
    int failed;
    if (buffer->packed != NULL)
        failed = records_append(buffer->packed, label, time, kind, track);
    else if (buffer->records == NULL)
        failed = (PyErr_SetString(PyExc_AttributeError, "records"), -1);
    else
        failed = done(PyObject_CallMethod(buffer->records, "extend", "((LLLL))", label, (long long)time, (long long)kind, track));
    if (failed < 0 && PyErr_ExceptionMatches(PyExc_MemoryError)) {
        PyErr_Clear();
        buffer->lost_events++;
        return 0;
    }
    return failed == REFUSED ? 0 : failed;
}

/* Waits for room under on_full="block". Returns 0 if the record may be appended, even beyond the limits; -1 with an exception. */
static int wait_for_room(BufferBase *buffer)
{
    PyObject *found = PyObject_CallMethod((PyObject *)buffer, "wait_for_room", NULL);
    int has_room = found == NULL ? -1 : PyObject_IsTrue(found);
    Py_XDECREF(found);
    if (has_room < 0)
        return -1;
    if (buffer->packed == NULL)
        return 0;
    if (has_room)
        return records_grow(buffer->packed, 1);
    return done(PyObject_CallMethod((PyObject *)buffer, "refuse", NULL)) < 0 ? -1 : REFUSED;
}

static int look_after(BufferBase *buffer, int64_t now)
{
    return now <= buffer->due_ns ? 0 : done(PyObject_CallMethod((PyObject *)buffer, "look_after", "L", (long long)now));
}

static PyObject *itself_unless(int failed, PyObject *object)
{
    if (failed)
        return NULL;
    Py_INCREF(object);
    return object;
}

static PyObject *none_unless(int failed)
{
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static int check_exit(Py_ssize_t count)
{
    if (count == 3)
        return 0;
    PyErr_SetString(PyExc_TypeError, "__exit__() takes the type of an exception, the exception and its traceback");
    return -1;
}

/* ---- Idle. ---- */

static PyObject *idle_enter(PyObject *object, PyObject *none)
{
    (void)none;
    MarkerBase *self = (MarkerBase *)object;
    if (self->start != FREE)
        return itself_unless(done(PyObject_CallMethod(object, "_push", "ii", 0, 0)), object);
    self->skipped++;
    return itself_unless(0, object);
}

static PyObject *idle_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    MarkerBase *self = (MarkerBase *)object;
    if (check_exit(count) < 0)
        return NULL;
    if (self->start == FREE) {
        self->skipped--;
        Py_RETURN_NONE;
    }
    PyObject *now = PyObject_CallMethod(object, "_clock", NULL);
    int failed = now == NULL ? -1 : done(PyObject_CallMethod(object, "_exit_slow", "OO", args[0], now));
    Py_XDECREF(now);
    return none_unless(failed);
}

/* ---- Recording. ---- */

static int push(PyObject *object, int64_t start, long long track)
{
    return done(PyObject_CallMethod(object, "_push", "LL", (long long)start, track));
}

static PyObject *recording_enter(PyObject *object, PyObject *none)
{
    (void)none;
    MarkerBase *self = (MarkerBase *)object;
    BufferBase *buffer = self->buffer;
    if (buffer != NULL && self->start == FREE && knows_track(buffer)) { /* no Python code runs: it keeps the buffer */
        int64_t start = now_ns();
        if (start <= buffer->due_ns) {
            self->track = here.track;
            self->start = start;
            return itself_unless(0, object);
        }
    }
    buffer = buffer_of(self);
    long long track = buffer == NULL ? -2 : track_here(buffer);
    int failed = track == -2;
    if (!failed && buffer != self->buffer) { /* the marker moved to another profiler while the track was made */
        failed = done(PyObject_CallMethod(object, "__enter__", NULL));
    } else if (!failed) {
        int64_t start = now_ns();
        if (self->start == FREE) {
            self->track = track;
            self->start = start;
        } else {
            if (self->start > STACKED && self->track != track)
                failed = done(PyObject_CallMethod(object, "_share", NULL));
            failed = failed || push(object, start, track);
        }
        failed = failed || look_after(buffer, start);
    }
    Py_XDECREF((PyObject *)buffer);
    return itself_unless(failed, object);
}

static PyObject *exit_slow(PyObject *object, PyObject *exc_type, int64_t end)
{
    return none_unless(done(PyObject_CallMethod(object, "_exit_slow", "OL", exc_type, (long long)end)));
}

static PyObject *recording_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    MarkerBase *self = (MarkerBase *)object;
    int64_t end = now_ns();
    if (check_exit(count) < 0)
        return NULL;
    BufferBase *buffer = self->buffer;
    Records *packed = buffer == NULL ? NULL : buffer->packed;
    if (packed != NULL && packed->count < packed->room && args[0] == Py_None && self->start != FREE && !self->contended
        && end < buffer->due_ns) {
        records_append(packed, self->label, self->start, end, self->track);
        self->start = FREE;
        Py_RETURN_NONE;
    }
    buffer = buffer_of(self);
    if (buffer == NULL)
        return NULL;
    PyObject *result;
    /* No start: the slice began for another profiler, or while nothing was recorded. */
    if (args[0] == Py_None && self->start != FREE && !self->contended && end < buffer->due_ns) {
        int64_t start = self->start;
        self->start = FREE;
        int failed = append(buffer, self->label, start, end, self->track);
        if (failed == MUST_WAIT) {
            self->start = start; /* it is open while it waits */
            result = exit_slow(object, args[0], end);
        } else {
            result = none_unless(failed);
        }
    } else {
        result = exit_slow(object, args[0], end);
    }
    Py_DECREF((PyObject *)buffer);
    return result;
}

static PyObject *recording_instant(PyObject *object, PyObject *none)
{
    (void)none;
    MarkerBase *self = (MarkerBase *)object;
    int64_t now = now_ns();
    BufferBase *buffer = buffer_of(self);
    long long track = buffer == NULL ? -2 : track_here(buffer);
    int failed = track == -2 ? -1 : append(buffer, self->label, now, INSTANT, track);
    if (failed == MUST_WAIT && (failed = wait_for_room(buffer)) == 0)
        failed = append(buffer, self->label, now, INSTANT, track);
    failed = failed < 0 || look_after(buffer, now);
    Py_XDECREF((PyObject *)buffer);
    return none_unless(failed);
}

static int is_values(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "values") == 0;
}

static int append_counter(MarkerBase *self, BufferBase *buffer, int64_t now, PyObject *values)
{
    int single = buffer->packed == NULL ? NO_SINGLE : records_append_single(buffer->packed, self->label, now, values);
    if (single != NO_SINGLE)
        return single;
    PyObject *kept = copy_of_values(values);
    if (kept == NULL)
        return -1;
    if (buffer->packed != NULL)
        return records_append_counter(buffer->packed, self->label, now, kept);
    int failed = buffer->records == NULL
                     ? (PyErr_SetString(PyExc_AttributeError, "records"), -1)
                     : done(PyObject_CallMethod(buffer->records, "extend", "((LLiO))", self->label, (long long)now, COUNTER, kept));
    Py_DECREF(kept);
    return failed;
}

static PyObject *recording_counter(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    MarkerBase *self = (MarkerBase *)object;
    int64_t now = now_ns();
    if (count + (names == NULL ? 0 : PyTuple_Size(names)) != 1 || (count == 0 && !is_values(PyTuple_GetItem(names, 0)))) {
        PyErr_SetString(PyExc_TypeError, "counter() takes one argument, 'values'");
        return NULL;
    }
    BufferBase *buffer = buffer_of(self);
    if (buffer == NULL)
        return NULL;
    int failed = append_counter(self, buffer, now, args[0]);
    while (failed == MUST_WAIT && (failed = wait_for_room(buffer)) == 0)
        failed = append_counter(self, buffer, now, args[0]);
    if (failed < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
        /* Not a mapping, or its methods raise: do not raise in the training loop. */
        int refused = !PyErr_ExceptionMatches(PyExc_MemoryError);
        PyErr_Clear();
        if (!refused)
            buffer->lost_events++;
        failed = refused ? done(PyObject_CallMethod(object, "_refuse", "(O)", args[0])) : 0;
        if (failed && PyErr_ExceptionMatches(PyExc_MemoryError)) {
            PyErr_Clear();
            failed = 0;
        }
    }
    failed = failed < 0 || look_after(buffer, now);
    Py_DECREF((PyObject *)buffer);
    return none_unless(failed);
}

/* ---- Shared by several threads. ---- */

/* The marker of a track behind a shared one, a reference; NULL if it does not exist, with an exception if the lookup failed. */
static PyObject *clone_of(const MarkerBase *self, long long track)
{
    if (track < 0 || self->clones == NULL)
        return NULL;
    PyObject *key = PyLong_FromLongLong(track);
    PyObject *clone = key == NULL ? NULL : PyDict_GetItemWithError(self->clones, key);
    Py_XDECREF(key);
    if (clone != NULL && Py_TYPE(clone) != recording_class && !PyObject_TypeCheck(clone, marker_type)) {
        PyErr_SetString(PyExc_TypeError, "no marker is behind the shared one");
        return NULL;
    }
    Py_XINCREF(clone);
    return clone;
}

static PyObject *shared_enter(PyObject *object, PyObject *none)
{
    (void)none;
    MarkerBase *self = (MarkerBase *)object;
    BufferBase *buffer = buffer_of(self);
    PyObject *clone = buffer == NULL ? NULL : clone_of(self, known_track(buffer));
    if (clone == NULL && !PyErr_Occurred())
        clone = PyObject_CallMethod(object, "_clone", NULL);
    int failed = clone == NULL;
    if (!failed && clone != object && Py_TYPE(clone) == recording_class && !((MarkerBase *)clone)->start) {
        int64_t start = ((MarkerBase *)clone)->start = now_ns();
        failed = look_after(buffer, start);
    } else if (!failed) {
        failed = done(PyObject_CallMethod(clone, "__enter__", NULL));
    }
    Py_XDECREF(clone);
    Py_XDECREF((PyObject *)buffer);
    return itself_unless(failed, object);
}

static PyObject *shared_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    MarkerBase *self = (MarkerBase *)object;
    int64_t end = now_ns();
    if (check_exit(count) < 0)
        return NULL;
    BufferBase *buffer = buffer_of(self);
    PyObject *found = buffer == NULL ? NULL : clone_of(self, known_track(buffer)), *result;
    MarkerBase *clone = (MarkerBase *)found;
    if (found == NULL) {
        result = PyErr_Occurred() ? NULL : exit_slow(object, args[0], end);
    } else if (args[0] == Py_None && clone->start > STACKED && !clone->contended && end < buffer->due_ns) {
        int64_t start = clone->start;
        clone->start = FREE;
        int failed = append(buffer, clone->label, start, end, clone->track);
        if (failed == MUST_WAIT) {
            clone->start = start;
            result = PyObject_CallMethod(found, "__exit__", "OOO", args[0], args[1], args[2]);
        } else {
            result = none_unless(failed);
        }
    } else if (clone->start || clone->skipped) {
        result = PyObject_CallMethod(found, "__exit__", "OOO", args[0], args[1], args[2]);
    } else {
        result = exit_slow(object, args[0], end); /* it began before the threads met */
    }
    Py_XDECREF(found);
    Py_XDECREF((PyObject *)buffer);
    return result;
}

/* ---- Putting the methods into classes. ---- */

#define ENTER "__enter__($self)\n--\n\n"
#define EXIT "__exit__($self, exc_type, exc, traceback, /)\n--\n\n"

static PyMethodDef idle_methods[] = {
    {"__enter__", idle_enter, METH_NOARGS, ENTER},
    {"__exit__", (PyCFunction)(void (*)(void))idle_exit, METH_FASTCALL, EXIT},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef recording_methods[] = {
    {"__enter__", recording_enter, METH_NOARGS, ENTER},
    {"__exit__", (PyCFunction)(void (*)(void))recording_exit, METH_FASTCALL, EXIT},
    {"instant", recording_instant, METH_NOARGS, "instant($self)\n--\n\nRecord that something happened now."},
    {"counter", (PyCFunction)(void (*)(void))recording_counter, METH_FASTCALL | METH_KEYWORDS,
     "counter($self, values)\n--\n\nRecord the values of one or more series now."},
    {NULL, NULL, 0, NULL},
};
static PyMethodDef shared_methods[] = {
    {"__enter__", shared_enter, METH_NOARGS, ENTER},
    {"__exit__", (PyCFunction)(void (*)(void))shared_exit, METH_FASTCALL, EXIT},
    {NULL, NULL, 0, NULL},
};

/* A method of markers that binds once to each: binding and freeing it at every `with` takes as long as reading the clock. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *class; /* most instances are of it */
    PyObject *method; /* that of the class, unbound */
    PyMethodDef *definition;
    int place; /* in `bound` */
} KeptMethod;

static PyTypeObject *kept_method_type;

static PyObject *bind_method(PyObject *object, PyObject *instance, PyObject *class)
{
    (void)class;
    KeptMethod *self = (KeptMethod *)object;
    if (instance == NULL || (Py_TYPE(instance) != self->class && !PyObject_TypeCheck(instance, marker_type))) {
        Py_INCREF(self->method);
        return self->method;
    }
    MarkerBase *marker = (MarkerBase *)instance;
    PyObject **bound = marker->bound + self->place;
    if (marker->bound_to[self->place] != self->definition) {
        PyObject *made = PyCFunction_NewEx(self->definition, instance, NULL), *before = *bound;
        if (made == NULL)
            return NULL;
        *bound = made;
        marker->bound_to[self->place] = self->definition;
        Py_XDECREF(before);
    }
    Py_INCREF(*bound);
    return *bound;
}

static void forget_bound(MarkerBase *marker)
{
    for (int place = 0; place < 2; place++) {
        marker->bound_to[place] = NULL;
        Py_CLEAR(marker->bound[place]);
    }
}

static void end_kept_method(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF(((KeptMethod *)object)->method);
    Py_DECREF((PyObject *)((KeptMethod *)object)->class);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* A method of markers for a class, a reference. */
static PyObject *make_method(PyTypeObject *class, PyMethodDef *definition)
{
    PyObject *method = PyDescr_NewMethod(marker_type, definition);
    if (method == NULL || strncmp(definition->ml_name, "__", 2) != 0)
        return method;
    KeptMethod *kept = PyObject_New(KeptMethod, kept_method_type);
    if (kept == NULL) {
        Py_DECREF(method);
        return NULL;
    }
    Py_INCREF((PyObject *)class);
    kept->class = class;
    kept->method = method;
    kept->definition = definition;
    kept->place = strcmp(definition->ml_name, "__exit__") == 0;
    return (PyObject *)kept;
}

PyObject *give_methods(PyObject *module, PyObject *args)
{
    (void)module;
    int state;
    PyObject *class;
    if (!PyArg_ParseTuple(args, "iO!", &state, &PyType_Type, &class))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)class, marker_type)) {
        PyErr_SetString(PyExc_TypeError, "a class of markers is wanted");
        return NULL;
    }
    PyMethodDef *methods = state == IDLE ? idle_methods : state == RECORDING ? recording_methods : shared_methods;
    for (; methods->ml_name != NULL; methods++) {
        PyObject *method = make_method((PyTypeObject *)class, methods);
        int failed = method == NULL || PyObject_SetAttrString(class, methods->ml_name, method) < 0;
        Py_XDECREF(method);
        if (failed)
            return NULL;
    }
    if (state == RECORDING) {
        PyTypeObject *before = recording_class;
        Py_INCREF(class);
        recording_class = (PyTypeObject *)class;
        Py_XDECREF((PyObject *)before);
    }
    Py_RETURN_NONE;
}

/* ---- The types. ---- */

static PyObject *get_buffer(PyObject *object, void *none)
{
    (void)none;
    return get_object((PyObject *)((MarkerBase *)object)->buffer, "_buffer");
}

static int set_buffer(PyObject *object, PyObject *value, void *none)
{
    (void)none;
    forget_bound((MarkerBase *)object); /* so that a detached marker is in no cycle of references */
    return put_checked((PyObject **)&((MarkerBase *)object)->buffer, value, buffer_type);
}

static PyObject *get_clones(PyObject *object, void *none)
{
    (void)none;
    return get_object(((MarkerBase *)object)->clones, "_clones");
}

static int set_clones(PyObject *object, PyObject *value, void *none)
{
    (void)none;
    return put_checked(&((MarkerBase *)object)->clones, value, &PyDict_Type);
}

static PyObject *get_records(PyObject *object, void *none)
{
    (void)none;
    return get_object(((BufferBase *)object)->records, "records");
}

static int set_records(PyObject *object, PyObject *value, void *none)
{
    (void)none;
    BufferBase *self = (BufferBase *)object;
    self->packed = value != NULL && Py_TYPE(value) == records_type ? (Records *)value : NULL;
    return put_object(&self->records, value);
}

static PyObject *get_tracks(PyObject *object, void *none)
{
    (void)none;
    return get_object(((BufferBase *)object)->track_of_thread, "track_of_thread");
}

static int set_tracks(PyObject *object, PyObject *value, void *none)
{
    (void)none;
    forgotten++;
    return put_checked(&((BufferBase *)object)->track_of_thread, value, &PyDict_Type);
}

static PyObject *new_buffer(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyObject *object = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (object != NULL)
        ((BufferBase *)object)->serial = next_serial++;
    return object;
}

static int visit_buffer(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((BufferBase *)object)->records);
    Py_VISIT(((BufferBase *)object)->track_of_thread);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_buffer(PyObject *object)
{
    set_records(object, NULL, NULL);
    return set_tracks(object, NULL, NULL);
}

static int visit_marker(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((MarkerBase *)object)->buffer);
    Py_VISIT(((MarkerBase *)object)->clones);
    Py_VISIT(((MarkerBase *)object)->bound[0]);
    Py_VISIT(((MarkerBase *)object)->bound[1]);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_marker(PyObject *object)
{
    set_buffer(object, NULL, NULL);
    return set_clones(object, NULL, NULL);
}

static void end_buffer(PyObject *object)
{
    end_object(object, clear_buffer);
}

static void end_marker(PyObject *object)
{
    end_object(object, clear_marker);
}

static PyGetSetDef buffer_fields[] = {
    {"records", get_records, set_records, NULL, NULL},
    {"track_of_thread", get_tracks, set_tracks, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef buffer_numbers[] = {
    {"due_ns", T_LONGLONG, offsetof(BufferBase, due_ns), 0, NULL},
    {"lost_events", T_LONGLONG, offsetof(BufferBase, lost_events), 0, NULL},
    {"refused_values", T_LONGLONG, offsetof(BufferBase, refused_values), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef marker_fields[] = {
    {"_buffer", get_buffer, set_buffer, NULL, NULL},
    {"_clones", get_clones, set_clones, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef marker_numbers[] = {
    {"_start", T_LONGLONG, offsetof(MarkerBase, start), 0, NULL},
    {"_track", T_LONGLONG, offsetof(MarkerBase, track), 0, NULL},
    {"_contended", T_LONGLONG, offsetof(MarkerBase, contended), 0, NULL},
    {"_label", T_LONGLONG, offsetof(MarkerBase, label), 0, NULL},
    {"_skipped", T_LONGLONG, offsetof(MarkerBase, skipped), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "See _record.pyi."}, {Py_tp_new, new_buffer}, {Py_tp_traverse, visit_buffer}, {Py_tp_clear, clear_buffer},
    {Py_tp_dealloc, end_buffer}, {Py_tp_getset, buffer_fields}, {Py_tp_members, buffer_numbers}, {0, NULL},
};
static PyType_Slot marker_slots[] = {
    {Py_tp_doc, "See _record.pyi."}, {Py_tp_traverse, visit_marker}, {Py_tp_clear, clear_marker}, {Py_tp_dealloc, end_marker},
    {Py_tp_getset, marker_fields}, {Py_tp_members, marker_numbers}, {0, NULL},
};
static PyType_Slot kept_method_slots[] = {
    {Py_tp_descr_get, bind_method}, {Py_tp_dealloc, end_kept_method}, {0, NULL},
};
static PyType_Spec kept_method_spec = {
    "tracekit.core._record.KeptMethod", sizeof(KeptMethod), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    kept_method_slots,
};
#define FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)
static PyType_Spec buffer_spec = {"tracekit.core._record.BufferBase", sizeof(BufferBase), 0, FLAGS, buffer_slots};
static PyType_Spec marker_spec = {"tracekit.core._record.MarkerBase", sizeof(MarkerBase), 0, FLAGS, marker_slots};

int add_marker_types(PyObject *module)
{
    if (add_type(module, "BufferBase", &buffer_spec, &buffer_type) < 0
        || add_type(module, "KeptMethod", &kept_method_spec, &kept_method_type) < 0)
        return -1;
    return add_type(module, "MarkerBase", &marker_spec, &marker_type);
}
