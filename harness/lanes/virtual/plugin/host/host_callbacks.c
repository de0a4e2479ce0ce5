#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/ffi.h"

// Calls from a running program into the Python half: what JAX's TPU interpreter does for a Pallas
// kernel, load by load and copy by copy, is Python.

static const char TARGET[] = "virtual_tpu_host_callback";

// --- The Python half

// One call. The memory is this half's.
typedef struct {
  uint64_t process, number;  // of the process that compiled the program, and of its callback
  int64_t run;               // the same on all devices of one execution
  int64_t device;
  void **arguments, **results;  // their data
  char *error;                  // out, what has failed
  size_t error_size;
} HostCall;
// 0 when the call has failed.
typedef int (*Callback)(HostCall *call);
static Callback callback;

static void **data_of(const FfiBuffers *buffers) {
  void **data = allocate((size_t)buffers->size, sizeof *data, "a host call's buffers");
  for (int64_t i = 0; i < buffers->size; ++i) data[i] = buffers->buffers[i]->data;
  return data;
}

// Call the Python half from a program. Exported for jaxlib's own client, which takes it as any
// other handler.
VIRTUAL_TPU_EXPORT FfiError *virtual_tpu_host_call(FfiCall *call) {
  if (ffi_asks_version(call)) return NULL;
  FfiContextArgs run = {.struct_size = sizeof run, .context = call->context}, device = run;
  FfiError *unknown = call->api->run_id_get(&run);
  if (unknown == NULL) unknown = call->api->device_ordinal_get(&device);
  if (unknown != NULL) return unknown;
  char error[2048] = "";
  HostCall host = {.process = ffi_attribute(call, "process"),
                   .number = ffi_attribute(call, "number"),
                   .run = run.run_id,
                   .device = device.device_ordinal,
                   .arguments = data_of(&call->arguments),
                   .results = data_of(&call->results),
                   .error = error,
                   .error_size = sizeof error};
  const int done = callback(&host);
  free(host.arguments);
  free(host.results);
  return ffi_error(call, done ? NULL : error);
}

static void register_handler(void) { ffi_register(TARGET, virtual_tpu_host_call); }

// Let running programs call `function` from now on.
VIRTUAL_TPU_EXPORT void virtual_tpu_set_host_callback(Callback function) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  callback = function;
  pthread_once(&once, register_handler);
}

// Write an event for what a kernel was seen to do wrong while it ran.
VIRTUAL_TPU_EXPORT void virtual_tpu_record_fault(const char *fault, const char *kernel) {
  char quoted[2][512];
  event_write("fault", NULL, NULL, ", \"fault\": %s, \"kernel\": %s",
              event_quote(quoted[0], sizeof quoted[0], fault),
              event_quote(quoted[1], sizeof quoted[1], kernel));
}
