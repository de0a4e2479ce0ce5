#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

// Calls from a running program into the Python half: what JAX's TPU interpreter does for a Pallas
// kernel, load by load and copy by copy, is Python. The CPU plugin takes handlers of custom calls
// through an extension that the header of xla-cpu-pjrt numbers and does not declare. Layouts:
// https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_ffi_extension.h
// https://github.com/openxla/xla/blob/main/xla/ffi/api/c_api.h

static const char TARGET[] = "virtual_tpu_host_callback";

// --- What XLA hands to a handler

enum { FFI_METADATA = 1, FFI_INTERNAL = 13 };  // an extension's type, and a code of an error

typedef struct FfiExtension {
  size_t struct_size;
  int type;
  struct FfiExtension *next;
} FfiExtension;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int major, minor;
} FfiVersion;

typedef struct {
  FfiExtension base;
  struct {
    size_t struct_size;
    FfiVersion version;
    uint32_t traits;
  } *metadata;  // out
} FfiMetadata;

typedef struct FfiError FfiError;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  const char *message;
  int code;
} FfiErrorArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  void *context;
  union {
    int64_t run_id;          // out
    int32_t device_ordinal;  // out
  };
} FfiContextArgs;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  FfiVersion version;
  void *internal;
  FfiError *(*error_create)(FfiErrorArgs *args);
  void *others[15];
  FfiError *(*run_id_get)(FfiContextArgs *args);
  FfiError *(*device_ordinal_get)(FfiContextArgs *args);
} FfiApi;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int element_type;
  void *data;
  int64_t rank, *dimensions;
} FfiBuffer;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int64_t size;
  int *types;
  FfiBuffer **buffers;
} FfiBuffers;

typedef struct {
  const char *text;
  size_t size;
} FfiSpan;

typedef struct {
  int element_type;
  void *value;
} FfiScalar;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  int64_t size;
  int *types;
  FfiSpan **names;
  void **values;
} FfiAttributes;

typedef struct {
  size_t struct_size;
  FfiExtension *extension_start;
  const FfiApi *api;
  void *context;
  int stage;
  FfiBuffers arguments, results;
  FfiAttributes attributes;
} FfiCall;

typedef struct {
  size_t struct_size;
  const char *target;
  size_t target_size;
  void *handler;
  const char *platform;
  size_t platform_size;
  uint32_t traits;
} RegisterArgs;

typedef struct {
  PJRT_Extension_Base base;
  void *type_register, *user_data_add;
  PJRT_Error *(*handler_register)(RegisterArgs *args);
} Ffi;

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

static uint64_t attribute(const FfiCall *call, const char *name) {
  for (int64_t i = 0; i < call->attributes.size; ++i) {
    const FfiSpan *found = call->attributes.names[i];
    if (found->size == strlen(name) && memcmp(found->text, name, found->size) == 0) {
      return *(const uint64_t *)((const FfiScalar *)call->attributes.values[i])->value;
    }
  }
  return 0;
}

static void **data_of(const FfiBuffers *buffers) {
  void **data = malloc((size_t)(buffers->size + 1) * sizeof *data);
  if (data == NULL) abort();
  for (int64_t i = 0; i < buffers->size; ++i) data[i] = buffers->buffers[i]->data;
  return data;
}

// Exported for jaxlib's own client, which takes it as any other handler.
VIRTUAL_TPU_EXPORT FfiError *virtual_tpu_host_call(FfiCall *call) {
  for (FfiExtension *one = call->extension_start; one != NULL; one = one->next) {
    if (one->type != FFI_METADATA) continue;
    FfiVersion *version = &((FfiMetadata *)one)->metadata->version;
    version->major = 0;
    version->minor = 1;  // the layouts above have been like that since then
    return NULL;
  }
  FfiContextArgs run = {.struct_size = sizeof run, .context = call->context}, device = run;
  FfiError *unknown = call->api->run_id_get(&run);
  if (unknown == NULL) unknown = call->api->device_ordinal_get(&device);
  if (unknown != NULL) return unknown;
  char error[2048] = "";
  HostCall host = {.process = attribute(call, "process"),
                   .number = attribute(call, "number"),
                   .run = run.run_id,
                   .device = device.device_ordinal,
                   .arguments = data_of(&call->arguments),
                   .results = data_of(&call->results),
                   .error = error,
                   .error_size = sizeof error};
  const int done = callback(&host);
  free(host.arguments);
  free(host.results);
  if (done) return NULL;
  FfiErrorArgs args = {.struct_size = sizeof args, .message = error, .code = FFI_INTERNAL};
  return call->api->error_create(&args);
}

static void register_handler(void) {
  const PJRT_Extension_Base *one = backend == NULL ? NULL : backend->extension_start;
  while (one != NULL && one->type != PJRT_Extension_Type_FFI) one = one->next;
  if (one == NULL) return;  // a program with such a call fails to compile, by the target's name
  RegisterArgs args = {.struct_size = sizeof args,
                       .target = TARGET,
                       .target_size = sizeof TARGET - 1,
                       .handler = (void *)virtual_tpu_host_call,
                       .platform = "Host",
                       .platform_size = strlen("Host")};
  error_drop(((const Ffi *)one)->handler_register(&args));
}

// From now on a running program may call `function`.
VIRTUAL_TPU_EXPORT void virtual_tpu_set_host_callback(Callback function) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  callback = function;
  pthread_once(&once, register_handler);
}

// An event: what a kernel was seen to do wrong while it ran.
VIRTUAL_TPU_EXPORT void virtual_tpu_record_fault(const char *fault, const char *kernel) {
  char quoted[2][512];
  event_write("fault", NULL, NULL, ", \"fault\": %s, \"kernel\": %s",
              event_quote(quoted[0], sizeof quoted[0], fault),
              event_quote(quoted[1], sizeof quoted[1], kernel));
}
