#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

// The few calls of Python's stable ABI that are needed, found in the process: the plugin is one
// file for every version of Python, and for programs that have none.
static struct {
  int (*Py_IsInitialized)(void);
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int);
  void (*PyErr_Fetch)(void **, void **, void **);
  void (*PyErr_Restore)(void *, void *, void *);
  void (*PyErr_Print)(void);
  void *(*PyImport_ImportModule)(const char *);
  void *(*PyObject_CallMethod)(void *, const char *, const char *, ...);
  const char *(*PyUnicode_AsUTF8AndSize)(void *, long *);
  void (*Py_DecRef)(void *);
} py;

static int find(void) {
#define FIND(name) *(void **)&py.name = dlsym(RTLD_DEFAULT, #name)
  FIND(Py_IsInitialized);
  if (py.Py_IsInitialized == NULL || !py.Py_IsInitialized()) return 0;
  FIND(PyGILState_Ensure);
  FIND(PyGILState_Release);
  FIND(PyErr_Fetch);
  FIND(PyErr_Restore);
  FIND(PyErr_Print);
  FIND(PyImport_ImportModule);
  FIND(PyObject_CallMethod);
  FIND(PyUnicode_AsUTF8AndSize);
  FIND(Py_DecRef);
#undef FIND
  return 1;
}

// What `method` of the Python half returns, if that is a string; to be freed. An exception that
// was on its way is left as it was.
static char *call(const char *method) {
  char *copy = NULL;
  void *type, *value, *traceback;
  const int state = py.PyGILState_Ensure();
  py.PyErr_Fetch(&type, &value, &traceback);
  void *module = py.PyImport_ImportModule("harness.lanes.virtual_tpu.process");
  void *result = module == NULL ? NULL : py.PyObject_CallMethod(module, method, NULL);
  if (result == NULL) {
    fprintf(stderr, "virtual TPU: its Python half failed in %s():\n", method);
    py.PyErr_Print();
  } else {
    const char *text = py.PyUnicode_AsUTF8AndSize(result, NULL);
    if (text == NULL) {
      py.PyErr_Print();
    } else {
      copy = strdup(text);
    }
    py.Py_DecRef(result);
  }
  if (module != NULL) py.Py_DecRef(module);
  py.PyErr_Restore(type, value, traceback);
  py.PyGILState_Release(state);
  return copy;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int available;

static void look(void) { available = find(); }

void python_find(void) { pthread_once(&once, look); }

void python_start(void) {
  python_find();
  static _Thread_local int inside;  // the Python half may ask for this library's functions
  if (!available || inside) return;
  inside = 1;
  free(call("start"));
  inside = 0;
}

char *python_stack(void) { return available ? call("stack") : NULL; }

char *python_stacks(void) { return available ? call("stacks") : NULL; }

char *python_stablehlo(void) { return available ? call("stablehlo") : NULL; }

char *python_site(void) { return available ? call("site") : NULL; }
