/* The ends of events in a text: the fast way of `find_events` in tracekit.formats.json.window. */

#include "spans.h"
#include "growing.h"
#include "reader.h"

typedef struct {
    int64_t at, end;
} EventSpan;

/* Finds events that begin before a limit, with commas between them, up to the first incomplete or malformed one. Returns 0 without
   memory. */
static int scan_events(Reader *reader, const char *text, const char *p, const char *limit, Buffer *spans)
{
    const char *end;
    while (p < limit && *p == '{' && (end = skip_container(reader, p)) != NULL) {
        EventSpan span = {p - text, end - text};
        if (!append(spans, &span, sizeof span))
            return 0;
        p = skip_space(reader, end);
        if (*p != ',')
            break;
        p = skip_space(reader, p + 1);
    }
    return 1;
}

PyObject *find_events(PyObject *module, PyObject *args)
{
    PyObject *bytes;
    char *text;
    Py_ssize_t size, at, limit;
    (void)module;
    if (!PyArg_ParseTuple(args, "Snn", &bytes, &at, &limit) || PyBytes_AsStringAndSize(bytes, &text, &size) < 0)
        return NULL;
    if (at < 0 || at > size || limit < 0 || limit > size) {
        PyErr_SetString(PyExc_ValueError, "no place of the text");
        return NULL;
    }
    Reader *reader = tracekit_calloc(1, sizeof *reader);
    if (reader == NULL)
        return PyErr_NoMemory();
    Buffer spans = {0};
    int done;
    Py_BEGIN_ALLOW_THREADS
    reader->end = text + size;
    done = scan_events(reader, text, text + at, text + limit, &spans);
    free(reader);
    Py_END_ALLOW_THREADS
    PyObject *result = done ? PyBytes_FromStringAndSize(spans.data, (Py_ssize_t)spans.size) : PyErr_NoMemory();
    free(spans.data);
    return result;
}
