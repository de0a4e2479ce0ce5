#include "api/api.h"

// A profiler that records nothing. torch_xla starts its plugin's profiler without asking whether
// there is one, and the CPU plugin has none: `xp.start_trace` would be a call through NULL.
//
// The header of xla-cpu-pjrt does not declare this extension. Layout of PLUGIN_PROFILER_VERSION 1:
// https://github.com/openxla/xla/blob/main/xla/backends/profiler/plugin/profiler_c_api.h and
// https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api_profiler_extension.h

typedef struct Profiler Profiler;            // what a caller holds; never looked into
typedef struct ProfilerError ProfilerError;  // none is ever made

typedef struct {
  size_t struct_size;
  const char *options;
  size_t options_size;
  Profiler *profiler;  // out
} CreateArgs;

typedef struct {
  size_t struct_size;
  Profiler *profiler;
} ProfilerArgs;  // of destroy, start and stop

typedef struct {
  size_t struct_size;
  Profiler *profiler;
  uint8_t *buffer;              // in and out: a serialised XSpace
  size_t buffer_size_in_bytes;  // out
} CollectArgs;

typedef struct {
  size_t struct_size;
  void *priv;
  const ProfilerError *error;
  const char *message;  // out
  size_t message_size;  // out
} MessageArgs;

typedef struct {
  size_t struct_size;
  void *priv;
  const ProfilerError *error;
  int code;  // out
} CodeArgs;

typedef struct {
  size_t struct_size;
  void *priv;
  void (*error_destroy)(void *args);
  void (*error_message)(MessageArgs *args);
  ProfilerError *(*error_get_code)(CodeArgs *args);
  ProfilerError *(*create)(CreateArgs *args);
  ProfilerError *(*destroy)(ProfilerArgs *args);
  ProfilerError *(*start)(ProfilerArgs *args);
  ProfilerError *(*stop)(ProfilerArgs *args);
  ProfilerError *(*collect_data)(CollectArgs *args);
} ProfilerApi;

typedef struct {
  PJRT_Extension_Base base;
  const ProfilerApi *api;
  int64_t traceme_context_id;  // only where the extension is an argument's
} ProfilerExtension;

static void error_destroy_none(void *args) { (void)args; }

static void error_message_none(MessageArgs *args) {
  args->message = "";
  args->message_size = 0;
}

static ProfilerError *error_code_none(CodeArgs *args) {
  args->code = 0;
  return NULL;
}

static ProfilerError *create(CreateArgs *args) {
  static char token;
  args->profiler = (Profiler *)&token;
  return NULL;
}

static ProfilerError *nothing(ProfilerArgs *args) {
  (void)args;
  return NULL;
}

// Return an XSpace without planes, which has no bytes.
static ProfilerError *collect(CollectArgs *args) {
  args->buffer_size_in_bytes = 0;
  return NULL;
}

static const ProfilerApi api = {.struct_size = sizeof api,
                                .error_destroy = error_destroy_none,
                                .error_message = error_message_none,
                                .error_get_code = error_code_none,
                                .create = create,
                                .destroy = nothing,
                                .start = nothing,
                                .stop = nothing,
                                .collect_data = collect};

void profiler_fill(PJRT_Api *table) {
  static ProfilerExtension extension = {
      .base = {.struct_size = sizeof extension, .type = PJRT_Extension_Type_Profiler}, .api = &api};
  extension.base.next = table->extension_start;
  table->extension_start = &extension.base;
}
