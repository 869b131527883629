/* tracekit.core._record: the hot path of recording in C. Pure Python does the same; see _record.pyi. */

#include "batches.h"
#include "encoder.h"
#include "lookup.h"
#include "marker.h"
#include "records.h"
#include "types.h"

#ifdef Py_GIL_DISABLED
#error "the compiled recording relies on the interpreter lock"
#endif

#ifdef TRACEKIT_FAILING_MEMORY
/* Number of the request for memory that fails, counted from here on; 0: no request fails. */
__attribute__((visibility("default"))) long tracekit_requests_left;
#endif

static PyMethodDef functions[] = {
    {"give_methods", give_methods, METH_VARARGS, "See _record.pyi."},
    {"give_lookup", give_lookup, METH_O, "See _record.pyi."},
    {"forget_threads", forget_threads, METH_NOARGS, "See _record.pyi."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    if (records_type != NULL) {
        PyErr_SetString(PyExc_ImportError, "the compiled recording serves one interpreter of a process");
        return -1;
    }
    if (add_type(module, "Encoder", &encoder_spec, NULL) < 0 || add_type(module, "Records", &records_spec, &records_type) < 0)
        return -1;
    if (add_marker_types(module) < 0 || add_batches_type(module) < 0)
        return -1;
    return add_profiler_type(module);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)prepare}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "tracekit.core._record", "What records pay for.", 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__record(void)
{
    return PyModuleDef_Init(&module);
}
