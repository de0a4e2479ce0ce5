#define _GNU_SOURCE
#include "api/python.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The few calls of Python's stable ABI that are needed, found in the process: the plugin is one
// file for every version of Python, and for programs that have none.
static struct {
  int (*Py_IsInitialized)(void);
  int (*Py_IsFinalizing)(void);  // public from Python 3.13 on
  int (*PyGILState_Check)(void);
  int (*PyGILState_Ensure)(void);
  void (*PyGILState_Release)(int);
  void (*PyErr_Fetch)(void **, void **, void **);
  void (*PyErr_Restore)(void *, void *, void *);
  void (*PyErr_Print)(void);
  void *(*PyImport_ImportModule)(const char *);
  void *(*PyObject_CallMethod)(void *, const char *, const char *, ...);
  void *(*PyObject_GetAttrString)(void *, const char *);
  int (*PyObject_IsTrue)(void *);
  const char *(*PyUnicode_AsUTF8AndSize)(void *, long *);
  void *(*PyList_New)(long);
  int (*PyList_Append)(void *, void *);
  void *(*PyTuple_Pack)(long, ...);
  int (*PyDict_Next)(void *, long *, void **, void **);
  int (*PyGC_Disable)(void);
  int (*PyGC_Enable)(void);
  void (*Py_IncRef)(void *);
  void (*Py_DecRef)(void *);
} py;

static int find(void) {
#define FIND(name) *(void **)&py.name = dlsym(RTLD_DEFAULT, #name)
  FIND(Py_IsInitialized);
  if (py.Py_IsInitialized == NULL || !py.Py_IsInitialized()) return 0;
  FIND(Py_IsFinalizing);
  if (py.Py_IsFinalizing == NULL)
    *(void **)&py.Py_IsFinalizing = dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  FIND(PyGILState_Check);
  FIND(PyGILState_Ensure);
  FIND(PyGILState_Release);
  FIND(PyErr_Fetch);
  FIND(PyErr_Restore);
  FIND(PyErr_Print);
  FIND(PyImport_ImportModule);
  FIND(PyObject_CallMethod);
  FIND(PyObject_GetAttrString);
  FIND(PyObject_IsTrue);
  FIND(PyUnicode_AsUTF8AndSize);
  FIND(PyList_New);
  FIND(PyList_Append);
  FIND(PyTuple_Pack);
  FIND(PyDict_Next);
  FIND(PyGC_Disable);
  FIND(PyGC_Enable);
  FIND(Py_IncRef);
  FIND(Py_DecRef);
#undef FIND
  return 1;
}

// Append (thread, code, line) of each frame of a thread, innermost first. 0 on an exception.
static int add_frames(void *list, void *thread, void *frame) {
  int is_added = 1;
  py.Py_IncRef(frame);
  while (is_added && py.PyObject_IsTrue(frame)) {  // None is behind the last one
    void *code = py.PyObject_GetAttrString(frame, "f_code");
    void *line = py.PyObject_GetAttrString(frame, "f_lineno");
    void *back = py.PyObject_GetAttrString(frame, "f_back");
    void *entry = code && line && back ? py.PyTuple_Pack(3, thread, code, line) : NULL;
    is_added = entry != NULL && py.PyList_Append(list, entry) == 0;
    void *const done[] = {entry, line, code, frame};
    for (size_t i = 0; i < sizeof done / sizeof *done; ++i) {
      if (done[i] != NULL) py.Py_DecRef(done[i]);
    }
    frame = back;
  }
  if (frame != NULL) py.Py_DecRef(frame);
  return is_added;
}

// Return where every thread of Python is: a list of (thread, code, line). No frame may be held
// while Python code runs. That lets other threads go on, and a frame that its thread has left
// meanwhile dies with its variables in this one; TorchTPU ends a process if a tensor dies in a
// thread of its.
static void *frames(void) {
  void *module = py.PyImport_ImportModule("sys");
  void *threads = module == NULL ? NULL : py.PyObject_CallMethod(module, "_current_frames", NULL);
  void *list = threads == NULL ? NULL : py.PyList_New(0);
  void *thread, *frame;
  long at = 0;
  int is_added = list != NULL;
  while (is_added && py.PyDict_Next(threads, &at, &thread, &frame)) {
    is_added = add_frames(list, thread, frame);
  }
  if (threads != NULL) py.Py_DecRef(threads);
  if (module != NULL) py.Py_DecRef(module);
  if (is_added || list == NULL) return list;
  py.Py_DecRef(list);
  return NULL;
}

// Call `method`, with the frames of all threads and a thread's number unless that is 0.
static void *result_of(const char *method, unsigned long thread) {
  void *module = py.PyImport_ImportModule("harness.lanes.virtual.process");
  void *list = thread != 0 && module != NULL ? frames() : NULL, *result = NULL;
  if (module != NULL && thread == 0) result = py.PyObject_CallMethod(module, method, NULL);
  if (list != NULL) result = py.PyObject_CallMethod(module, method, "Ok", list, thread);
  if (list != NULL) py.Py_DecRef(list);
  if (module != NULL) py.Py_DecRef(module);
  return result;
}

char *python_call(const char *method, unsigned long thread) {
  char *copy = NULL;
  void *type, *value, *traceback;
  const int collects = py.PyGC_Disable();
  py.PyErr_Fetch(&type, &value, &traceback);
  void *result = result_of(method, thread);
  if (result == NULL) {
    fprintf(stderr, "%s %s():\n", in_own_words("its Python half failed in"), method);
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
  py.PyErr_Restore(type, value, traceback);
  if (collects) py.PyGC_Enable();
  return copy;
}

int python_enter(void) { return py.PyGILState_Ensure(); }

void python_leave(int state) { py.PyGILState_Release(state); }

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int available;

static void look(void) { available = find(); }

void python_find(void) { pthread_once(&once, look); }

int python_is_thread(void) {
  void *(*state)(void);
  *(void **)&state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
  return state == NULL || state() != NULL;
}

int python_runs(void) {
  if (!available || !py.Py_IsInitialized()) return 0;
  return py.Py_IsFinalizing == NULL || !py.Py_IsFinalizing();
}

int python_is_held(void) { return py.PyGILState_Check(); }

void python_start(void) {
  python_find();
  static _Thread_local int inside;  // the Python half may ask for this library's functions
  if (!python_runs() || inside) return;
  inside = 1;
  const int state = python_enter();
  free(python_call("start", 0));
  python_leave(state);
  inside = 0;
}
