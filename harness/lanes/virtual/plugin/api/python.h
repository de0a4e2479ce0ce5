// The process's Python, for questions.c alone. But for python_enter and frames_site these are for
// threads that hold the GIL.
#ifndef XLA_HARNESS_VIRTUAL_TPU_PYTHON_H_
#define XLA_HARNESS_VIRTUAL_TPU_PYTHON_H_

#include "api/api.h"

// Return whether this thread holds the GIL; any thread may call this while Python runs.
int python_is_held(void);
// Take the GIL, for as long as that takes, and give it back.
int python_enter(void);
void python_leave(int state);
// Call `method` of the Python half and return the string that it returns, to be freed; NULL if it
// failed. With a `thread`, by Python's number, it is called with the frames of all threads and that
// number. An exception that is being raised stays as it is. Garbage, in which there may be tensors,
// is kept for later.
char *python_call(const char *method, unsigned long thread);

// --- frames.c
// Return the file and line that this call comes from, read without the GIL, to be freed. NULL in a
// thread that is not Python's, and where frames can't be read.
char *frames_site(void);

#endif  // XLA_HARNESS_VIRTUAL_TPU_PYTHON_H_
