#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

// The backend's PJRT_Error starts with an absl::Status: a pointer or small tag, never these bytes.
static const uint64_t OURS = 0x7674707520657272;  // "vtpu err"

typedef struct {
  uint64_t mark;
  PJRT_Error_Code code;
  size_t size;
  char message[];
} OwnError;

static const OwnError *own(const PJRT_Error *error) {
  const OwnError *candidate = (const OwnError *)error;
  return candidate != NULL && candidate->mark == OURS ? candidate : NULL;
}

PJRT_Error *error_new(PJRT_Error_Code code, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  const int size = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  OwnError *error = allocate(1, sizeof *error + (size_t)size + 1, "an error");
  *error = (OwnError){.mark = OURS, .code = code, .size = (size_t)size};
  vsnprintf(error->message, (size_t)size + 1, format, again);
  va_end(again);
  return (PJRT_Error *)error;
}

// Destroy an error. The structs of this call and the next two have never changed, so no size is
// adapted.
void error_destroy(PJRT_Error_Destroy_Args *args) {
  if (own(args->error) != NULL) {
    free(args->error);
  } else if (backend != NULL) {
    backend->PJRT_Error_Destroy(args);
  }
}

void error_message(PJRT_Error_Message_Args *args) {
  const OwnError *error = own(args->error);
  if (error != NULL) {
    args->message = error->message;
    args->message_size = error->size;
  } else if (backend != NULL) {
    backend->PJRT_Error_Message(args);
  }
}

PJRT_Error *error_get_code(PJRT_Error_GetCode_Args *args) {
  const OwnError *error = own(args->error);
  if (error == NULL) return backend == NULL ? backend_missing() : backend->PJRT_Error_GetCode(args);
  args->code = error->code;
  return NULL;
}

PJRT_Error_Code error_code(const PJRT_Error *error) {
  PJRT_Error_GetCode_Args get = {SIZED(PJRT_Error_GetCode_Args), .error = error};
  error_drop(error_get_code(&get));
  return get.code;
}

char *error_text(PJRT_Error *error) {
  PJRT_Error_Message_Args message = {SIZED(PJRT_Error_Message_Args), .error = error};
  error_message(&message);
  char *text = strndup(message.message, message.message_size);
  PJRT_Error_Destroy_Args destroy = {SIZED(PJRT_Error_Destroy_Args), .error = error};
  error_destroy(&destroy);
  return text;
}

void error_drop(PJRT_Error *error) {
  if (error != NULL) free(error_text(error));
}

void buffer_drop(PJRT_Buffer *buffer) {
  PJRT_Buffer_Destroy_Args destroy = {SIZED(PJRT_Buffer_Destroy_Args), .buffer = buffer};
  error_drop(backend->PJRT_Buffer_Destroy(&destroy));
}

void event_drop(PJRT_Event *event) {
  PJRT_Event_Destroy_Args destroy = {SIZED(PJRT_Event_Destroy_Args), .event = event};
  error_drop(backend->PJRT_Event_Destroy(&destroy));
}

PJRT_Error *event_await(PJRT_Event *event) {
  if (event == NULL) return NULL;
  PJRT_Event_Await_Args wait = {SIZED(PJRT_Event_Await_Args), .event = event};
  PJRT_Error *error = backend->PJRT_Event_Await(&wait);
  event_drop(event);
  return error;
}
