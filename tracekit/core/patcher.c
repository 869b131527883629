/* The second pass over a run of events: what `TextPatcher` in tracekit.merge.plain does to it, to the byte, or the run is given
   back (None). Nothing of Python is called while a run is rewritten, so that the interpreter lock is released. */

#include "tracks.h"

static const char plain_phases[] = PLAIN_PHASES;

typedef struct {
    PyObject_HEAD
    Table table;
    Buffer out, lanes;       /* lanes: for each number, how many events of the run */
    Reader reader;
    int64_t shift_ns, least_ns, most_ns;
    uint64_t offset;
    int busy;
    Event unknown;
} Patcher;

static const char pairs[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657585960"
    "61626364656667686970717273747576777879808182838485868788899091929394959697989900";

/* Writes so many digits, an even number. */
INLINE char *write_digits(char *out, uint32_t number, int digits)
{
    for (int at = digits - 2; at >= 0; at -= 2) {
        memcpy(out + at, pairs + 2 * (number % 100), 2);
        number /= 100;
    }
    return out + digits;
}

static char *write_number(char *out, uint64_t number)
{
    if (number >= 100000000) {
        out = write_number(out, number / 100000000);
        return write_digits(out, (uint32_t)(number % 100000000), 8);
    }
    char digits[8];
    write_digits(digits, (uint32_t)number, 8);
    int zeros = 0;
    while (zeros < 7 && digits[zeros] == '0')
        zeros++;
    memcpy(out, digits + zeros, (size_t)(8 - zeros));
    return out + 8 - zeros;
}

/* Copies what is not changed. 16 bytes at a time where both have room for that, since it is short. */
INLINE char *copy_between(char *out, const char *from, size_t size, const char *end)
{
    if (size > 256 || (size_t)(end - from) < size + 16) {
        memcpy(out, from, size);
        return out + size;
    }
    for (size_t at = 0; at < size; at += 16)
        memcpy(out + at, from + at, 16);
    return out + size;
}

/* Appends the event up to its last number that changes; `from` is behind what was appended before. */
static enum outcome patch_event(Patcher *self, const Event *event, const char **from)
{
    Reader *reader = &self->reader;
    if ((event->seen & (F_PH | F_PID | F_TID | F_TS)) != (F_PH | F_PID | F_TID | F_TS) || !event->in_order
        || event->ts_decimals > 3)
        return GIVEN_BACK;
    int flow = event->phase == 's' || event->phase == 't' || event->phase == 'f';
    if (flow && self->offset && !event->direct_id)
        return GIVEN_BACK;
    int64_t number = track_of(&self->table, event);
    if (number < 0) {
        self->unknown = *event;
        return UNKNOWN_PLACE;
    }
    const Track *track = TRACK(&self->table, number);
    if (track->lanes >= 0)
        ((uint64_t *)(void *)self->lanes.data)[track->lanes]++;
    int64_t time = event->ts_ns;
    if (time < 0 || time < self->least_ns || (self->shift_ns > 0 && time > INT64_MAX - self->shift_ns))
        return GIVEN_BACK;
    time += self->shift_ns;
    if (time < 0 || time > self->most_ns)
        return GIVEN_BACK;
    /* Each number takes up to 24 bytes: 20 digits, or 17 with a point and decimals; and 16 more may be touched. */
    const Edit *last = reader->edits + reader->edit_count;
    if (!reserve(&self->out, (size_t)(last[-1].span.end - *from) + 24 * (size_t)reader->edit_count + 16))
        return NO_MEMORY;
    char *out = self->out.data + self->out.size;
    for (const Edit *edit = reader->edits; edit < last; edit++) {
        int which = edit->kind == EDIT_TID;
        switch (edit->kind) {
        case EDIT_PID: case EDIT_TID:
            if (track->stays[which] && *edit->span.at != '"')
                continue;
            break;
        case EDIT_TS:
            if (*edit->span.at == '-')
                return GIVEN_BACK;
            if (self->shift_ns == 0 && event->ts_decimals == 3)
                continue;
            break;
        case EDIT_ID:
            if (!flow)
                continue;
            break;
        case EDIT_ARG:
            break;
        }
        out = copy_between(out, *from, (size_t)(edit->span.at - *from), reader->end);
        *from = edit->span.end;
        switch (edit->kind) {
        case EDIT_PID: case EDIT_TID:
            memcpy(out, track->new_texts[which], sizeof track->new_texts[which]);
            out += track->new_sizes[which];
            break;
        case EDIT_TS:
            out = write_number(out, (uint64_t)time / 1000);
            *out = '.';
            out[1] = (char)('0' + (uint64_t)time / 100 % 10);
            memcpy(out + 2, pairs + 2 * ((uint64_t)time % 100), 2);
            out += 4;
            break;
        case EDIT_ID: case EDIT_ARG:
            out = write_number(out, edit->number + self->offset);
        }
    }
    self->out.size = (size_t)(out - self->out.data);
    return DONE;
}

static enum outcome patch_text(Patcher *self, const char *text, const char *end, const uint32_t phases[7], uint64_t checksum)
{
    Reader *reader = &self->reader;
    Event event;
    uint64_t count = 0, flows = 0, sum = 0;
    uint32_t left[7];
    memcpy(left, phases, sizeof left);
    reader->end = end;
    reader->pid_quotes = reader->id_quotes = 0;
    self->out.size = 0;
    if (self->lanes.size)
        memset(self->lanes.data, 0, self->lanes.size);
    if (end - text > MOST_TEXT || !reader->edits_wanted)
        return GIVEN_BACK;
    const char *from = text;
    for (const char *p = text;;) {
        const char *behind = read_event(reader, p, &event);
        if (behind == NULL)
            return GIVEN_BACK;
        const char *phase = event.phase == 'X' ? plain_phases : event.phase ? strchr(plain_phases, event.phase) : NULL;
        if (phase == NULL || left[phase - plain_phases]-- == 0)
            return GIVEN_BACK;
        enum outcome outcome = patch_event(self, &event, &from);
        if (outcome != DONE)
            return outcome;
        count++;
        flows += event.phase == 's' || event.phase == 't' || event.phase == 'f';
        sum += (uint64_t)event.ts_ns;
        p = skip_space(reader, behind);
        if (p == end)
            break;
        if (*p != ',')
            return GIVEN_BACK;
        p = skip_space(reader, p + 1);
    }
    for (int i = 0; i < 7; i++)
        if (left[i])
            return GIVEN_BACK;
    /* Where pid" stands anywhere else, or "id" where arrows are, Python takes the general way. */
    if (reader->pid_quotes != count || (self->offset && flows && reader->id_quotes != flows))
        return GIVEN_BACK;
    if ((sum & CHECKSUM_MASK) != checksum)
        return GIVEN_BACK;
    return append(&self->out, from, (size_t)(end - from)) ? DONE : NO_MEMORY;
}

static PyObject *Patcher_patch(PyObject *object, PyObject *args)
{
    Patcher *self = (Patcher *)object;
    PyObject *bytes;
    unsigned int phases[7];
    long long checksum;
    char *text;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "S(IIIIIII)L", &bytes, phases, phases + 1, phases + 2, phases + 3, phases + 4, phases + 5, phases + 6, &checksum)
        || PyBytes_AsStringAndSize(bytes, &text, &size) < 0 || !enter(&self->busy))
        return NULL;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = patch_text(self, text, text + size, phases, (uint64_t)checksum);
    Py_END_ALLOW_THREADS
    const Span pid = self->unknown.pid, tid = self->unknown.tid;
    PyObject *result = NULL;
    switch (outcome) {
    case DONE:
        result = PyBytes_FromStringAndSize(self->out.data, (Py_ssize_t)self->out.size);
        break;
    case NO_MEMORY:
        PyErr_NoMemory();
        break;
    case UNKNOWN_PLACE:
        result = Py_BuildValue("y#y#", pid.at, (Py_ssize_t)(pid.end - pid.at), tid.at, (Py_ssize_t)(tid.end - tid.at));
        break;
    case GIVEN_BACK:
        result = Py_None;
        Py_INCREF(result);
    }
    self->busy = 0;
    return result;
}

static PyObject *Patcher_add_place(PyObject *object, PyObject *args)
{
    Patcher *self = (Patcher *)object;
    const char *pid, *tid;
    Py_ssize_t pid_size, tid_size;
    unsigned long long new_pid, new_tid;
    int lanes;
    if (!PyArg_ParseTuple(args, "y#y#KKi", &pid, &pid_size, &tid, &tid_size, &new_pid, &new_tid, &lanes) || !enter(&self->busy))
        return NULL;
    self->busy = 0;
    Span pid_span = {pid, pid + pid_size}, tid_span = {tid, tid + tid_size};
    /* First the memory: a place is known with all that belongs to it, or not at all. */
    while (lanes >= 0 && self->lanes.size < ((size_t)lanes + 1) * sizeof(uint64_t))
        if (!append(&self->lanes, &(uint64_t){0}, sizeof(uint64_t)))
            return PyErr_NoMemory();
    int64_t number = find_track(&self->table, pid_span, tid_span);
    if (number < 0)
        number = add_track(&self->table, pid_span, tid_span);
    if (number < 0)
        return PyErr_NoMemory();
    Track *track = TRACK(&self->table, number);
    track->new_sizes[0] = (unsigned char)(write_number(track->new_texts[0], new_pid) - track->new_texts[0]);
    track->new_sizes[1] = (unsigned char)(write_number(track->new_texts[1], new_tid) - track->new_texts[1]);
    track->stays[0] = track->new_sizes[0] == pid_size && memcmp(track->new_texts[0], pid, (size_t)pid_size) == 0;
    track->stays[1] = track->new_sizes[1] == tid_size && memcmp(track->new_texts[1], tid, (size_t)tid_size) == 0;
    track->lanes = lanes < 0 ? -1 : lanes;
    Py_RETURN_NONE;
}

static PyObject *Patcher_lane_counts(PyObject *object, PyObject *unused)
{
    (void)unused;
    Patcher *self = (Patcher *)object;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < self->lanes.size / sizeof(uint64_t); i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(((uint64_t *)(void *)self->lanes.data)[i]);
        if (count == NULL || PyList_Append(list, count) < 0)
            Py_CLEAR(list);
        Py_XDECREF(count);
    }
    return list;
}

static int Patcher_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Patcher *self = (Patcher *)object;
    long long shift_ns, least_ns, most_ns;
    unsigned long long offset;
    int arg_ids;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "LLLKp", &shift_ns, &least_ns, &most_ns, &offset, &arg_ids) || !enter(&self->busy))
        return -1;
    self->busy = 0;
    if (offset > (uint64_t)INT64_MAX) {
        PyErr_SetString(PyExc_OverflowError, "an offset of ids has 63 bits");
        return -1;
    }
    self->shift_ns = shift_ns;
    self->least_ns = least_ns;
    self->most_ns = most_ns;
    self->offset = offset;
    self->reader.edits_wanted = 1;
    self->reader.arg_ids = (unsigned char)arg_ids;
    return 0;
}

static void Patcher_dealloc(PyObject *object)
{
    Patcher *self = (Patcher *)object;
    free(self->out.data);
    free(self->lanes.data);
    free_table(&self->table);
    free_object(object);
}

static PyMethodDef patcher_methods[] = {
    {"patch", Patcher_patch, METH_VARARGS, "See _merge.pyi."},
    {"add_place", Patcher_add_place, METH_VARARGS, "See _merge.pyi."},
    {"lane_counts", Patcher_lane_counts, METH_NOARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot patcher_slots[] = {
    {Py_tp_init, (void *)Patcher_init},
    {Py_tp_dealloc, (void *)Patcher_dealloc},
    {Py_tp_methods, patcher_methods},
    {0, NULL},
};
PyType_Spec patcher_spec = {"tracekit.core._merge.Patcher", sizeof(Patcher), 0, Py_TPFLAGS_DEFAULT, patcher_slots};
