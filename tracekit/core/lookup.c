/* A profiler's marker by its name: `Profiler.marker` in tracekit.recording.profiler for calls with only a known name. */

#include "lookup.h"

#include <stddef.h>

#include "types.h"

typedef struct {
    PyObject_HEAD
    PyObject *by_name; /* a dict */
} ProfilerBase;

static PyTypeObject *profiler_type;

/* Calls a method of Python with the arguments of this one. */
static PyObject *pass_on(PyObject *self, const char *method, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    PyObject *positional = PyTuple_New(count), *keywords = PyDict_New(), *result = NULL;
    if (positional == NULL || keywords == NULL)
        goto end;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(positional, i, args[i]);
    }
    for (Py_ssize_t i = 0; i < named; i++)
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[count + i]) < 0)
            goto end;
    PyObject *bound = PyObject_GetAttrString(self, method);
    if (bound != NULL)
        result = PyObject_Call(bound, positional, keywords);
    Py_XDECREF(bound);
end:
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return result;
}

static PyObject *marker(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    ProfilerBase *self = (ProfilerBase *)object;
    if (count == 1 && names == NULL && self->by_name != NULL) {
        PyObject *found = PyDict_GetItemWithError(self->by_name, args[0]);
        if (found != NULL) {
            Py_INCREF(found);
            return found;
        }
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return NULL;
            PyErr_Clear(); /* not a string, and its hash raises */
        }
    }
    return pass_on(object, "_marker_in_python", args, count, names);
}

static PyMethodDef method = {
    "marker", (PyCFunction)(void (*)(void))marker, METH_FASTCALL | METH_KEYWORDS,
    "marker($self, name, categories=(), actions=..., record_instant_on_start=False, record_instant_on_finish=False)\n--\n\n"
    "Return the marker of that name; the same arguments give the same marker.\n\n"
    "        Args:\n"
    "            name: Name of its slices. Names beyond 50,000 share the marker \"(other names)\"; there is a warning at 10,000.\n"
    "            categories: Categories for filtering; one text or several.\n"
    "            actions: The schedule's actions during which it records, one or several; by default all but SKIP.\n"
    "            record_instant_on_start: Also record an instant at the start of each slice.\n"
    "            record_instant_on_finish: Also record one at its finish.\n"
    "        ",
};

PyObject *give_lookup(PyObject *module, PyObject *class)
{
    (void)module;
    if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, profiler_type)) {
        PyErr_SetString(PyExc_TypeError, "a class of profilers is wanted");
        return NULL;
    }
    PyObject *python = PyObject_GetAttrString(class, "marker"), *ours = PyDescr_NewMethod((PyTypeObject *)class, &method);
    int failed = python == NULL || ours == NULL || PyObject_SetAttrString(class, "_marker_in_python", python) < 0
                 || PyObject_SetAttrString(class, "marker", ours) < 0;
    Py_XDECREF(python);
    Py_XDECREF(ours);
    return failed ? NULL : Py_BuildValue("");
}

/* ---- The type. ---- */

static PyObject *get_by_name(PyObject *object, void *none)
{
    (void)none;
    return get_object(((ProfilerBase *)object)->by_name, "_by_name");
}

static int set_by_name(PyObject *object, PyObject *value, void *none)
{
    (void)none;
    return put_checked(&((ProfilerBase *)object)->by_name, value, &PyDict_Type);
}

static int visit_profiler(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(((ProfilerBase *)object)->by_name);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear_profiler(PyObject *object)
{
    return set_by_name(object, NULL, NULL);
}

static void end_profiler(PyObject *object)
{
    end_object(object, clear_profiler);
}

static PyGetSetDef fields[] = {{"_by_name", get_by_name, set_by_name, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot slots[] = {
    {Py_tp_doc, "See _record.pyi."}, {Py_tp_traverse, visit_profiler}, {Py_tp_clear, clear_profiler},
    {Py_tp_dealloc, end_profiler}, {Py_tp_getset, fields}, {0, NULL},
};
static PyType_Spec spec = {
    "tracekit.core._record.ProfilerBase", sizeof(ProfilerBase), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots,
};

int add_profiler_type(PyObject *module)
{
    return add_type(module, "ProfilerBase", &spec, &profiler_type);
}
