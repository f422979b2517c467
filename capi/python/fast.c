/*
 * goccl._fast: the shortest way from Python to an allreduce of NumPy arrays.
 *
 * Where latency counts, a call in Python and one by ctypes cost ten times what the collective does.
 * So goccl.numpy.Communicator derives from Base here, whose allreduce() makes the most common call
 * itself: blocking, of arrays that need no copy, by a plain op. All else, and all that is wrong, it
 * leaves to the method of the class that is written in Python, as if this were not there.
 *
 * It is not linked to libgoccl, nor to NumPy: goccl.numpy hands over what it needs. One file serves
 * all versions of Python from 3.11 on.
 */
#if PY_LIMITED >= 0x030B0000
#define Py_LIMITED_API PY_LIMITED
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include <structmember.h>

#include "goccl.h"

typedef goccl_result (*allreduce_function)(goccl_comm, const void *, void *, uint64_t, goccl_dtype,
                                           goccl_reduce_op, const double *, const goccl_call *,
                                           goccl_work *);

typedef struct {
  PyObject_HEAD unsigned long long handle; /* goccl_comm */
  int recording;                           /* how many threads record a batch */
} Base;

/* Set once, by bind() and use(), and never given back. */
static allreduce_function start;
static PyObject *array_type; /* numpy.ndarray */
static PyObject *dtypes;     /* goccl_dtype by numpy.dtype */
static PyObject *ops;        /* goccl_reduce_op by name */
static PyObject *name_dtype, *name_out, *name_slowly, *name_ended;

static const goccl_call soon = {.struct_size = sizeof soon, .wait_soon = 1};

/* The number of a key in a dict, -1 where there is none. Sets no exception. */
static long number_of(PyObject *numbers, PyObject *key) {
  PyObject *found = PyDict_GetItemWithError(numbers, key);
  long number = found == NULL ? -1 : PyLong_AsLong(found);
  if (number == -1) PyErr_Clear();
  return number;
}

/* The goccl_dtype of an array, -1 where it has none. Sets no exception. */
static long dtype_of(PyObject *array) {
  PyObject *dtype = PyObject_GetAttr(array, name_dtype);
  if (dtype == NULL) {
    PyErr_Clear();
    return -1;
  }
  long number = number_of(dtypes, dtype);
  Py_DECREF(dtype);
  return number;
}

static PyObject *slowly(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
  PyObject *result = NULL, *given = PyTuple_New(n), *named = names == NULL ? NULL : PyDict_New();
  PyObject *method = PyObject_GetAttr(self, name_slowly);
  if (given == NULL || method == NULL || (names != NULL && named == NULL)) goto end;
  for (Py_ssize_t i = 0; i < n; i++) {
    Py_INCREF(args[i]);
    if (PyTuple_SetItem(given, i, args[i]) != 0) goto end;
  }
  for (Py_ssize_t i = 0; names != NULL && i < PyTuple_Size(names); i++) {
    if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[n + i]) != 0) goto end;
  }
  result = PyObject_Call(method, given, named);
end:
  Py_XDECREF(given);
  Py_XDECREF(named);
  Py_XDECREF(method);
  return result;
}

/* allreduce(array, op="sum", *, out): what is called otherwise goes slowly. */
static PyObject *allreduce(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names) {
  Base *base = (Base *)self;
  Py_buffer in, out;
  if (n < 1 || n > 2 || names == NULL || PyTuple_Size(names) != 1 ||
      PyTuple_GetItem(names, 0) != name_out || base->recording != 0 || base->handle == 0)
    return slowly(self, args, n, names);
  PyObject *from = args[0], *to = args[n];
  if ((PyObject *)Py_TYPE(from) != array_type || (PyObject *)Py_TYPE(to) != array_type)
    return slowly(self, args, n, names);
  long dtype = dtype_of(from), op = n == 2 ? number_of(ops, args[1]) : GOCCL_SUM;
  if (dtype < 0 || op < 0 || op == GOCCL_PREMUL_SUM || (to != from && dtype_of(to) != dtype))
    return slowly(self, args, n, names);
  /* NumPy refuses what is read-only, or not contiguous. */
  if (PyObject_GetBuffer(to, &out, PyBUF_WRITABLE) != 0) {
    PyErr_Clear();
    return slowly(self, args, n, names);
  }
  if (to != from && PyObject_GetBuffer(from, &in, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    PyBuffer_Release(&out);
    return slowly(self, args, n, names);
  }
  if (to == from) in = out;
  goccl_result result = GOCCL_INVALID_ARGUMENT;
  goccl_work work = GOCCL_WORK_DONE;
  int fits = out.len > 0 && in.len == out.len;
  if (fits) {
    Py_BEGIN_ALLOW_THREADS;
    result = start(base->handle, in.buf, out.buf, (uint64_t)(out.len / out.itemsize),
                   (goccl_dtype)dtype, (goccl_reduce_op)op, NULL, &soon, &work);
    Py_END_ALLOW_THREADS;
  }
  PyBuffer_Release(&out);
  if (to != from) PyBuffer_Release(&in);
  if (!fits) return slowly(self, args, n, names);
  if (result != GOCCL_OK || work != GOCCL_WORK_DONE) {
    PyObject *method = PyObject_GetAttr(self, name_ended);
    PyObject *done = method == NULL ? NULL
                                    : PyObject_CallFunction(method, "iKOO", (int)result,
                                                            (unsigned long long)work, from, to);
    Py_XDECREF(method);
    if (done == NULL) return NULL;
    Py_DECREF(done);
  }
  Py_INCREF(to);
  return to;
}

static PyMethodDef methods[] = {
    {"allreduce", (PyCFunction)(void (*)(void))allreduce, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"_handle", T_ULONGLONG, offsetof(Base, handle), 0, NULL},
    {"_recording", T_INT, offsetof(Base, recording), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec base_type = {
    .name = "goccl._fast.Base",
    .basicsize = sizeof(Base),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = slots,
};

/* bind(numpy.ndarray, dtypes, ops, docstring of allreduce()). Called once. */
static PyObject *bind(PyObject *module, PyObject *args) {
  (void)module;
  const char *doc;
  PyObject *kind, *known_dtypes, *known_ops;
  if (!PyArg_ParseTuple(args, "OO!O!s", &kind, &PyDict_Type, &known_dtypes, &PyDict_Type,
                        &known_ops, &doc))
    return NULL;
  char *copy = strdup(doc);
  if (copy == NULL) return PyErr_NoMemory();
  methods[0].ml_doc = copy;
  Py_INCREF(array_type = kind);
  Py_INCREF(dtypes = known_dtypes);
  Py_INCREF(ops = known_ops);
  Py_RETURN_NONE;
}

/* use(address of goccl_allreduce()). Called before the first handle is set. */
static PyObject *use(PyObject *module, PyObject *args) {
  (void)module;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "K", &address)) return NULL;
  start = (allreduce_function)(uintptr_t)address;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_VARARGS, NULL},
    {"use", use, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "goccl._fast",
    .m_doc = "The shortest way to an allreduce: see goccl.numpy.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__fast(void) {
  name_dtype = PyUnicode_InternFromString("dtype");
  name_out = PyUnicode_InternFromString("out");
  name_slowly = PyUnicode_InternFromString("_allreduce");
  name_ended = PyUnicode_InternFromString("_end_allreduce");
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL) return NULL;
  PyObject *type = PyType_FromSpec(&base_type);
  if (type == NULL || PyModule_AddObject(module, "Base", type) != 0) {
    Py_XDECREF(type);
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
