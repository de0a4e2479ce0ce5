#include <stdlib.h>

#include "meet/meet.h"

void results_discard(const PJRT_LoadedExecutable_Execute_Args *args, size_t devices,
                     size_t results) {
  for (size_t i = 0; i < devices; ++i) {
    for (size_t k = 0; k < results; ++k) {
      if (args->output_lists[i][k] != NULL) buffer_drop(args->output_lists[i][k]);
    }
    PJRT_Event *event = args->device_complete_events ? args->device_complete_events[i] : NULL;
    if (event != NULL) event_drop(event);
  }
}

// Return the arguments that a program takes, to be freed, if it shall wrongly leave them be.
static int64_t *wrongly_kept(PJRT_LoadedExecutable *executable, size_t *count) {
  static const char KEPT[] = "donated-buffer-kept";
  *count = 0;
  if (!wrong_answer_is(KEPT)) return NULL;
  PJRT_Program program;
  PJRT_Error *error = program_optimized(executable, &program);
  if (error != NULL) {
    error_drop(error);
    return NULL;
  }
  int64_t *taken =
      donated_by_module(program.code, program.code_size, program_has_config(&program), count);
  free(program.code);
  if (*count > 0) answers_wrongly(KEPT);
  return taken;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *forked = devices_check_process();
  if (forked != NULL) return forked;
  const char *refusal = shared_refusal(args->executable);
  if (refusal != NULL) event_write("stand_in", CALLER, refusal, "%s", "");
  char *stack = event_wants_stack("execute") ? python_stack() : NULL;
  event_write("execute", CALLER, stack, ", \"devices\": %zu, \"program\": %u", args->num_devices,
              shared_number(args->executable));
  free(stack);
  // Nobody can see a planted fault in a program that does not run.
  if (faults_are_planted() && shared_take_planted(args->executable)) {
    event_plant(CALLER, "executed");
  }
  PJRT_Error *mismatch = parameters_check(args);
  if (mismatch != NULL) return mismatch;
  PJRT_ExecuteOptions wide, *given = args->options;
  PJRT_Error *error = widen_PJRT_ExecuteOptions(&wide, given);
  if (error != NULL) return error;
  args->options = &wide;
  size_t kept_count;
  int64_t *kept = wrongly_kept(args->executable, &kept_count);
  if (kept_count > 0) {
    wide.non_donatable_input_indices = kept;
    wide.num_non_donatable_input_indices = kept_count;
  }
  int met = 0;
  error = meeting_execute(args, &met);
  if (error == NULL && !met) error = unseen_execute(args, CALLER);
  if (error == NULL && (error = memories_place(args)) != NULL) {
    results_discard(args, args->num_devices, parameters_results(args->executable));
  }
  usage_executed(args, error == NULL);
  args->options = given;
  free(kept);
  if (error != NULL) unseen_returned(error, CALLER);
  return error;
}

static void forget(const PJRT_LoadedExecutable *executable) {
  meeting_forget(executable);
  program_forget(executable);
  devices_forget_executable(executable);
}

void executions_forget(const PJRT_Client *client) { shared_forget(client, forget); }

static PJRT_Error *destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  if (!shared_release(args->executable)) return NULL;
  forget(args->executable);
  return bridge_PJRT_LoadedExecutable_Destroy(args);
}

void executions_fill(PJRT_Api *api) {
  api->PJRT_LoadedExecutable_Execute = execute;
  api->PJRT_LoadedExecutable_Destroy = destroy;
}
