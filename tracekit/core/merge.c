/* tracekit.core._merge: the inner loops of the merge in C. What they do, Python does too; see _merge.pyi. */

#include "rows.h"
#include "tracks.h"

#ifdef TRACEKIT_FAILING_MEMORY
/* Which request for memory fails, counted from here on; 0: none does. */
__attribute__((visibility("default"))) long tracekit_requests_left;
#endif

static PyMethodDef functions[] = {
    {"sort_rows", sort_rows, METH_VARARGS, "See _merge.pyi."},
    {"least", least, METH_VARARGS, "See _merge.pyi."},
    {"nest", nest, METH_VARARGS, "See _merge.pyi."},
    {"nest_merged", nest_merged, METH_VARARGS, "See _merge.pyi."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    PyType_Spec *specs[] = {&scanner_spec, &patcher_spec};
    const char *names[] = {"Scanner", "Patcher"};
    for (int i = 0; i < 2; i++) {
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
