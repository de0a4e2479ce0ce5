#include <stdio.h>
#include <string.h>

#include "compile/compile.h"

// Is told of every program that is submitted and its options, before anything is changed in them,
// and the number that its executions have in the event log; 0 if it did not compile.
typedef void (*Listener)(const PJRT_Program *program, const char *options, size_t options_size,
                         unsigned number);
static Listener listener;

VIRTUAL_TPU_EXPORT void virtual_tpu_set_listener(Listener function) { listener = function; }

// Write an event for an option without effect; its caller is the context.
static void write_option(const char *name, size_t size, const void *caller) {
  char text[128], quoted[256];
  snprintf(text, sizeof text, "%.*s", (int)(size < sizeof text ? size : sizeof text - 1), name);
  event_write("option", caller, NULL, ", \"option\": %s", event_quote(quoted, sizeof quoted, text));
}

// Whether there are more devices than this machine can run programs on, so that each is a stand-in.
static int runs_nothing(void) {
  const char *stands_in = variable("VIRTUAL_TPU_STAND_IN");
  return stands_in != NULL && strcmp(stands_in, "all") == 0;
}

static PJRT_Error *compile(PJRT_Client_Compile_Args *args) {
  const void *caller = CALLER;
  PJRT_Error *forked = devices_check_process();
  if (forked != NULL) return forked;
  event_compilation("compile", caller, args->program);
  options_ignored(args->compile_options, args->compile_options_size, write_option, caller);
  PJRT_Error *error = options_refused(args->compile_options, args->compile_options_size);
  if (error == NULL) {
    error = runs_nothing() ? error_new(PJRT_Error_Code_UNIMPLEMENTED, "so many devices run nothing")
                           : refusal_explained(replaced_compile(args, caller));
  }
  const int compiles = error == NULL;
  if (!compiles) error = stand_in_compile(args, caller, error);
  if (listener != NULL) {
    listener(args->program, args->compile_options, args->compile_options_size,
             compiles ? shared_number(args->executable) : 0);
  }
  return error;
}

void program_forget(const PJRT_LoadedExecutable *executable) {
  compilations_forget(executable);
  parameters_forget(executable);
  memories_forget(executable);
}

void programs_fill(PJRT_Api *api) { api->PJRT_Client_Compile = compile; }
