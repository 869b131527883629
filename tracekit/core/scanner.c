/* The first pass over a run of events: what `_Scanner.take` in tracekit.merge.scan finds out, or the run is given back (None).

   Nothing of Python is called while a run is read, so that the interpreter lock is released. */

#include "tracks.h"

#define MOST_WORDS 16
#define MOST_PHASES 128
#define MOST_DURATION_NS 1000000000000000000

typedef struct {
    PyObject_HEAD
    Table table;
    Buffer rows, columns, touched, firsts, named, metadata;
    Reader reader;
    char words[MOST_WORDS][32];
    size_t word_sizes[MOST_WORDS];
    int word_count;
    unsigned char initials[256];
    int64_t epoch_ns;
    int busy;
    uint32_t phases[MOST_PHASES];
    uint64_t count, checksum;
    int64_t low_ns, high_ns, epoch_low_ns;
    int timed, plain;
} Scanner;

typedef struct {
    uint32_t track;
    int64_t start, minus_end;
} RowOfTrack;

typedef struct {
    Py_ssize_t at, end;
    uint32_t track;
} Place;

static const char easy_phases[] = "XstfiICbenSTFpNODPRvcM"; /* see tracekit.merge.scan */

static int is_named(const Scanner *self, const Event *event)
{
    /* A name is at least two quotes, and a text ends with a NUL. */
    if (event->name.at == NULL || !self->initials[(unsigned char)event->name.at[1]])
        return 0;
    size_t size = (size_t)(event->name.end - event->name.at);
    for (int i = 0; i < self->word_count; i++)
        if (size >= self->word_sizes[i] && memcmp(event->name.at, self->words[i], self->word_sizes[i]) == 0)
            return 1;
    return 0;
}

static enum outcome scan_event(Scanner *self, const Event *event, const char *text, const char *at, const char *end)
{
    Place place = {at - text, end - text, 0};
    uint32_t phase = (unsigned char)event->phase;
    if (!(event->seen & F_PH) || (phase != 'X' && strchr(easy_phases, event->phase) == NULL))
        return GIVEN_BACK;
    self->phases[phase]++;
    if (phase == 'M')
        return append(&self->metadata, &place, sizeof place) ? DONE : NO_MEMORY;
    if ((event->seen & (F_PID | F_TID | F_TS)) != (F_PID | F_TID | F_TS))
        return GIVEN_BACK;
    int64_t time = event->ts_ns;
    if (!self->timed || time < self->low_ns)
        self->low_ns = time;
    if (!self->timed || time > self->high_ns)
        self->high_ns = time;
    self->timed = 1;
    if (time >= self->epoch_ns && time < self->epoch_low_ns)
        self->epoch_low_ns = time;
    self->checksum += (uint64_t)time;
    int64_t number = track_of(&self->table, event);
    if (number < 0 && (number = add_track(&self->table, event->pid, event->tid)) < 0)
        return NO_MEMORY;
    Track *track = TRACK(&self->table, number);
    place.track = (uint32_t)number;
    if (!track->told) {
        if (!append(&self->firsts, &place, sizeof place))
            return NO_MEMORY;
        track->told = 1;
    }
    if (is_named(self, event) && !append(&self->named, &place, sizeof place))
        return NO_MEMORY;
    if (event->seen & F_BIND_ID || (phase != 'X' && strchr(PLAIN_PHASES, event->phase) == NULL))
        self->plain = 0;
    int flow = phase == 's' || phase == 't' || phase == 'f';
    if (event->odd || !(event->seen & F_NAME) || (flow && !(event->seen & F_CAT)))
        self->plain = 0;
    if (phase == 'X') {
        if (event->dur_usable && event->dur_ns >= MOST_DURATION_NS)
            self->plain = 0;
        if (!event->dur_usable || event->dur_decimals > 3 || time > INT64_MAX - event->dur_ns)
            return GIVEN_BACK;
        if (track->rows == 0 && !append(&self->touched, &place.track, sizeof place.track))
            return NO_MEMORY;
        track->rows++;
        RowOfTrack row = {place.track, time, -time - event->dur_ns};
        return append(&self->rows, &row, sizeof row) ? DONE : NO_MEMORY;
    }
    if (flow && !event->direct_id)
        self->plain = 0;
    if (phase == 'C' && self->plain && (event->args.at == NULL || !is_plain_counter(&self->reader, event->args.at)))
        self->plain = 0;
    return DONE;
}

/* Puts the rows of each track together: the starts of all, then the ends of all. */
static int sort_by_track(Scanner *self)
{
    size_t count = self->rows.size / sizeof(RowOfTrack);
    const RowOfTrack *rows = (const RowOfTrack *)(const void *)self->rows.data;
    self->columns.size = 0;
    if (!reserve(&self->columns, 2 * count * sizeof(int64_t) + 1))
        return 0;
    uint32_t at = 0;
    for (size_t i = 0; i < self->touched.size / sizeof(uint32_t); i++) {
        Track *track = TRACK(&self->table, ((uint32_t *)(void *)self->touched.data)[i]);
        track->at = at;
        at += track->rows;
    }
    int64_t *starts = (int64_t *)(void *)self->columns.data, *minus_ends = starts + count;
    for (size_t i = 0; i < count; i++) {
        uint32_t place = TRACK(&self->table, rows[i].track)->at++;
        starts[place] = rows[i].start;
        minus_ends[place] = rows[i].minus_end;
    }
    return 1;
}

static enum outcome scan_text(Scanner *self, const char *text, const char *end)
{
    Reader *reader = &self->reader;
    Event event;
    memset(self->phases, 0, sizeof self->phases);
    self->count = self->checksum = 0;
    self->epoch_low_ns = INT64_MAX;
    self->low_ns = self->high_ns = 0;
    self->timed = 0;
    self->plain = 1;
    reader->end = end;
    reader->escape_u = reader->quoted_g = 0;
    self->rows.size = self->touched.size = self->firsts.size = self->named.size = self->metadata.size = 0;
    if (end - text > MOST_TEXT)
        return GIVEN_BACK;
    for (const char *p = text;;) {
        const char *behind = read_event(reader, p, &event);
        if (behind == NULL)
            return GIVEN_BACK;
        enum outcome outcome = scan_event(self, &event, text, p, behind);
        if (outcome != DONE)
            return outcome;
        self->count++;
        p = skip_space(reader, behind);
        if (p == end)
            break;
        if (*p != ',')
            return GIVEN_BACK;
        p = skip_space(reader, p + 1);
    }
    if (reader->escape_u || ((self->phases['i'] || self->phases['I']) && reader->quoted_g))
        self->plain = 0;
    return sort_by_track(self) ? DONE : NO_MEMORY;
}

/* What was counted in tracks is forgotten; tracks that Python was not told of stay untold. */
static void end_scan(Scanner *self, int done)
{
    for (size_t i = 0; i < self->touched.size / sizeof(uint32_t); i++)
        TRACK(&self->table, ((uint32_t *)(void *)self->touched.data)[i])->rows = 0;
    for (size_t i = 0; !done && i < self->firsts.size / sizeof(Place); i++)
        TRACK(&self->table, ((Place *)(void *)self->firsts.data)[i].track)->told = 0;
}

static PyObject *places_to_list(const Buffer *buffer, int with_track)
{
    size_t count = buffer->size / sizeof(Place);
    const Place *places = (const Place *)(const void *)buffer->data;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = with_track ? Py_BuildValue("nnk", places[i].at, places[i].end, (unsigned long)places[i].track)
                                    : Py_BuildValue("nn", places[i].at, places[i].end);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *rows_to_list(Scanner *self)
{
    const char *starts = self->columns.data;
    const char *minus_ends = starts + self->rows.size / sizeof(RowOfTrack) * sizeof(int64_t);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < self->touched.size / sizeof(uint32_t); i++) {
        uint32_t number = ((uint32_t *)(void *)self->touched.data)[i];
        Py_ssize_t size = (Py_ssize_t)(TRACK(&self->table, number)->rows * sizeof(int64_t));
        PyObject *item = Py_BuildValue("ky#y#", (unsigned long)number, starts, size, minus_ends, size);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        starts += size;
        minus_ends += size;
    }
    return list;
}

static PyObject *phases_to_dict(const Scanner *self)
{
    PyObject *dict = PyDict_New();
    for (int phase = 0; dict != NULL && phase < MOST_PHASES; phase++) {
        if (self->phases[phase] == 0)
            continue;
        char name[2] = {(char)phase, 0};
        PyObject *count = PyLong_FromUnsignedLong(self->phases[phase]);
        if (count == NULL || PyDict_SetItemString(dict, name, count) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(count);
    }
    return dict;
}

static PyObject *time_or_none(int there, int64_t time)
{
    if (!there)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(time);
}

static PyObject *Scanner_scan(PyObject *object, PyObject *argument)
{
    Scanner *self = (Scanner *)object;
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(argument, &text, &size) < 0 || !enter(&self->busy))
        return NULL;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = scan_text(self, text, text + size);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (outcome == GIVEN_BACK) {
        result = Py_None;
        Py_INCREF(result);
    } else if (outcome == NO_MEMORY) {
        PyErr_NoMemory();
    } else {
        PyObject *parts[] = {
            phases_to_dict(self),
            self->plain ? PyLong_FromLongLong((int64_t)(self->checksum & CHECKSUM_MASK)) : time_or_none(0, 0),
            time_or_none(self->timed, self->low_ns),
            time_or_none(self->timed, self->high_ns),
            time_or_none(self->epoch_low_ns != INT64_MAX, self->epoch_low_ns),
            places_to_list(&self->firsts, 1),
            rows_to_list(self),
            places_to_list(&self->named, 0),
            places_to_list(&self->metadata, 0),
        };
        int whole = 1;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            whole &= parts[i] != NULL;
        if (whole)
            result = PyTuple_Pack(9, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7], parts[8]);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            Py_XDECREF(parts[i]);
    }
    end_scan(self, result != NULL && outcome == DONE);
    self->busy = 0;
    return result;
}

static int Scanner_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Scanner *self = (Scanner *)object;
    PyObject *words;
    long long epoch_ns;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "O!L", &PyTuple_Type, &words, &epoch_ns) || !enter(&self->busy))
        return -1;
    self->busy = 0;
    if (PyTuple_Size(words) > MOST_WORDS) {
        PyErr_SetString(PyExc_ValueError, "too many words");
        return -1;
    }
    self->epoch_ns = epoch_ns;
    self->word_count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(words); i++) {
        char *word;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(words, i), &word, &size) < 0)
            return -1;
        if (size < 2 || size > (Py_ssize_t)sizeof self->words[0]) {
            PyErr_SetString(PyExc_ValueError, "a word has 2 to 32 bytes");
            return -1;
        }
        memcpy(self->words[i], word, (size_t)size);
        self->word_sizes[i] = (size_t)size;
        self->initials[(unsigned char)word[1]] = 1;
        self->word_count++;
    }
    return 0;
}

static void Scanner_dealloc(PyObject *object)
{
    Scanner *self = (Scanner *)object;
    Buffer *buffers[] = {&self->rows, &self->columns, &self->touched, &self->firsts, &self->named, &self->metadata};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        free(buffers[i]->data);
    free_table(&self->table);
    free_object(object);
}

static PyMethodDef scanner_methods[] = {
    {"scan", Scanner_scan, METH_O, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot scanner_slots[] = {
    {Py_tp_init, (void *)Scanner_init},
    {Py_tp_dealloc, (void *)Scanner_dealloc},
    {Py_tp_methods, scanner_methods},
    {0, NULL},
};
PyType_Spec scanner_spec = {"tracekit.core._merge.Scanner", sizeof(Scanner), 0, Py_TPFLAGS_DEFAULT, scanner_slots};
