/* tracekit.core._merge: the inner loops of the merge and of the event table in C. Pure Python does the same; see _merge.pyi. */

#include "columns.h"
#include "packets.h"
#include "rewriter.h"
#include "spans.h"

#ifdef TRACEKIT_FAILING_MEMORY
/* Number of the request for memory that fails, counted from here on; 0: no request fails. */
__attribute__((visibility("default"))) long tracekit_requests_left;
#endif

static PyMethodDef functions[] = {
    {"find_events", find_events, METH_VARARGS, "See _merge.pyi."},
    {"arrow_schema", export_schema, METH_VARARGS, "See _merge.pyi."},
    {"arrow_stream", export_stream, METH_VARARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    PyType_Spec *specs[] = {&pftrace_encoder_spec, &rewriter_spec, &columns_spec};
    const char *names[] = {"PftraceEncoder", "Rewriter", "Columns"};
    for (int i = 0; i < 3; i++) {
        PyObject *type = PyType_FromSpec(specs[i]);
        if (type == NULL)
            return -1;
        int failed = PyModule_AddObjectRef(module, names[i], type);
        Py_DECREF(type);
        if (failed)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "tracekit.core._merge", "The inner loops of the merge.", 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__merge(void)
{
    return PyModuleDef_Init(&module);
}
