#include "rows.h"

#include <stdint.h>
#include <string.h>

#include "memory.h"

typedef struct {
    int64_t start, minus_end, index;
} Row;

typedef struct {
    const char *starts, *minus_ends; /* not aligned */
    size_t count, at;
} Columns;

static int64_t number_at(const char *column, size_t index)
{
    int64_t number;
    memcpy(&number, column + index * sizeof number, sizeof number);
    return number;
}

static void put_number(char *column, size_t index, int64_t number)
{
    memcpy(column + index * sizeof number, &number, sizeof number);
}

static int is_before(int64_t start, int64_t minus_end, int64_t other_start, int64_t other_minus_end)
{
    return start < other_start || (start == other_start && minus_end < other_minus_end);
}

static int check_columns(Py_ssize_t size, Py_ssize_t other_size)
{
    if (size == other_size && size % (Py_ssize_t)sizeof(int64_t) == 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "columns of one length of 64-bit integers are wanted");
    return 0;
}

/* ---- Sorting: stretches that are in order are merged, two by two; a trace has few of them. ---- */

static void merge_stretches(const Row *rows, size_t middle, size_t count, Row *out)
{
    size_t left = 0, right = middle;
    while (left < middle && right < count) {
        /* At equal rows the left one, so that the order of the file stays. */
        int take_right = is_before(rows[right].start, rows[right].minus_end, rows[left].start, rows[left].minus_end);
        *out++ = rows[take_right ? right++ : left++];
    }
    memcpy(out, rows + left, (middle - left) * sizeof *rows);
    memcpy(out + (middle - left), rows + right, (count - right) * sizeof *rows);
}

/* Sorts by means of `spare`, which has room for as many rows; returns where they are in the end. */
static Row *sort(Row *rows, Row *spare, size_t *ends, size_t stretches)
{
    while (stretches > 1) {
        size_t from = 0, kept = 0;
        for (size_t i = 0; i < stretches; i += 2) {
            size_t end = i + 1 < stretches ? ends[i + 1] : ends[i];
            merge_stretches(rows + from, ends[i] - from, end - from, spare + from);
            from = ends[kept++] = end;
        }
        stretches = kept;
        Row *other = rows;
        rows = spare;
        spare = other;
    }
    return rows;
}

PyObject *sort_rows(PyObject *module, PyObject *args)
{
    (void)module;
    const char *starts, *minus_ends;
    Py_ssize_t size, other_size;
    long long first;
    if (!PyArg_ParseTuple(args, "y#y#L", &starts, &size, &minus_ends, &other_size, &first) || !check_columns(size, other_size))
        return NULL;
    size_t count = (size_t)size / sizeof(int64_t), stretches = 1;
    for (size_t i = 1; i < count; i++)
        stretches += is_before(number_at(starts, i), number_at(minus_ends, i), number_at(starts, i - 1), number_at(minus_ends, i - 1));
    if (stretches == 1)
        Py_RETURN_NONE;
    Row *rows = tracekit_calloc(count, 2 * sizeof *rows);
    size_t *ends = tracekit_calloc(stretches, sizeof *ends);
    PyObject *result = NULL, *columns[3] = {NULL, NULL, NULL};
    if (rows == NULL || ends == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    for (int i = 0; i < 3; i++)
        if ((columns[i] = PyBytes_FromStringAndSize(NULL, size)) == NULL)
            goto end;
    char *texts[] = {PyBytes_AsString(columns[0]), PyBytes_AsString(columns[1]), PyBytes_AsString(columns[2])};
    Py_BEGIN_ALLOW_THREADS
    size_t stretch = 0;
    for (size_t i = 0; i < count; i++) {
        rows[i] = (Row){number_at(starts, i), number_at(minus_ends, i), (int64_t)i};
        if (i && is_before(rows[i].start, rows[i].minus_end, rows[i - 1].start, rows[i - 1].minus_end))
            ends[stretch++] = i;
    }
    ends[stretch] = count;
    const Row *sorted = sort(rows, rows + count, ends, stretches);
    for (size_t i = 0; i < count; i++) {
        put_number(texts[0], i, sorted[i].start);
        put_number(texts[1], i, sorted[i].minus_end);
        put_number(texts[2], i, (int64_t)((uint64_t)first + (uint64_t)sorted[i].index));
    }
    Py_END_ALLOW_THREADS
    result = PyTuple_Pack(3, columns[0], columns[1], columns[2]);
end:
    for (int i = 0; i < 3; i++)
        Py_XDECREF(columns[i]);
    free(rows);
    free(ends);
    return result;
}

PyObject *least(PyObject *module, PyObject *args)
{
    (void)module;
    const char *column;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "y#", &column, &size) || !check_columns(size, size))
        return NULL;
    if (size == 0) {
        PyErr_SetString(PyExc_ValueError, "a column of at least one number is wanted");
        return NULL;
    }
    int64_t found = number_at(column, 0);
    for (size_t i = 1; i < (size_t)size / sizeof(int64_t); i++) {
        int64_t number = number_at(column, i);
        found = number < found ? number : found;
    }
    return PyLong_FromLongLong(found);
}

/* ---- Nesting. ---- */

/* What is open, as -end, the outermost first. What never ends is not in it. */
typedef struct {
    int64_t *minus_ends;
    size_t count, room;
} Stack;

#define MAX_DEPTH 512 /* see tracekit.formats.event_fields */

enum outcome { NESTED, OVERLAPPING, NO_MEMORY };

static int open_stack(Stack *stack, const char *open, Py_ssize_t size)
{
    stack->count = (size_t)size / sizeof(int64_t);
    stack->room = stack->count + 64;
    stack->minus_ends = tracekit_calloc(stack->room, sizeof(int64_t));
    if (stack->minus_ends == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(stack->minus_ends, open, stack->count * sizeof(int64_t));
    return 1;
}

static enum outcome push(Stack *stack, int64_t start, int64_t minus_end)
{
    /* end <= start, without a number that 64 bits do not hold. */
    while (stack->count && -1 - stack->minus_ends[stack->count - 1] < start)
        stack->count--;
    if (stack->count && minus_end < stack->minus_ends[stack->count - 1])
        return OVERLAPPING;
    if (stack->count >= MAX_DEPTH)
        return OVERLAPPING;
    if (stack->count == stack->room) {
        size_t room = stack->room * 2;
        int64_t *more = room > SIZE_MAX / sizeof *more ? NULL : tracekit_realloc(stack->minus_ends, room * sizeof *more);
        if (more == NULL)
            return NO_MEMORY;
        stack->minus_ends = more;
        stack->room = room;
    }
    stack->minus_ends[stack->count++] = minus_end;
    return NESTED;
}

static PyObject *stack_or_none(Stack *stack, enum outcome outcome)
{
    PyObject *result = NULL;
    if (outcome == NO_MEMORY)
        PyErr_NoMemory();
    else if (outcome == OVERLAPPING)
        result = Py_BuildValue("");
    else
        result = PyBytes_FromStringAndSize((const char *)stack->minus_ends, (Py_ssize_t)(stack->count * sizeof(int64_t)));
    free(stack->minus_ends);
    return result;
}

PyObject *nest(PyObject *module, PyObject *args)
{
    (void)module;
    const char *starts, *minus_ends, *open;
    Py_ssize_t size, other_size, open_size;
    Stack stack;
    if (!PyArg_ParseTuple(args, "y#y#y#", &starts, &size, &minus_ends, &other_size, &open, &open_size)
        || !check_columns(size, other_size) || !check_columns(open_size, open_size) || !open_stack(&stack, open, open_size))
        return NULL;
    enum outcome outcome = NESTED;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < (size_t)size / sizeof(int64_t) && outcome == NESTED; i++)
        outcome = push(&stack, number_at(starts, i), number_at(minus_ends, i));
    Py_END_ALLOW_THREADS
    return stack_or_none(&stack, outcome);
}

static int window_is_before(const Columns *window, const Columns *other)
{
    return is_before(number_at(window->starts, window->at), number_at(window->minus_ends, window->at),
                     number_at(other->starts, other->at), number_at(other->minus_ends, other->at));
}

/* Takes rows in order from all windows, until one has no more. */
static enum outcome nest_windows(Columns *windows, size_t count, Stack *stack)
{
    for (;;) {
        Columns *first = &windows[0], *second = NULL;
        for (size_t i = 1; i < count; i++) {
            if (window_is_before(&windows[i], first)) {
                second = first;
                first = &windows[i];
            } else if (second == NULL || window_is_before(&windows[i], second)) {
                second = &windows[i];
            }
        }
        do {
            enum outcome outcome = push(stack, number_at(first->starts, first->at), number_at(first->minus_ends, first->at));
            if (outcome != NESTED)
                return outcome;
            if (++first->at == first->count)
                return NESTED;
        } while (second == NULL || !window_is_before(second, first));
    }
}

PyObject *nest_merged(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *list;
    const char *open;
    Py_ssize_t open_size;
    Stack stack;
    if (!PyArg_ParseTuple(args, "O!y#", &PyList_Type, &list, &open, &open_size) || !check_columns(open_size, open_size))
        return NULL;
    size_t count = (size_t)PyList_Size(list);
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "at least one window is wanted");
        return NULL;
    }
    /* The tuple keeps the columns, whatever becomes of the list. */
    PyObject *kept = PyList_AsTuple(list);
    Columns *windows = kept == NULL ? NULL : tracekit_calloc(count, sizeof *windows);
    PyObject *result = NULL, *places = NULL, *left = NULL;
    if (windows == NULL) {
        if (kept != NULL)
            PyErr_NoMemory();
        Py_XDECREF(kept);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        Py_ssize_t size, other_size, at;
        PyObject *window = PyTuple_GetItem(kept, (Py_ssize_t)i);
        if (window == NULL || !PyTuple_Check(window)) {
            PyErr_SetString(PyExc_TypeError, "a window is a tuple");
            goto end;
        }
        if (!PyArg_ParseTuple(window, "y#y#n", &windows[i].starts, &size, &windows[i].minus_ends, &other_size, &at)
            || !check_columns(size, other_size))
            goto end;
        windows[i].count = (size_t)size / sizeof(int64_t);
        if (at < 0 || (size_t)at >= windows[i].count) {
            PyErr_SetString(PyExc_ValueError, "a window holds no row at its place");
            goto end;
        }
        windows[i].at = (size_t)at;
    }
    if (!open_stack(&stack, open, open_size))
        goto end;
    enum outcome outcome;
    Py_BEGIN_ALLOW_THREADS
    outcome = nest_windows(windows, count, &stack);
    Py_END_ALLOW_THREADS
    left = stack_or_none(&stack, outcome);
    places = left == NULL ? NULL : PyList_New(0);
    for (size_t i = 0; places != NULL && i < count; i++) {
        PyObject *place = PyLong_FromSize_t(windows[i].at);
        if (place == NULL || PyList_Append(places, place) < 0)
            Py_CLEAR(places);
        Py_XDECREF(place);
    }
    if (places != NULL)
        result = PyTuple_Pack(2, places, left);
end:
    Py_XDECREF(places);
    Py_XDECREF(left);
    Py_DECREF(kept);
    free(windows);
    return result;
}
