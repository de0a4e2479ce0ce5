#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

// Write the options that libtpu reads from a variable of its own when the first client is created.
// Nothing reads them here: each is an event.
static void write_init_args(const void *caller) {
  static const char SPACE[] = " \t\n";
  static atomic_flag is_written = ATOMIC_FLAG_INIT;
  const char *at = launch_value(LAUNCH_ARGUMENTS);
  if (at == NULL || atomic_flag_test_and_set(&is_written)) return;
  while (*(at += strspn(at, SPACE)) != '\0') {
    const size_t size = strcspn(at, SPACE);
    char text[160], quoted[320];
    snprintf(text, sizeof text, "%s %.*s", launch_name(LAUNCH_ARGUMENTS),
             (int)(size < 128 ? size : 128), at);
    event_write("option", caller, NULL, ", \"option\": %s",
                event_quote(quoted, sizeof quoted, text));
    at += size;
  }
}

// Create a client. It is an event before it discovers, so that one that hangs there has been seen.
static PJRT_Error *create(PJRT_Client_Create_Args *args) {
  PJRT_Error *error = identity_read(args);
  if (error != NULL) return error;
  const void *caller = CALLER;
  static atomic_int clients;
  const int again = atomic_fetch_add(&clients, 1) > 0;
  const int discovers =
      megascale_discovers() && !(again && answers_wrongly("second-client-let-through"));
  char *stack = python_stack();
  event_write("client", caller, stack,
              ", \"slices\": %d, \"slice\": %d, \"discovery\": %s, \"waits\": %s", identity.slices,
              identity.first_slice, discovers ? "true" : "false",
              discovers && identity.slices_here < identity.slices ? "true" : "false");
  free(stack);
  write_init_args(caller);
  if (discovers) {
    error = megascale_discover();
    event_write(error == NULL ? "discovered" : "undiscovered", caller, NULL, "%s", "");
    if (error != NULL) return error;
  }
  if ((error = meeting_await_all()) != NULL) return error;
  static const char NAME[] = "cpu_device_count";
  const PJRT_NamedValue count = {SIZED(PJRT_NamedValue),          .name = NAME,
                                 .name_size = sizeof NAME - 1,    .type = PJRT_NamedValue_kInt64,
                                 .int64_value = identity_total(), .value_size = 1};
  // The caller's options are libtpu's.
  const PJRT_NamedValue *options = args->create_options;
  const size_t options_count = args->num_options;
  args->create_options = &count;
  args->num_options = 1;
  error = bridge_PJRT_Client_Create(args);
  args->create_options = options;
  args->num_options = options_count;
  if (error == NULL) devices_learn(args->client);
  return error;
}

static PJRT_Error *destroy(PJRT_Client_Destroy_Args *args) {
  if (!meeting_leave(args->client)) return NULL;  // functions of the host still use it
  executions_forget(args->client);
  usage_forget(args->client);
  devices_forget(args->client);
  gather_forget();
  return bridge_PJRT_Client_Destroy(args);
}

void clients_fill(PJRT_Api *api) {
  api->PJRT_Client_Create = create;
  api->PJRT_Client_Destroy = destroy;
}
