#define _GNU_SOURCE
#include <pthread.h>
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

static PJRT_Error *make(PJRT_Error_Code code, const char *prefix, const char *format,
                        va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const size_t before = strlen(prefix);
  const size_t size = before + (size_t)vsnprintf(NULL, 0, format, arguments);
  OwnError *error = allocate(1, sizeof *error + size + 1, "an error");
  *error = (OwnError){.mark = OURS, .code = code, .size = size};
  memcpy(error->message, prefix, before);
  vsnprintf(error->message + before, size - before + 1, format, again);
  va_end(again);
  return (PJRT_Error *)error;
}

PJRT_Error *error_new(PJRT_Error_Code code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PJRT_Error *error = make(code, in_own_words(""), format, arguments);
  va_end(arguments);
  return error;
}

PJRT_Error *error_again(PJRT_Error_Code code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  PJRT_Error *error = make(code, "", format, arguments);
  va_end(arguments);
  return error;
}

const char *in_own_words(const char *text) {
  enum { MOST = 32 };
  static struct {
    const char *text;
    char whole[128];
  } known[MOST];
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i + 1 < MOST && known[i].text != NULL && strcmp(known[i].text, text) != 0) ++i;
  if (known[i].text == NULL) {
    known[i].text = text;
    snprintf(known[i].whole, sizeof known[i].whole, "virtual %s: %s", platform_title(), text);
  }
  const char *whole = known[i].whole;
  pthread_mutex_unlock(&lock);
  return whole;
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
