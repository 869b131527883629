/* On which tracks slices overlap and do not nest: what `Lanes._look` in tracekit.recording.lanes finds out. */

#include "memory.h"
#include "records.h"

#define MOST_TRACKS (1 << 24)

typedef struct {
    int64_t start, end;
} Slice;

/* What may hold the slices of a track that come, the outermost first. */
typedef struct {
    Slice *slices;
    size_t count, room;
    int tangled;
} Stack;

static int nest_slice(Stack *stack, int64_t start, int64_t end)
{
    if (stack->count && stack->slices[stack->count - 1].end > start) {
        while (stack->count && stack->slices[stack->count - 1].start >= start)
            stack->count--;
        if (stack->count && stack->slices[stack->count - 1].end > start)
            stack->tangled = 1;
    }
    if (stack->count == stack->room) {
        size_t room = stack->room ? stack->room * 2 : 32;
        Slice *slices = tracekit_realloc(stack->slices, room * sizeof *slices);
        if (slices == NULL)
            return -1;
        stack->slices = slices;
        stack->room = room;
    }
    stack->slices[stack->count++] = (Slice){start, end};
    return 0;
}

static PyObject *tangled_tracks(const Stack *stacks, size_t count)
{
    PyObject *tracks = PySet_New(NULL);
    for (size_t i = 0; tracks != NULL && i < count; i++) {
        if (!stacks[i].tangled)
            continue;
        PyObject *track = PyLong_FromSize_t(i);
        if (track == NULL || PySet_Add(tracks, track) < 0)
            Py_CLEAR(tracks);
        Py_XDECREF(track);
    }
    return tracks;
}

PyObject *records_overlapping(PyObject *object, PyObject *opened)
{
    Records *self = (Records *)object;
    Records *open_slices = (Records *)PyObject_CallFunctionObjArgs((PyObject *)records_type, opened, NULL);
    if (open_slices == NULL)
        return NULL;
    /* What another thread appends meanwhile, where there is room, is not looked at. */
    const Record *rows[] = {self->rows, open_slices->rows};
    const size_t counts[] = {self->count, open_slices->count};
    int64_t last = -1, least = 0;
    for (int part = 0; part < 2; part++) {
        for (size_t i = 0; i < counts[part]; i++) {
            const Record *row = rows[part] + i;
            if (row->kind < 0)
                continue;
            last = row->what.track > last ? row->what.track : last;
            least = row->what.track < least ? row->what.track : least;
        }
    }
    PyObject *tracks = NULL;
    size_t count = (size_t)(last + 1);
    Stack *stacks = last >= MOST_TRACKS || least < 0 ? NULL : tracekit_calloc(count ? count : 1, sizeof *stacks);
    if (stacks == NULL) {
        if (last >= MOST_TRACKS || least < 0)
            PyErr_SetString(PyExc_ValueError, "there is no such track");
        else
            PyErr_NoMemory();
        Py_DECREF(open_slices);
        return NULL;
    }
    int failed = 0;
    self->busy++;
    Py_BEGIN_ALLOW_THREADS
    for (int part = 0; part < 2; part++) {
        for (size_t i = 0; i < counts[part] && !failed; i++) {
            const Record *row = rows[part] + i;
            if (row->kind >= 0)
                failed = nest_slice(stacks + row->what.track, row->time, row->kind);
        }
    }
    Py_END_ALLOW_THREADS
    self->busy--;
    if (failed)
        PyErr_NoMemory();
    else
        tracks = tangled_tracks(stacks, count);
    for (size_t i = 0; i < count; i++)
        free(stacks[i].slices);
    free(stacks);
    Py_DECREF(open_slices);
    return tracks;
}
