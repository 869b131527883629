#include "row.h"

PyObject *values_of(const Record *row)
{
    if (!is_single(row)) {
        Py_INCREF(row->what.values);
        return row->what.values;
    }
    PyObject *series = object_of(row);
    Py_INCREF(series); /* the collector may run, and other code may take the record */
    PyObject *value = PyFloat_FromDouble(row->what.value), *values = value == NULL ? NULL : PyDict_New();
    if (values != NULL && PyDict_SetItem(values, series, value) < 0)
        Py_CLEAR(values);
    Py_XDECREF(value);
    Py_DECREF(series);
    return values;
}

PyObject *copy_of_values(PyObject *values)
{
    if (Py_TYPE(values) == &PyDict_Type)
        return PyDict_Copy(values);
    PyObject *copy = PyDict_New();
    if (copy != NULL && PyDict_Update(copy, values) < 0)
        Py_CLEAR(copy);
    return copy;
}

int64_t single_kind(PyObject *values, double *value)
{
    PyObject *series, *number;
    Py_ssize_t position = 0;
    if (Py_TYPE(values) != &PyDict_Type || PyDict_Size(values) != 1 || !PyDict_Next(values, &position, &series, &number)
        || !PyUnicode_CheckExact(series) || !PyFloat_CheckExact(number))
        return 0;
    int64_t kind = -(int64_t)(intptr_t)series;
    *value = PyFloat_AsDouble(number);
    return kind < LEAST_KIND ? kind : 0;
}
