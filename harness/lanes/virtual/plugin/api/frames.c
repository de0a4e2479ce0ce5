#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/python.h"

// Where this thread is in Python, without the GIL. While it is in a function of C nobody changes
// the frames that lead there, so it may read them. Only the layout of CPython's structures has to
// be known; the Python half compares what is read here with what Python says before this is used.

// Offsets in CPython's PyThreadState, _PyCFrame, _PyInterpreterFrame, PyCodeObject and
// PyASCIIObject, which are fixed for each minor release.
typedef struct {
  int minor;
  // Of a thread; then of what that points to, or -1 if it points to the frame itself.
  int current, frame;
  int code, previous, instruction, owner;  // of a frame
  int file, name, instructions;            // of a code object
  int text;                                // of a string that is compact and ASCII
} Layout;
static const Layout LAYOUTS[] = {
    {11, 56, 8, 32, 48, 56, 69, 112, 120, 184, 48},
    {12, 56, 0, 0, 8, 56, 70, 112, 120, 192, 40},
    {13, 72, -1, 0, 8, 56, 70, 112, 120, 200, 40},
};
enum { OWNED_BY_C = 3, TEXT_STATE = 32, ASCII = 0x60, DEEPEST = 12 };

static struct {
  const Layout *_Atomic layout;  // NULL when nothing may be read
  atomic_int readers;
  char *libraries, *runners;  // folders, one a line, of what is not the user's, and calls tests
  void *(*PyGILState_GetThisThreadState)(void);
  int (*PyCode_Addr2Line)(void *, int);
} reader;

typedef struct {
  const char *file, *name;
  int line;
} Place;

static void *pointer_at(const void *object, int offset) {
  return *(void *const *)((const char *)object + offset);
}

// Return a string's text; NULL if it is not ASCII.
static const char *text_of(const Layout *layout, const char *string) {
  unsigned state;
  memcpy(&state, string + TEXT_STATE, sizeof state);
  return (state & ASCII) == ASCII ? string + layout->text : NULL;
}

// Return the innermost frame of this thread that runs Python; NULL without one.
static const char *first_frame(const Layout *layout) {
  const void *thread = reader.PyGILState_GetThisThreadState();
  const char *current = thread == NULL ? NULL : pointer_at(thread, layout->current);
  if (current != NULL && layout->frame >= 0) current = pointer_at(current, layout->frame);
  return current;
}

// Move `*frame` to the next one that is not the interpreter's own; NULL behind the last.
static void skip_own(const Layout *layout, const char **frame) {
  while (layout->minor > 11 && *frame != NULL && (*frame)[layout->owner] == OWNED_BY_C) {
    *frame = pointer_at(*frame, layout->previous);
  }
}

// Read a frame's place and move to the one that called it. 0 if it can't be told.
static int read_place(const Layout *layout, const char **frame, Place *place) {
  char *code = pointer_at(*frame, layout->code);
  place->file = text_of(layout, pointer_at(code, layout->file));
  place->name = text_of(layout, pointer_at(code, layout->name));
  const char *instruction = pointer_at(*frame, layout->instruction);
  place->line = reader.PyCode_Addr2Line(code, (int)(instruction - (code + layout->instructions)));
  *frame = pointer_at(*frame, layout->previous);
  skip_own(layout, frame);
  return place->file != NULL && place->name != NULL;
}

static int starts_with_one_of(const char *file, const char *folders) {
  while (*folders != '\0') {
    const size_t length = strcspn(folders, "\n");
    if (length > 0 && strncmp(file, folders, length) == 0) return 1;
    folders += length + (folders[length] == '\n');
  }
  return 0;
}

// Write the file and line of the caller as site() of the Python half does. Returns 0 if a frame
// can't be read.
static int write_site(const Layout *layout, const char *frame, FILE *to) {
  for (int written = 0; frame != NULL;) {
    Place place;
    if (!read_place(layout, &frame, &place)) return 0;
    if (starts_with_one_of(place.file, reader.runners)) break;
    if (starts_with_one_of(place.file, reader.libraries)) continue;
    if (written == DEEPEST) {
      fprintf(to, ", ...");
      break;
    }
    fprintf(to, "%s%s:%d %s", written++ == 0 ? "" : ", called from ", place.file, place.line,
            place.name);
  }
  return 1;
}

static int write_all(const Layout *layout, const char *frame, FILE *to) {
  while (frame != NULL) {
    Place place;
    if (!read_place(layout, &frame, &place)) return 0;
    fprintf(to, "%s:%d %s\n", place.file, place.line, place.name);
  }
  return 1;
}

// Return what `write` makes of this thread's frames, to be freed; NULL if it has none or they can't
// be read.
static char *read_frames(int (*write)(const Layout *, const char *, FILE *)) {
  char *text = NULL;
  size_t size;
  ++reader.readers;  // before it asks whether it may read
  const Layout *layout = reader.layout;
  const char *frame = layout == NULL ? NULL : first_frame(layout);
  if (frame != NULL) skip_own(layout, &frame);
  FILE *stream = frame == NULL ? NULL : open_memstream(&text, &size);
  if (stream != NULL) {
    const int is_whole = write(layout, frame, stream);
    fclose(stream);
    if (!is_whole) {
      free(text);
      text = NULL;
    }
  }
  --reader.readers;
  return text;
}

char *frames_site(void) { return read_frames(write_site); }

// Return where all frames of the caller are, innermost first, to be freed; NULL if they can't be
// read.
VIRTUAL_TPU_EXPORT char *virtual_tpu_frames(void) { return read_frames(write_all); }

// Read frames as Python 3.`minor` has them from now on, if that is known. The files in `libraries`
// are not the user's, and those in `runners` call tests: folders, one a line.
VIRTUAL_TPU_EXPORT void virtual_tpu_read_frames(int minor, const char *libraries,
                                                const char *runners) {
  *(void **)&reader.PyGILState_GetThisThreadState =
      dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
  *(void **)&reader.PyCode_Addr2Line = dlsym(RTLD_DEFAULT, "PyCode_Addr2Line");
  if (reader.PyGILState_GetThisThreadState == NULL || reader.PyCode_Addr2Line == NULL) return;
  reader.libraries = strdup(libraries);
  reader.runners = strdup(runners);
  if (reader.libraries == NULL || reader.runners == NULL) abort();
  for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; ++i) {
    if (LAYOUTS[i].minor == minor) reader.layout = &LAYOUTS[i];
  }
}

// Read no more frames, and wait for who is reading some: Python is about to free them.
VIRTUAL_TPU_EXPORT void virtual_tpu_leave_frames(void) {
  reader.layout = NULL;
  while (reader.readers > 0) sched_yield();
}
