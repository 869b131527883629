/* The type tracekit.core._merge.Rewriter; see _merge.pyi. No loop over bytes holds the interpreter lock. */

#include "rewriter.h"

#include <errno.h>

#include "numbers.h"

#define KEPT_BYTES (16 << 20)
#define MAX_LOGS (1 << 28)
#define MAX_TID 9999999999ULL
#define MAX_SHIFT_NS (INT64_C(1) << 62)
#define MAX_OFFSET_NS (INT64_C(1) << 60)

static PyObject *fail(Rewriter *self, enum outcome outcome)
{
    self->busy = 0;
    if (outcome == NO_MEMORY)
        return PyErr_NoMemory();
    errno = self->scratch.error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *refuse(Rewriter *self, PyObject *type, const char *why)
{
    self->busy = 0;
    PyErr_SetString(type, why);
    return NULL;
}

/* ---- Before the events. ---- */

/* Prevents glibc from returning the memory of each piece of a trace to the system: new pages cost a tenth of a merge. glibc keeps
   blocks that are smaller than the largest block ever freed. */
static void keep_freed_memory(void)
{
    void *volatile block = malloc(KEPT_BYTES);
    free(block);
}

static int Rewriter_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Rewriter *self = (Rewriter *)object;
    char folder[MAX_FOLDER];
    const char *noted_name;
    Py_ssize_t size;
    long long snap_ns = 0, log_bytes = 32 << 20;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "y#O&|LL", &noted_name, &size, convert_folder, folder, &snap_ns, &log_bytes))
        return -1;
    const char *why = NULL;
    if (snap_ns < 0 || log_bytes < 0)
        why = "a size or time is negative";
    else if (size < 2 || size > MAX_NOTED_NAME)
        why = "the beginning of a name has 2 to 32 bytes";
    else if (self->logs.data != NULL || self->out.data != NULL || self->busy)
        why = "it is in use";
    if (why == NULL) {
        keep_freed_memory();
        strcpy(self->scratch.folder, folder);
        memcpy(self->noted_name, noted_name, (size_t)size);
        self->noted_name_size = (size_t)size;
        self->snap_ns = snap_ns;
        self->most_log_bytes = (size_t)log_bytes;
    } else {
        PyErr_SetString(PyExc_ValueError, why);
    }
    return why == NULL ? 0 : -1;
}

static int read_knots(Rewriter *self, PyObject *knots)
{
    Py_ssize_t count = PyTuple_Size(knots);
    if (count > MAX_KNOTS || count == 1) {
        PyErr_SetString(PyExc_ValueError, "no knots, or 2 to 1024 are wanted");
        return 0;
    }
    self->knot_count = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long time_ns, offset_ns;
        if (!PyArg_ParseTuple(PyTuple_GetItem(knots, i), "LL", &time_ns, &offset_ns))
            return 0;
        if (llabs(time_ns) > MAX_SHIFT_NS || llabs(offset_ns) > MAX_OFFSET_NS || (i && time_ns <= self->knots[i - 1].time_ns)) {
            PyErr_SetString(PyExc_OverflowError, "a knot is out of range or of order");
            return 0;
        }
        self->knots[i] = (Knot){time_ns, offset_ns};
    }
    self->knot_count = (size_t)count;
    return 1;
}

/* Forgets the tracks of known places. */
static void forget_places(Rewriter *self)
{
    for (int i = 0; i < KNOWN_PLACES; i++) {
        self->reader.known.places[i].track = -1;
        self->reader.known.places[i].new_size = 0;
    }
}

static PyObject *Rewriter_begin(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    long long shift_ns, least_ns, most_ns, id_offset;
    int arg_ids, mode;
    const char *prefix;
    Py_ssize_t prefix_size;
    PyObject *knots;
    if (!PyArg_ParseTuple(args, "LLLLpiy#O!", &shift_ns, &least_ns, &most_ns, &id_offset, &arg_ids, &mode, &prefix, &prefix_size,
                          &PyTuple_Type, &knots) || !enter(&self->busy))
        return NULL;
    if (llabs(shift_ns) > MAX_SHIFT_NS || most_ns > MAX_TIME_NS - MAX_DURATION_NS || id_offset < KEEP_OFFSET
        || id_offset > INT64_MAX / 2)
        return refuse(self, PyExc_OverflowError, "a shift, time or offset is out of range");
    if (mode < KEEP_ARGS || mode > DROP_ARGS || prefix_size > MAX_PREFIX)
        return refuse(self, PyExc_ValueError, "there is no such mode, or the prefix is too long");
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    if (!read_knots(self, knots)) {
        self->busy = 0;
        return NULL;
    }
    self->shift_ns = shift_ns;
    self->least_ns = least_ns;
    self->most_ns = most_ns;
    self->id_offset = id_offset;
    self->moves_arg_ids = arg_ids && id_offset > 0;
    memcpy(self->prefix, prefix, (size_t)prefix_size);
    self->prefix_size = (size_t)prefix_size;
    Reader *reader = &self->reader;
    reader->rewrites = 1;
    reader->args_mode = (unsigned char)mode;
    reader->arg_ids = self->moves_arg_ids || mode == KEEP_IDS;
    reader->moves_durations = self->knot_count != 0 || self->snap_ns > 0;
    reader->known.same_size = 0; /* known arguments without ids may have ids now */
    forget_places(self);
    clear_table(&self->table);
    memset(self->written, 0, sizeof self->written);
    self->place = ANYWHERE;
    self->busy = 0;
    Py_RETURN_NONE;
}

static int make_log(Rewriter *self, int number)
{
    while (LOG_COUNT(self) <= (size_t)number)
        if (!append(&self->logs, &(LaneLog){.lanes = 1, .durations = self->snap_ns > 0}, sizeof(LaneLog)))
            return 0;
    return 1;
}

static PyObject *Rewriter_add_track(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    const char *pid, *tid;
    Py_ssize_t pid_size, tid_size;
    unsigned long long new_pid, new_tid;
    int log;
    if (!PyArg_ParseTuple(args, "y#y#KKi", &pid, &pid_size, &tid, &tid_size, &new_pid, &new_tid, &log) || !enter(&self->busy))
        return NULL;
    if (log < 0 || log >= MAX_LOGS || new_tid > MAX_TID)
        return refuse(self, PyExc_ValueError, "there is no such log or tid");
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    /* Allocate first, so that a failure leaves no half of a track. */
    if (!make_log(self, log))
        return fail(self, NO_MEMORY);
    Span pid_span = {pid, pid + pid_size}, tid_span = {tid, tid + tid_size};
    int64_t number = find_track(&self->table, pid_span, tid_span);
    if (number < 0)
        number = add_track(&self->table, pid_span, tid_span);
    if (number < 0)
        return fail(self, NO_MEMORY);
    Track *track = TRACK(&self->table, number);
    track->new_size = (unsigned char)(write_number(track->new_pid, new_pid) - track->new_pid);
    char *behind = write_number(track->new_tid, new_tid);
    memset(behind, ' ', TID_SIZE);
    track->log = log;
    forget_places(self);
    self->busy = 0;
    Py_RETURN_NONE;
}

/* ---- The events. ---- */

static PyObject *Rewriter_rewrite(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    Window window;
    if (!parse_window(args, &window) || !enter(&self->busy))
        return NULL;
    if (self->finished || !self->reader.rewrites)
        return refuse(self, PyExc_ValueError, "there is no input, or it is finished");
    enum stop stop;
    Py_BEGIN_ALLOW_THREADS
    stop = rewrite_events(self, &window);
    Py_END_ALLOW_THREADS
    if (stop == STOP_MEMORY || stop == STOP_FILE)
        return fail(self, stop == STOP_MEMORY ? NO_MEMORY : FILE_ERROR);
    self->busy = 0;
    return Py_BuildValue("in", (int)stop, (Py_ssize_t)(window.at - window.text));
}

static PyObject *Rewriter_new_track(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Rewriter *self = (Rewriter *)object;
    const char *texts = self->new_track.data;
    const size_t *sizes = self->new_sizes;
    if (texts == NULL)
        return Py_BuildValue("yyy", "", "", "");
    return Py_BuildValue("y#y#y#", texts, (Py_ssize_t)sizes[0], texts + sizes[0], (Py_ssize_t)sizes[1], texts + sizes[0] + sizes[1],
                         (Py_ssize_t)sizes[2]);
}

static enum outcome note_appended(Rewriter *self, int log, int kind, Entry *entry)
{
    switch (kind) {
    case 'X': entry->kind = ENTRY_SLICE; break;
    case 'B': entry->kind = ENTRY_BEGIN; break;
    case 'E': entry->kind = ENTRY_END; break;
    default: entry->kind = ENTRY_FLOW;
    }
    if (!make_log(self, log))
        return NO_MEMORY;
    return note_entry(self, (uint32_t)log, entry);
}

static PyObject *Rewriter_append(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    const char *text;
    Py_ssize_t size, tid_at = 0, dur_at = 0, dur_size = 0;
    int log = -1, kind = 0;
    long long time_ns = 0, end_ns = 0;
    unsigned long long label = 0;
    if (!PyArg_ParseTuple(args, "y#|iiLLnKnn", &text, &size, &log, &kind, &time_ns, &end_ns, &tid_at, &label, &dur_at, &dur_size)
        || !enter(&self->busy))
        return NULL;
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    if (size > INT32_MAX - 2 || log >= MAX_LOGS || tid_at < 0 || (log >= 0 && tid_at > size - TID_SIZE) || dur_at < 0 || dur_size < 0
        || dur_size > 24 || dur_at > size - dur_size)
        return refuse(self, PyExc_ValueError, "there is no such log or place");
    self->place = BEHIND_EVENT;
    if (!reserve(&self->out, (size_t)size + 2))
        return fail(self, NO_MEMORY);
    if (log >= 0 && size) {
        uint64_t start_at = self->taken + self->out.size;
        time_ns = time_ns < 0 ? 0 : time_ns > MAX_TIME_NS ? MAX_TIME_NS : time_ns;
        end_ns = end_ns < time_ns ? time_ns : end_ns > MAX_TIME_NS ? MAX_TIME_NS : end_ns;
        Entry entry = {.time_ns = time_ns, .duration_ns = end_ns - time_ns, .at = start_at + (uint64_t)tid_at, .label = label,
                       .event_at = start_at, .event_size = (uint32_t)size + 1, .dur_at = start_at + (uint64_t)dur_at,
                       .dur_size = (uint32_t)dur_size};
        enum outcome outcome = note_appended(self, log, kind, &entry);
        if (outcome != DONE)
            return fail(self, outcome);
    }
    if (size) {
        append(&self->out, text, (size_t)size);
        append(&self->out, ",\n", 2);
    }
    self->busy = 0;
    Py_RETURN_NONE;
}

static PyObject *Rewriter_take(PyObject *object, PyObject *unused)
{
    (void)unused;
    Rewriter *self = (Rewriter *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(self->out.data, (Py_ssize_t)self->out.size);
    if (bytes != NULL) {
        self->taken += self->out.size;
        self->out.size = 0;
    }
    self->busy = 0;
    return bytes;
}

/* Returns 1 for a position of the output before a file in which the output begins at an offset, which may be negative. */
static int is_before(uint64_t position, long long offset)
{
    return offset < 0 && position < 0 - (uint64_t)offset;
}

static PyObject *Rewriter_write(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    int fd, error;
    long long offset;
    if (!PyArg_ParseTuple(args, "iL", &fd, &offset) || !enter(&self->busy))
        return NULL;
    if (is_before(self->taken, offset))
        return refuse(self, PyExc_ValueError, "a position is negative");
    const size_t size = self->out.size;
    Py_BEGIN_ALLOW_THREADS
    error = write_whole(fd, self->out.data, self->out.size, offset + (int64_t)self->taken);
    Py_END_ALLOW_THREADS
    if (error) {
        self->scratch.error = error;
        return fail(self, FILE_ERROR);
    }
    self->taken += size;
    self->out.size = 0;
    self->busy = 0;
    return PyLong_FromSize_t(size);
}

/* ---- Reports to the caller. ---- */

static PyObject *take_texts(Rewriter *self, Buffer *buffer)
{
    if (!enter(&self->busy))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(buffer->data, (Py_ssize_t)(buffer->size ? buffer->size - 1 : 0));
    if (bytes != NULL)
        buffer->size = 0;
    self->busy = 0;
    return bytes;
}

static PyObject *Rewriter_metadata(PyObject *object, PyObject *unused)
{
    (void)unused;
    return take_texts((Rewriter *)object, &((Rewriter *)object)->metadata);
}

static PyObject *Rewriter_noted(PyObject *object, PyObject *unused)
{
    (void)unused;
    return take_texts((Rewriter *)object, &((Rewriter *)object)->noted);
}

static PyObject *Rewriter_overlaps(PyObject *object, PyObject *unused)
{
    (void)unused;
    Rewriter *self = (Rewriter *)object;
    for (size_t i = 0; i < LOG_COUNT(self); i++)
        if (LOGS(self)[i].overlaps)
            Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *Rewriter_counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Rewriter *self = (Rewriter *)object;
    PyObject *written = PyDict_New();
    for (int phase = 0; written != NULL && phase < PHASES; phase++) {
        if (self->written[phase] == 0)
            continue;
        const char name[2] = {(char)phase, 0};
        PyObject *count = PyLong_FromUnsignedLongLong(self->written[phase]);
        if (count == NULL || PyDict_SetItemString(written, name, count) < 0)
            Py_CLEAR(written);
        Py_XDECREF(count);
    }
    return written;
}

static PyObject *Rewriter_work(PyObject *object, PyObject *unused)
{
    (void)unused;
    Rewriter *self = (Rewriter *)object;
    if (!enter(&self->busy))
        return NULL;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < TRACK_COUNT(&self->table); i++) {
        const Track *track = TRACK(&self->table, i);
        if (track->work == 0)
            continue;
        PyObject *pair = Py_BuildValue("(ii)", (int)track->log, (int)track->work);
        if (pair == NULL || PyList_Append(list, pair) < 0)
            Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    self->busy = 0;
    return list;
}

static PyObject *Rewriter_label(PyObject *object, PyObject *args)
{
    (void)object;
    const char *name, *category;
    Py_ssize_t name_size, category_size;
    if (!PyArg_ParseTuple(args, "y#y#", &name, &name_size, &category, &category_size))
        return NULL;
    return PyLong_FromUnsignedLongLong(label_of(name, name + name_size, category, category + category_size));
}

/* ---- After the events. ---- */

/* Finds the lanes of all tracks that may need some. Calls no Python code. */
static enum outcome find_patches(Rewriter *self)
{
    size_t limit = self->most_log_bytes / 4;
    open_sorter(&self->patches, &self->scratch, limit);
    for (size_t i = 0; i < LOG_COUNT(self); i++) {
        LaneLog *log = &LOGS(self)[i];
        enum outcome outcome = DONE;
        end_log(log);
        if (log->tangled)
            outcome = assign_lanes(log, (uint32_t)i, &self->scratch, limit, self->snap_ns, &self->patches, &self->counts);
        if (outcome != DONE)
            return outcome;
        free_buffer(&log->bytes);
        free_buffer(&log->spilled);
    }
    return sort_records(&self->patches);
}

/* Reads the next patch into `patch`; clears `has_patch` after the last one. */
static enum outcome next_patch(Rewriter *self)
{
    self->has_patch = 0;
    const Record *record = next_record(&self->patches);
    if (record == NULL)
        return self->patches.outcome;
    uint64_t patch = record->words[1], kind = patch & PATCH_KINDS, number = patch & ~PATCH_KINDS;
    size_t size = kind == PATCH_BLANK ? (size_t)number : kind == PATCH_DURATION ? (size_t)(number >> 57) : TID_SIZE;
    self->patch_at = record->words[0];
    self->patch.size = 0;
    if (!reserve(&self->patch, size + 24))
        return NO_MEMORY;
    char *behind = self->patch.data; /* end of the written text; spaces follow */
    if (kind == PATCH_LANE) {
        const LaneLog *log = &LOGS(self)[number >> 31];
        uint32_t tid;
        memcpy(&tid, log->tids.data + ((number & MAX_LANES) - 1) * sizeof tid, sizeof tid);
        behind = write_number(self->patch.data, tid);
    } else if (kind == PATCH_DURATION) {
        behind = write_us(self->patch.data, number & (uint64_t)MAX_SNAPPED_NS);
    }
    memset(behind, ' ', size - (size_t)(behind - self->patch.data));
    self->patch.size = size;
    self->has_patch = 1;
    return DONE;
}

static int allot_lanes(Rewriter *self, PyObject *allot)
{
    for (size_t i = 0; i < LOG_COUNT(self); i++) {
        for (uint32_t lane = 1; lane < LOGS(self)[i].lanes; lane++) {
            PyObject *found = PyObject_CallFunction(allot, "nI", (Py_ssize_t)i, lane);
            unsigned long tid = found == NULL ? (unsigned long)-1 : PyLong_AsUnsignedLong(found);
            Py_XDECREF(found);
            if (PyErr_Occurred())
                return 0;
            if (tid > UINT32_MAX) {
                PyErr_SetString(PyExc_OverflowError, "a tid has 32 bits");
                return 0;
            }
            uint32_t number = (uint32_t)tid;
            if (!append(&LOGS(self)[i].tids, &number, sizeof number)) {
                PyErr_NoMemory();
                return 0;
            }
        }
    }
    return 1;
}

/* Asks which tracks are snapped. */
static int mark_snapped_logs(Rewriter *self, PyObject *snaps)
{
    for (size_t i = 0; self->snap_ns > 0 && snaps != Py_None && i < LOG_COUNT(self); i++) {
        PyObject *found = PyObject_CallFunction(snaps, "n", (Py_ssize_t)i);
        int snap = found == NULL ? -1 : PyObject_IsTrue(found);
        Py_XDECREF(found);
        if (snap < 0)
            return 0;
        LOGS(self)[i].snaps = (unsigned char)snap;
    }
    return 1;
}

static PyObject *Rewriter_finish(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    PyObject *allot, *snaps = Py_None;
    if (!PyArg_ParseTuple(args, "O|O", &allot, &snaps) || !enter(&self->busy))
        return NULL;
    if (self->finished)
        return refuse(self, PyExc_ValueError, "it is finished");
    self->finished = 1;
    if (!mark_snapped_logs(self, snaps)) {
        self->busy = 0;
        return NULL;
    }
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = find_patches(self);
    Py_END_ALLOW_THREADS
    if (outcome != DONE)
        return fail(self, outcome);
    int done = allot_lanes(self, allot);
    if (done && (outcome = next_patch(self)) != DONE)
        return fail(self, outcome);
    self->busy = 0;
    const LaneCounts *counts = &self->counts;
    return done ? Py_BuildValue("KKKL", (unsigned long long)counts->moved, (unsigned long long)counts->lost_ends,
                                (unsigned long long)counts->snapped, (long long)counts->largest_snap_ns)
                : NULL;
}

static PyObject *Rewriter_first_patch(PyObject *object, PyObject *unused)
{
    (void)unused;
    const Rewriter *self = (Rewriter *)object;
    return PyLong_FromUnsignedLongLong(self->has_patch ? self->patch_at : self->taken);
}

static PyObject *Rewriter_write_patches(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    int fd, error = 0;
    long long offset;
    if (!PyArg_ParseTuple(args, "iL", &fd, &offset) || !enter(&self->busy))
        return NULL;
    if (self->has_patch && is_before(self->patch_at, offset))
        return refuse(self, PyExc_ValueError, "a position is negative");
    enum outcome outcome = DONE;
    Py_BEGIN_ALLOW_THREADS
    while (self->has_patch && outcome == DONE && !error) {
        error = write_whole(fd, self->patch.data, self->patch.size, offset + (int64_t)self->patch_at);
        outcome = next_patch(self);
    }
    Py_END_ALLOW_THREADS
    if (error) {
        self->scratch.error = error;
        outcome = FILE_ERROR;
    }
    if (outcome != DONE)
        return fail(self, outcome);
    self->busy = 0;
    Py_RETURN_NONE;
}

static PyObject *Rewriter_lay(PyObject *object, PyObject *args)
{
    Rewriter *self = (Rewriter *)object;
    PyObject *bytes;
    unsigned long long position;
    char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "SK", &bytes, &position) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0 || !enter(&self->busy))
        return NULL;
    /* Create it without content: Python shares bytes objects of one character. */
    PyObject *result = PyBytes_FromStringAndSize(NULL, size);
    char *out = result == NULL ? NULL : memcpy(PyBytes_AsString(result), text, (size_t)size);
    enum outcome outcome = DONE;
    Py_BEGIN_ALLOW_THREADS
    uint64_t from = position, end = position + (uint64_t)size;
    while (out != NULL && outcome == DONE && self->has_patch && self->patch_at < end) {
        uint64_t patch_end = self->patch_at + self->patch.size;
        uint64_t low = self->patch_at > from ? self->patch_at : from, high = patch_end < end ? patch_end : end;
        if (low < high)
            memcpy(out + (low - from), self->patch.data + (low - self->patch_at), (size_t)(high - low));
        if (patch_end > end)
            break; /* its rest belongs to the next stretch */
        outcome = next_patch(self);
    }
    Py_END_ALLOW_THREADS
    if (outcome != DONE) {
        Py_DECREF(result);
        return fail(self, outcome);
    }
    self->busy = 0;
    return result;
}

static void Rewriter_dealloc(PyObject *object)
{
    Rewriter *self = (Rewriter *)object;
    Buffer *buffers[] = {&self->out, &self->metadata, &self->noted, &self->new_track, &self->patch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free_buffer(buffers[i]);
    for (size_t i = 0; i < LOG_COUNT(self); i++)
        free_log(&LOGS(self)[i]);
    free_buffer(&self->logs);
    close_sorter(&self->patches);
    close_scratch(&self->scratch);
    free_table(&self->table);
    free_object(object);
}

static PyMethodDef methods[] = {
    {"begin", Rewriter_begin, METH_VARARGS, "See _merge.pyi."},
    {"add_track", Rewriter_add_track, METH_VARARGS, "See _merge.pyi."},
    {"rewrite", Rewriter_rewrite, METH_VARARGS, "See _merge.pyi."},
    {"new_track", Rewriter_new_track, METH_NOARGS, "See _merge.pyi."},
    {"append", Rewriter_append, METH_VARARGS, "See _merge.pyi."},
    {"take", Rewriter_take, METH_NOARGS, "See _merge.pyi."},
    {"write", Rewriter_write, METH_VARARGS, "See _merge.pyi."},
    {"metadata", Rewriter_metadata, METH_NOARGS, "See _merge.pyi."},
    {"noted", Rewriter_noted, METH_NOARGS, "See _merge.pyi."},
    {"overlaps", Rewriter_overlaps, METH_NOARGS, "See _merge.pyi."},
    {"counts", Rewriter_counts, METH_NOARGS, "See _merge.pyi."},
    {"work", Rewriter_work, METH_NOARGS, "See _merge.pyi."},
    {"label", Rewriter_label, METH_VARARGS | METH_STATIC, "See _merge.pyi."},
    {"finish", Rewriter_finish, METH_VARARGS, "See _merge.pyi."},
    {"first_patch", Rewriter_first_patch, METH_NOARGS, "See _merge.pyi."},
    {"write_patches", Rewriter_write_patches, METH_VARARGS, "See _merge.pyi."},
    {"lay", Rewriter_lay, METH_VARARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_init, (void *)Rewriter_init},
    {Py_tp_dealloc, (void *)Rewriter_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};
PyType_Spec rewriter_spec = {"tracekit.core._merge.Rewriter", sizeof(Rewriter), 0, Py_TPFLAGS_DEFAULT, slots};
